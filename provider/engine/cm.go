package engine

import "github.com/govs-rdma/govs/provider"

// eventChannel is an event channel.
type eventChannel struct{ provider.EventChannel }

// newEventChannel makes an event channel of d, which has been held for it:
// Close drops that.
func newEventChannel(d *device) provider.EventChannel { return &eventChannel{} }
