//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// id is a CM id. Locks are taken in the order QP, id, channel.
type id struct {
	object // its QP is its child
	token  uintptr

	// mu serialises the C calls on the id except Connect, which takes long.
	mu         sync.Mutex
	c          *rdmacm.ID // nil once destroyed
	ch         *eventChannel
	connecting *connectCall // nil unless a Connect is running
	left       bool         // Disconnect was called on this end

	// qp is the QP that the id connects or has connected: its own, or the one passed to Connect or
	// Accept.
	qp atomic.Pointer[qp]

	cookieMu sync.Mutex
	cookie   any
}

func (ch *eventChannel) CreateID(cookie any) (provider.ID, error) {
	i := &id{ch: ch, cookie: cookie}
	if err := ch.hold(); err != nil {
		return nil, opError("rdma_create_id", "", err)
	}
	i.token = ids.add(i)
	c, err := ch.c.CreateID(i.token)
	if err != nil {
		ids.remove(i.token)
		ch.release()
		return nil, opError("rdma_create_id", "", err)
	}
	i.c = c
	return i, nil
}

// newID makes the id that came with a CONNECT_REQUEST, or returns nil if the channel is closed. The
// caller has the channel's lock and has not acknowledged the event yet.
func newID(ch *eventChannel, c *rdmacm.ID, cookie any) *id {
	if ch.hold() != nil {
		return nil
	}
	i := &id{ch: ch, c: c, cookie: cookie}
	i.token = ids.add(i)
	c.SetContext(i.token)
	return i
}

func (i *id) Cookie() any {
	i.cookieMu.Lock()
	defer i.cookieMu.Unlock()
	return i.cookie
}

func (i *id) SetCookie(cookie any) {
	i.cookieMu.Lock()
	defer i.cookieMu.Unlock()
	i.cookie = cookie
}

// lock locks the id for a C call. It fails with EALREADY during a Connect, because the kernel would
// make other calls wait until Connect returns.
func (i *id) lock() error {
	i.mu.Lock()
	switch {
	case i.c == nil:
		i.mu.Unlock()
		return os.ErrClosed
	case i.connecting != nil:
		i.mu.Unlock()
		return syscall.EALREADY
	}
	return nil
}

// call does a C call on the id.
func (i *id) call(op, object string, f func(c *rdmacm.ID) error) error {
	if err := i.lock(); err != nil {
		return opError(op, object, err)
	}
	defer i.mu.Unlock()
	return opError(op, object, f(i.c))
}

// callAddr does a C call that reads or writes the id's addresses or device.
func (i *id) callAddr(op, object string, f func(c *rdmacm.ID) error) error {
	return i.call(op, object, func(c *rdmacm.ID) error {
		i.ch.mu.Lock()
		defer i.ch.mu.Unlock()
		return f(c)
	})
}

func (i *id) BindAddr(addr netip.AddrPort) error {
	return i.callAddr("rdma_bind_addr", addr.String(), func(c *rdmacm.ID) error {
		return whyNotBound(addr.Addr(), c.BindAddr(addr))
	})
}

func (i *id) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	return i.callAddr("rdma_resolve_addr", dst.String(), func(c *rdmacm.ID) error {
		return whyNoAddr(src, dst, c.ResolveAddr(src, dst, millis(timeout)))
	})
}

func (i *id) ResolveRoute(timeout time.Duration) error {
	return i.callAddr("rdma_resolve_route", "", func(c *rdmacm.ID) error { return c.ResolveRoute(millis(timeout)) })
}

func (i *id) Listen(backlog int) error {
	backlog = min(max(backlog, 0), math.MaxInt32)
	addr := i.LocalAddr()
	object := ""
	if addr.IsValid() {
		object = addr.String()
	}
	return i.callAddr("rdma_listen", object, func(c *rdmacm.ID) error {
		return whyNotBound(addr.Addr(), c.Listen(backlog))
	})
}

// millis rounds a timeout up to milliseconds for C.
func millis(d time.Duration) int {
	ms := (max(d, 0) + time.Millisecond - 1) / time.Millisecond
	return int(min(ms, math.MaxInt32))
}

