package rdmacm

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// Stats returns the listener's counters since Listen. Kernel devices have none:
// errors.ErrUnsupported.
func (l *Listener) Stats() (ibverbs.ListenerStats, error) {
	const op = "stats"
	if l == nil || l.id == nil {
		return ibverbs.ListenerStats{}, errNil(op, "listener")
	}
	if err := l.id.ok(op); err != nil {
		return ibverbs.ListenerStats{}, err
	}
	if p, ok := l.id.p.(provider.ListenerStater); ok {
		return p.ListenerStats()
	}
	return ibverbs.ListenerStats{}, &ibverbs.UnsupportedError{Feature: "counters of a listener",
		Reason: "the provider doesn't count"}
}

// state returns the id's line of ibverbs.Context.WriteState.
func (id *ID) state() string {
	s := id.obj.Name()
	if p, ok := id.p.(provider.ListenerStater); ok {
		if st, err := p.ListenerStats(); err == nil {
			return fmt.Sprintf("%s: listens on %s, %d of %s pending, %s, %d "+
				"refused, %d failed", s, id.LocalAddr(), st.Pending,
				object.Count(st.MaxPending, "place"), object.Count(st.Requests, "request"), st.Refused, st.Failed)
		}
	}
	if local := id.LocalAddr(); local.IsValid() {
		s += ": " + local.String()
	}
	if remote := id.RemoteAddr(); remote.IsValid() {
		s += " -> " + remote.String()
	}
	return s
}

func init() {
	object.Describes(object.KindID, func(h any) string { return h.(*ID).state() })
}
