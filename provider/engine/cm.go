package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// eventChannel is an event channel.
type eventChannel struct{ provider.EventChannel }

// newEventChannel makes an event channel of d, which has been held for it:
// Close drops that.
func newEventChannel(d *device) provider.EventChannel { return &eventChannel{} }

// tcpNetwork makes the network of a device for which Options names none.
func tcpNetwork(opts Options) (transport.Network, error) {
	return nil, failUnsupported("TCP", "not built yet")
}
