package cm

import (
	"fmt"
	"net/netip"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Only tests of package engine call these functions. They are no methods of an ID or EventChannel,
// because a program has both, and could call the methods. Most results may be outdated at once,
// because other goroutines change the state. The tests compare them with what they have done.

// OvertakenMost is how many later Requests of a peer make the listener read an earlier connection
// of the peer that is still silent.
const OvertakenMost = overtakenMost

// Pending returns how many places of the listener are taken, with the one for the next connection.
func Pending(id *ID) int { return len(id.listening.places) }

// TakePlaces takes n free places of the listener. A call of release gives them back.
func TakePlaces(id *ID, n int) (release func()) {
	for range n {
		id.listening.places <- struct{}{}
	}
	return func() {
		for range n {
			<-id.listening.places
		}
	}
}

// Silent returns how many connections of the listener count as silent.
func Silent(id *ID) (n int) {
	ls := id.listening
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, each := range ls.silent {
		n += each
	}
	return n
}

// QPOf returns the QP of CreateQP, or nil.
func QPOf(id *ID) QP {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp
}

// PeerLeft reports whether the id has no request, or one whose peer has left.
func PeerLeft(id *ID) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.request == nil || id.request.gone
}

// RequestConn returns the connection of the id's request.
func RequestConn(id *ID) transport.Conn {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.request.wire.conn
}

// Keeps names what the id still has of a start-up. It is empty for an established or ended id.
func Keeps(id *ID) (what []string) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.request != nil {
		what = append(what, "a request")
	}
	if id.cancel != nil {
		what = append(what, "a goroutine")
	}
	if id.binding != nil {
		what = append(what, fmt.Sprint("the binding of ", id.binding.Addr()))
	}
	return what
}

// SetRoute does what ResolveAddr and ResolveRoute do, without their events.
func SetRoute(id *ID, src, dst netip.AddrPort) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.local, id.remote, id.state = src, dst, idRouted
}

// ReplaceBinding replaces the binding that BindAddr has made.
func ReplaceBinding(id *ID, by func(transport.Binding) transport.Binding) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.binding = by(id.binding)
}

// AcceptLater begins an Accept, and does not wait until the Reply is sent.
func AcceptLater(id *ID, param provider.ConnParam) error {
	_, err := id.beginAccept(param)
	return err
}

// RejectLater begins a Reject, and does not wait until the Reply is sent.
func RejectLater(id *ID, private []byte) error {
	_, err := id.beginReject(private)
	return err
}

// Events returns how many events wait on the channel.
func Events(ch *EventChannel) (n int) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for e := ch.first; e != nil; e = e.next {
		n++
	}
	return n
}

// Poll takes the oldest event, if there is one.
func Poll(ch *EventChannel) (e provider.CMEvent, ok bool) {
	e, ok, _ = ch.pop()
	return e, ok
}

// Push queues e.
func Push(ch *EventChannel, e provider.CMEvent) { ch.push(&queuedEvent{CMEvent: e}) }

// Hold takes the events of id, as Migrate does. A call of release queues them again.
func Hold(ch *EventChannel, id *ID) (release func()) {
	removed := ch.removeEvents(id)
	return func() {
		for _, e := range removed {
			ch.push(e)
		}
	}
}

// IDs returns how many ids are on the channel.
func IDs(ch *EventChannel) int { return int(ch.refs.Len()) }

// LockAdmission makes goroutines that count connections wait until UnlockAdmission.
func (m *Manager) LockAdmission() { m.accepted.mu.Lock() }

// UnlockAdmission undoes LockAdmission.
func (m *Manager) UnlockAdmission() { m.accepted.mu.Unlock() }

// AcceptedPeers returns how many peers have connections that are counted.
func (m *Manager) AcceptedPeers() int {
	m.accepted.mu.Lock()
	defer m.accepted.mu.Unlock()
	return len(m.accepted.peers)
}
