package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// idState is how far an id has come.
type idState uint8

const (
	idIdle        idState = iota
	idBound               // BindAddr
	idResolved            // ResolveAddr
	idRouted              // ResolveRoute
	idListening           // Listen
	idConnecting          // Connect, the peer has not answered
	idRequested           // came with a CONNECT_REQUEST, not answered
	idAccepting           // Accept, the Reply is under way
	idEstablished         // ESTABLISHED was raised
	idEnded               // failed, rejected or disconnected; nothing follows
	idClosed
)

var idStateNames = [...]string{
	"idle", "bound", "address resolved", "route resolved", "listening", "connecting", "requested",
	"accepting", "established", "ended", "closed",
}

// String returns the state's name, as errors have it.
func (s idState) String() string { return idStateNames[s] }

// ID is a communication identifier, an rdma_cm_id. It has at most one goroutine, while its
// connection is in the start-up or waits for Accept. An established or idle id has none.
type ID struct {
	m     *Manager
	tasks sync.WaitGroup

	mu            sched.Mutex[locks.ID]
	ch            *EventChannel // holds it
	cookie        any
	state         idState
	local, remote netip.AddrPort
	binding       transport.Binding  // a port reserved by BindAddr, nil if none or used up
	adjusted      transport.Network  // the device's with options of this id; nil without any
	qp            QP                 // made by CreateQP
	listening     *listening         // while idListening
	request       *request           // since a CONNECT_REQUEST
	cancel        context.CancelFunc // of the goroutine, nil without one

	stream          Stream // the connection, while there is one
	down            bool   // the connection has ended, perhaps before ESTABLISHED was raised
	disconnectEarly bool   // Disconnect was called before ESTABLISHED was raised
	admitted        bool   // the Manager counts the connection
}

// newID makes an id on ch. The caller holds ch for it.
func newID(ch *EventChannel, cookie any) *ID {
	return &ID{m: ch.m, ch: ch, cookie: cookie}
}

// idle ends the work of id's goroutine, and drops what only the start-up needed. The data of a
// CONNECT_REQUEST stays as long as the program may answer it.
func (id *ID) idle(cancel context.CancelFunc) {
	cancel()
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cancel, id.adjusted = nil, nil
	if id.state != idRequested {
		id.returnPlace()
		id.request = nil
	}
}

// name identifies the id in errors. id.mu is held.
func (id *ID) name() string {
	switch {
	case id.remote.IsValid():
		return fmt.Sprintf("id %s to %s", id.local, id.remote)
	case id.local.IsValid():
		return "id " + id.local.String()
	}
	return "id"
}

// enter begins a call that is allowed only in some states. If it succeeds, id.mu is held when it
// returns.
func (id *ID) enter(op string, allowed ...idState) error {
	id.mu.Lock()
	for _, s := range allowed {
		if id.state == s {
			return nil
		}
	}
	defer id.mu.Unlock()
	if id.state == idClosed {
		return failClosed(op, id.name())
	}
	do := ""
	if allowed[0] == idRouted {
		do = "; call ResolveAddr and ResolveRoute first"
	}
	return fail(op, id.name(), fmt.Errorf("the id is %s, and must be %s%s: %w",
		id.state, anyOf(allowed), do,
		syscall.EINVAL))
}

// anyOf lists states, for example "bound or listening".
func anyOf(states []idState) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = s.String()
	}
	return strings.Join(names, " or ")
}

// post queues an event of id. id.mu is held, so that nothing is queued after the id is closed.
func (id *ID) post(e provider.CMEvent) {
	if id.state != idClosed {
		e.ID = id
		id.ch.push(&queuedEvent{CMEvent: e})
	}
}

// BindAddr implements provider.ID. The port stays reserved until Listen or Connect uses it, or
// Close.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	const op = "rdma_bind_addr"
	if err := id.enter(op, idIdle); err != nil {
		return err
	}
	defer id.mu.Unlock()
	return id.bind(op, addr)
}

// bind reserves addr. id.mu is held.
func (id *ID) bind(op string, addr netip.AddrPort) error {
	b, err := id.network().Bind(addr)
	if err != nil {
		return fail(op, addr.String(), whyNotBound(addr.Addr(), err))
	}
	id.binding, id.local, id.state = b, b.Addr(), idBound
	return nil
}

// ResolveAddr implements provider.ID. The engine has the answer at once, so the event is queued
// when ResolveAddr returns, and timeout does not matter. Without a port in src, and without
// BindAddr before, LocalAddr has no port until the id is connected. After BindAddr, src is ignored.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	const op = "rdma_resolve_addr"
	if err := id.enter(op, idIdle, idBound); err != nil {
		return err
	}
	defer id.mu.Unlock()
	switch {
	case !dst.Addr().IsValid():
		return fail(op, id.name(), fmt.Errorf("there is no destination address; pass the "+
			"peer's: %w", syscall.EINVAL))
	case dst.Addr().IsUnspecified():
		return fail(op, id.name(), fmt.Errorf("%s can only be listened on; use an address of the "+
			"peer: %w", dst.Addr(), syscall.EINVAL))
	}
	if id.state == idIdle && src.Addr().IsValid() {
		if err := id.bindSource(op, src); err != nil {
			return err
		}
	}
	local := id.local.Addr()
	fixed := local.IsValid() && !local.IsUnspecified()
	if fixed && local.Is4() != dst.Addr().Unmap().Is4() {
		return fail(op, id.name(), fmt.Errorf("%s and %s are of different families; leave "+
			"the local address out, or use one of the peer's family: %w", local, dst.Addr(),
			syscall.EINVAL))
	}
	route, err := id.network().Route(dst.Addr())
	if err != nil {
		id.post(provider.CMEvent{Type: provider.CMAddrError, Status: status(err),
			Cause: whyNoRoute(dst.Addr(), err)})
		return nil
	}
	if !fixed {
		id.local = netip.AddrPortFrom(route, id.local.Port())
	}
	id.remote, id.state = dst, idResolved
	id.post(provider.CMEvent{Type: provider.CMAddrResolved})
	return nil
}