// addrs calls f with the id unless it is destroyed. It need not wait for a running Connect, which
// does not change what f reads.
func (i *id) addrs(f func(c *rdmacm.ID)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.c == nil {
		return
	}
	i.ch.mu.Lock()
	defer i.ch.mu.Unlock()
	f(i.c)
}

func (i *id) LocalAddr() (addr netip.AddrPort) {
	i.addrs(func(c *rdmacm.ID) { addr = c.LocalAddr() })
	return addr
}

func (i *id) RemoteAddr() (addr netip.AddrPort) {
	i.addrs(func(c *rdmacm.ID) { addr = c.PeerAddr() })
	return addr
}

func (i *id) DeviceName() (name string) {
	i.addrs(func(c *rdmacm.ID) {
		if verbs := c.Verbs(); verbs != nil {
			name = verbs.Device().Name()
		}
	})
	return name
}

func (i *id) CreateQP(parent provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	const op = "rdma_create_qp"
	p, ok := parent.(*pd)
	if !ok {
		return nil, opError(op, "", fmt.Errorf("the PD is not of the kernel provider: %w",
			syscall.EINVAL))
	}
	q, err := newQP(p, i, init, func(attr *ibv.QPInitAttr) (*ibv.QP, error) {
		if err := i.lock(); err != nil {
			return nil, err
		}
		defer i.mu.Unlock()
		return i.c.CreateQP(p.c, attr)
	})
	if err != nil {
		return nil, opError(op, "", err)
	}
	i.qp.Store(q)
	return q, nil
}

// established records that the id is connected: its QP is in RTS.
func (i *id) established() {
	if q := i.qp.Load(); q != nil {
		q.connected.Store(true)
	}
}

// note applies an event to the id's QP.
func (i *id) note(event provider.CMEventType) {
	switch event {
	case provider.CMEstablished:
		i.established()
	case provider.CMDisconnected, provider.CMRejected:
		i.ended()
	}
}

// settle flushes the work of the id's QP before an event reports the connection's end. Unlike note
// it is called without the channel's lock.
func (i *id) settle(event provider.CMEventType) {
	if event == provider.CMDisconnected {
		i.leave()
	}
	if event == provider.CMDisconnected || event == provider.CMRejected {
		i.flush()
	}
}

// flush flushes the work of the id's QP if the connection has ended.
func (i *id) flush() {
	q := i.qp.Load()
	if q != nil && q.ended.Load() && q.enter() == nil {
		defer q.leave()
		q.settle()
		q.recoverAll()
	}
}

// ended records that the id's connection has ended.
func (i *id) ended() {
	if q := i.qp.Load(); q != nil {
		q.end()
	}
}

// destroyQP destroys the QP that CreateQP made. No other call is using the QP.
func (i *id) destroyQP() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.abandonConnect()
	i.ch.mu.Lock()
	defer i.ch.mu.Unlock()
	i.c.DestroyQP()
}

func (i *id) Accept(param provider.ConnParam) error {
	return i.withParam("rdma_accept", param, ibPrivateReply, i.prepareAccept, func(p *rdmacm.ConnParam) error {
		return i.call("rdma_accept", "", func(c *rdmacm.ID) error {
			err := c.Accept(p)
			if err == nil {
				i.established()
			}
			return err
		})
	})
}

func (i *id) Reject(private []byte) error {
	if err := i.checkPrivate(private, ibPrivateReject); err != nil {
		return opError("rdma_reject", "", err)
	}
	return i.call("rdma_reject", "", func(c *rdmacm.ID) error { return c.Reject(private) })
}

func (i *id) Disconnect() error {
	err := i.call("rdma_disconnect", "", func(c *rdmacm.ID) error {
		err := c.Disconnect()
		if err == nil {
			i.left = true
			i.ended()
		}
		return err
	})
	if err == nil && i.onIB() {
		i.flush()
	}
	return err
}

// Limits of private data in the messages of InfiniBand's connection manager, in bytes; the
// request's excludes rdma_cm's own header.
const (
	ibPrivateRequest = 92 - 36
	ibPrivateReply   = 196
	ibPrivateReject  = 148
)

// checkPrivate names the limit in its error; the library or the kernel would only return an errno.
// ib is the limit on InfiniBand and RoCE, in bytes.
func (i *id) checkPrivate(private []byte, ib int) error {
	n := len(private)
	if n > math.MaxUint8 {
		return fmt.Errorf("%d bytes of private data are too many, because librdmacm takes at most 255; "+
			"send the rest in a message: %w", n, syscall.EINVAL)
	}
	if n > ib && i.onIB() {
		return fmt.Errorf("%d bytes of private data are too many, because the message has room for %d; "+
			"send the rest in a message after it: %w", n, ib, syscall.EINVAL)
	}
	return nil
}

// withParam calls f with param converted for C. It keeps a QP that param names open until f
// returns, because the kernel looks it up by number. before prepares the QP.
func (i *id) withParam(op string, param provider.ConnParam, limit int, before func(*qp, *rdmacm.ConnParam) error, f func(*rdmacm.ConnParam) error) error {
	for _, n := range []int{param.ResponderResources, param.InitiatorDepth} {
		if n < 0 || n > math.MaxUint8 {
			return opError(op, "",
				fmt.Errorf("ResponderResources or InitiatorDepth is %d, and must be "+
					"from 0 to %d: %w", n, math.MaxUint8, syscall.EINVAL))
		}
	}
	if err := i.checkPrivate(param.PrivateData, limit); err != nil {
		return opError(op, "", err)
	}
	p := &rdmacm.ConnParam{
		PrivateData:        param.PrivateData,
		ResponderResources: uint8(param.ResponderResources),
		InitiatorDepth:     uint8(param.InitiatorDepth),
		RetryCount:         retries(param.RetryCount),
		RNRRetryCount:      retries(param.RNRRetryCount),
	}
	if param.QP != nil {
		q, ok := param.QP.(*qp)
		if !ok {
			return opError(op, "", fmt.Errorf("the QP is not of the kernel provider: %w",
				syscall.EINVAL))
		}
		if err := q.hold(); err != nil {
			return opError(op, "", err)
		}
		defer q.release()
		p.QPNum = q.qpn
		if q.init.SRQ != nil {
			p.SRQ = 1 // some devices' connection managers send it to the peer; iWARP's does not
		}
		i.qp.Store(q)
		q.connector.Store(i)
		if err := before(q, p); err != nil {
			return opError(op, "", err)
		}
	}
	return f(p)
}

// retries converts a count of ConnParam to C's.
func retries(n int) uint8 {
	switch {
	case n == 0:
		return 7
	case n < 0:
		return 0
	}
	return uint8(min(n, 7))
}

func (i *id) SetOption(option provider.IDOption, value int) error {
	const op = "rdma_set_option"
	if err := option.Check(value); err != nil {
		return opError(op, "", err)
	}
	return i.call(op, option.String(), func(c *rdmacm.ID) error { return c.SetOption(int(option), value) })
}

func (i *id) Migrate(to provider.EventChannel) error {
	const op = "rdma_migrate_id"
	ch, ok := to.(*eventChannel)
	if !ok {
		return opError(op, "", fmt.Errorf("the channel is not of the kernel provider: %w",
			syscall.EINVAL))
	}
	if err := ch.hold(); err != nil {
		return opError(op, "", err)
	}
	if err := i.lock(); err != nil {
		ch.release()
		return opError(op, "", err)
	}
	defer i.mu.Unlock()
	if ch == i.ch {
		ch.release()
		return nil
	}
	// Both channels are locked against reading, because C stores the new one in the id.
	first, second := i.ch, ch
	if first.serial > second.serial {
		first, second = second, first
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
	if err := i.c.Migrate(ch.c); err != nil {
		ch.release()
		return opError(op, "", err)
	}
	i.ch.release()
	i.ch = ch
	return nil
}

func (i *id) Close() error {
	return opError("rdma_destroy_id", "", i.close(func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.abandonConnect()
		if err := i.c.Destroy(); err != nil {
			return err
		}
		i.c = nil
		ids.remove(i.token)
		i.ch.release()
		return nil
	}))
}