// bindSource reserves the port of src. If src has none, it checks that the address is ours and
// leaves the choice to Connect, because any number of connections can share a port that is chosen
// with their destination known.
func (id *ID) bindSource(op string, src netip.AddrPort) error {
	if err := id.bind(op, src); err != nil {
		return err
	}
	if src.Port() != 0 {
		return nil
	}
	_ = id.binding.Close()
	id.binding, id.local = nil, src
	return nil
}

// ResolveRoute implements provider.ID. ResolveAddr has found the route already.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	if err := id.enter("rdma_resolve_route", idResolved); err != nil {
		return err
	}
	defer id.mu.Unlock()
	id.state = idRouted
	id.post(provider.CMEvent{Type: provider.CMRouteResolved})
	return nil
}

// CreateQP implements provider.ID. The QP is in INIT when it returns.
func (id *ID) CreateQP(p provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	const op = "rdma_create_qp"
	if err := id.enter(op, idBound, idResolved, idRouted, idRequested); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	if id.deviceName() == "" {
		return nil, fail(op, id.name(), fmt.Errorf("the id is bound to no device; call "+
			"BindAddr or ResolveAddr first: %w", syscall.EINVAL))
	}
	if id.hasQP() {
		return nil, fail(op, id.name(), fmt.Errorf("the id has a QP already; close that first: %w",
			syscall.EINVAL))
	}
	made, err := id.m.host.CreateQP(p, init)
	if err != nil {
		return nil, err
	}
	id.qp, err = id.m.host.QP(made)
	return made, err
}

// hasQP reports whether the QP of CreateQP exists. id.mu is held.
func (id *ID) hasQP() bool { return id.qp != nil && !id.qp.Closed() }

// Migrate implements provider.ID. Events that the program has not fetched move along.
func (id *ID) Migrate(to provider.EventChannel) error {
	const op = "rdma_migrate_id"
	ch, ok := to.(*EventChannel)
	if !ok || ch.m != id.m {
		return fail(op, "event channel", errForeign)
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == idClosed {
		return failClosed(op, id.name())
	}
	old := id.ch
	if old == ch {
		return nil
	}
	if !id.move(ch) {
		return failClosed(op, "event channel")
	}
	for _, e := range old.removeEvents(id) {
		// A request that was not fetched moves with its listener.
		if child := e.ID.(*ID); child != id {
			child.mu.Lock()
			child.move(ch)
			child.mu.Unlock()
		}
		ch.push(e)
	}
	return nil
}

// move makes ch the channel of id, which still has events in it. id.mu is held.
func (id *ID) move(ch *EventChannel) bool {
	if !ch.refs.Hold() {
		return false
	}
	id.ch.refs.Drop()
	id.ch = ch
	return true
}

// Close implements provider.ID. It ends a connection as QP.Close does. It rejects an unanswered
// request without private data.
func (id *ID) Close() error {
	id.mu.Lock()
	if id.state == idClosed {
		id.mu.Unlock()
		return nil
	}
	if id.hasQP() {
		defer id.mu.Unlock()
		return failBusy("rdma_destroy_id", id.name(), "QP")
	}
	id.state = idClosed
	l := id.listening
	if id.cancel != nil {
		id.cancel()
	}
	if id.binding != nil {
		_ = id.binding.Close()
	}
	id.mu.Unlock()

	if l != nil {
		l.close()
	}
	id.tasks.Wait()
	id.mu.Lock()
	s, ch := id.stream, id.ch
	id.mu.Unlock()
	if s != nil {
		s.Destroy()
	}
	id.mu.Lock()
	id.stream = nil
	id.discharge()
	id.returnPlace()
	id.mu.Unlock()
	for _, e := range ch.removeEvents(id) {
		if e.ID != id { // a request that was not fetched
			_ = e.ID.Close()
		}
	}
	ch.refs.Drop()
	return nil
}

// LocalAddr implements provider.ID.
func (id *ID) LocalAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.local
}

// RemoteAddr implements provider.ID.
func (id *ID) RemoteAddr() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.remote
}

// DeviceName implements provider.ID. As with the kernel, an id bound to all addresses is not bound
// to a device.
func (id *ID) DeviceName() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.deviceName()
}

func (id *ID) deviceName() string {
	if a := id.local.Addr(); !a.IsValid() || a.IsUnspecified() {
		return ""
	}
	return id.m.cfg.Device
}

// Cookie implements provider.ID.
func (id *ID) Cookie() any {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cookie
}

// SetCookie implements provider.ID.
func (id *ID) SetCookie(cookie any) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cookie = cookie
}

// status returns the Status of an event for the reason of a failure: a negative errno.
func status(err error) int {
	switch errno := provider.Errno(err); {
	case errno != 0:
		return -int(errno)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return -int(syscall.ETIMEDOUT)
	}
	return -int(syscall.EINVAL)
}
