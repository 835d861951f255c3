package conformance

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// waitLimit is how long something that must happen is waited for, before
// scaling.
const waitLimit = 2 * time.Second

// A Side is one end of a connection of a verbs scenario, or the provider's end
// of a raw one. Its methods record what they check and observe under the side's
// name, and end the run where nothing sensible can follow.
type Side struct {
	*T
	Role Role
	EP   *Endpoint
	Conn *rdmacm.Conn
	PD   *ibverbs.PD
	QP   *ibverbs.QP

	over atomic.Bool // the connection has ended: nothing is placed any more
}

// SideConfig says how a side connects. Nil and zero values mean the defaults of
// rdmacm.ConnConfig, with enough room for the scenarios' work.
type SideConfig struct {
	rdmacm.ConnConfig

	// Before is called with the side when its QP exists and the peer can't send
	// yet: to register memory and post receives.
	Before func(*Side)
}

// Connect connects the two sides of a verbs scenario and closes them at the end of the
// run.
func (r *VerbsRun) Connect(initiator, responder *SideConfig) (i, p *Side) {
	l := r.Listen(r.Responder)
	return r.ConnectTo(l, initiator, responder)
}

// Listen listens on the run's address.
func (r *VerbsRun) Listen(ep *Endpoint) *rdmacm.Listener {
	l, err := rdmacm.Listen(r.Context(), ep.Context, r.Addr, nil)
	r.NoError(err, "the responder can listen")
	r.Cleanup(func() { r.Check(l.Close() == nil, "the listener can be closed") })
	return l
}

// ConnectTo connects the two sides by way of a listener that exists already.
func (r *VerbsRun) ConnectTo(l *rdmacm.Listener, initiator, responder *SideConfig) (i, p *Side) {
	i = &Side{T: r.T, Role: RoleInitiator, EP: r.Initiator}
	p = &Side{T: r.T, Role: RoleResponder, EP: r.Responder}
	dialled := make(chan error, 1)
	icfg := i.config(initiator)
	ctx, giveUp := context.WithCancel(r.Context())
	var dialling sync.WaitGroup
	defer dialling.Wait() // even if the run ends here: cleanups must not close what Dial uses
	defer giveUp()
	dialling.Go(func() {
		err := errors.New("the program did not get as far as connecting")
		defer func() { // even if Before ends the run
			if err != nil {
				giveUp()
			}
			dialled <- err
		}()
		i.Conn, err = rdmacm.Dial(ctx, r.Initiator.Context, l.Addr(), icfg)
	})
	req, err := l.Accept(ctx)
	if err != nil {
		r.NoError(<-dialled, "the initiator's connect succeeds")
		r.NoError(err, "the connection request arrives")
	}
	conn, err := req.Accept(r.Context(), p.config(responder))
	derr := <-dialled
	if derr == nil {
		i.adopt()
	}
	if err == nil {
		p.Conn = conn
		p.adopt()
	}
	r.NoError(err, "the responder's accept succeeds")
	r.NoError(derr, "the initiator's connect succeeds")
	return i, p
}

// config makes the ConnConfig of a side.
func (s *Side) config(c *SideConfig) *rdmacm.ConnConfig {
	if c == nil {
		c = &SideConfig{}
	}
	cfg := c.ConnConfig
	cfg.NoOpeningWrite = true // only the scenario sends
	prepare := cfg.Prepare
	cfg.Prepare = func(ctx context.Context, conn *rdmacm.Conn, param *rdmacm.ConnParam) error {
		s.Conn, s.PD, s.QP = conn, conn.PD(), conn.QP()
		s.Cleanup(func() {
			err := conn.Close()
			s.Check(err == nil, string(s.Role)+"'s connection can be closed with all that belongs to it", "%v", err)
		})
		if c.Before != nil {
			c.Before(s)
		}
		if prepare != nil {
			return prepare(ctx, conn, param)
		}
		return nil
	}
	return &cfg
}

// adopt takes a connection over. Cleanups run last first: the connection ends,
// then the memory that Before registered is deregistered. Last, the cleanup that
// config left closes the PD that the memory was in.
func (s *Side) adopt() {
	s.PD, s.QP = s.Conn.PD(), s.Conn.QP()
	s.Cleanup(func() { _ = s.Conn.Close() })
}

// pageBytes is the canary's length on either side of a buffer.
const pageBytes = 4096

// canary fills memory that must not change.
const canary = 0xa5

// A Buffer is registered memory with a page of canaries on either side, which
// are checked when the run ends.
type Buffer struct {
	side *Side
	name string
	all  []byte
	Data []byte // what is registered
	MR   *ibverbs.MR
}

// Buffer registers n octets, all 0x5a, with the connection's PD.
func (s *Side) Buffer(name string, n int, access ibverbs.Access) *Buffer {
	return s.BufferIn(s.PD, name, n, access)
}

// BufferIn registers n octets, all 0x5a, with another PD than the connection's.
func (s *Side) BufferIn(pd *ibverbs.PD, name string, n int, access ibverbs.Access) *Buffer {
	b, err := s.BufferBy(name, n, func(data []byte) (*ibverbs.MR, error) { return pd.RegMR(data, access) })
	s.NoError(err, string(s.Role)+" can register "+name)
	return b
}

// BufferBy makes a Buffer of n octets that reg registers. The error is reg's.
func (s *Side) BufferBy(name string, n int, reg func([]byte) (*ibverbs.MR, error)) (*Buffer, error) {
	b := &Buffer{side: s, name: name, all: bytes.Repeat([]byte{canary}, n+2*pageBytes)}
	b.Data = b.all[pageBytes : pageBytes+n : pageBytes+n]
	for i := range b.Data {
		b.Data[i] = 0x5a
	}
	mr, err := reg(b.Data)
	if err != nil {
		return nil, err
	}
	b.MR = mr
	s.Cleanup(func() { b.close() })
	return b, nil
}

func (b *Buffer) close() {
	_ = b.MR.Close()
	for _, edge := range [][]byte{b.all[:pageBytes], b.all[pageBytes+len(b.Data):]} {
		for i, octet := range edge {
			if octet != canary {
				b.side.Check(false, "no octet around "+b.name+" is touched", "octet %d of the canary page is %#02x", i, octet)
				return
			}
		}
	}
}

// Fill writes a pattern that the seed decides.
func (b *Buffer) Fill(seed uint64) *Buffer {
	rng := rand.New(rand.NewPCG(seed, 0x60f5))
	for i := range b.Data {
		b.Data[i] = byte(rng.Uint32())
	}
	return b
}

// SGE names octets of the buffer. It does not check them, because some scenarios name
// octets outside of the buffer.
func (b *Buffer) SGE(off, n int) ibverbs.SGE {
	return ibverbs.SGE{Addr: b.MR.Addr() + uint64(off), Length: uint32(n), LKey: b.MR.LKey()}
}

// All returns a list of one SGE, which names the whole buffer.
func (b *Buffer) All() []ibverbs.SGE { return []ibverbs.SGE{b.SGE(0, len(b.Data))} }

// Untouched checks that the buffer still holds what it was made with.
func (b *Buffer) Untouched(what string) { b.UntouchedFrom(0, what) }

// UntouchedFrom checks that the buffer, from off on, still holds what it was made with.
func (b *Buffer) UntouchedFrom(off int, what string) {
	if !b.settled(what) {
		return
	}
	for i, octet := range b.Data[off:] {
		if octet != 0x5a {
			b.side.Check(false, what, "octet %d is %#02x", off+i, octet)
			return
		}
	}
	b.side.Check(true, what)
}

// Holds checks that the buffer holds octets, from its start.
func (b *Buffer) Holds(octets []byte, what string) { b.HoldsAt(0, octets, what) }

// HoldsAt checks that the buffer holds octets from off on.
func (b *Buffer) HoldsAt(off int, octets []byte, what string) {
	if !b.settled(what) {
		return
	}
	got := b.Data[off:min(off+len(octets), len(b.Data))]
	if bytes.Equal(got, octets) {
		b.side.Check(true, what)
		return
	}
	for i := range octets {
		if i >= len(got) || got[i] != octets[i] {
			b.side.Check(false, what, "differs from octet %d on", off+i)
			return
		}
	}
}

// settled reports whether no octet can be placed in the buffer any more, because all have been
// placed or the connection has ended. Reading the buffer before that would be a data race with the
// provider, so the check fails.
func (b *Buffer) settled(what string) bool {
	if !b.side.unsettled.Load() || b.side.over.Load() {
		return b.fetched(what)
	}
	b.side.Check(false, what, "not looked at: what went before has not completed")
	return false
}

// fetched updates the buffer from the copy of a device on another host, if there is one, and
// reports whether that succeeded.
func (b *Buffer) fetched(what string) bool {
	if m := b.side.EP.Memory; m != nil {
		if err := m.Pull(); err != nil {
			b.side.Check(false, what, "not looked at: %v", err)
			return false
		}
	}
	return true
}

// PostRecv posts receives that have to be accepted.
func (s *Side) PostRecv(wrs ...ibverbs.RecvWR) {
	s.NoError(s.QP.PostRecv(wrs...), string(s.Role)+" can post receives")
}

// PostSend posts send work that has to be accepted.
func (s *Side) PostSend(wrs ...ibverbs.SendWR) {
	s.NoError(s.QP.PostSend(wrs...), string(s.Role)+" can post send work")
}

// SendWCs waits for n completions of the send queue and returns as many as came
// in time, which is checked.
func (s *Side) SendWCs(n int) []ibverbs.WC {
	return s.completions(s.Conn.SendCQ(), n, "send")
}

// RecvWCs waits for n completions of the receive queue, as SendWCs does for the send queue.
func (s *Side) RecvWCs(n int) []ibverbs.WC {
	return s.completions(s.Conn.RecvCQ(), n, "receive")
}

// NoWC checks that a CQ has nothing now, and for a while.
func (s *Side) NoWC(cq *ibverbs.CQ, d time.Duration, what string) {
	until := time.Now().Add(s.Scaled(d))
	var wc [1]ibverbs.WC
	for {
		n, err := cq.Poll(wc[:])
		if n != 0 || err != nil {
			s.Check(false, what, "%s of WR %d, error %v", wc[0].Status, wc[0].WRID, err)
			return
		}
		if !time.Now().Before(until) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.Check(true, what)
}

// RecvWCsPolled waits for n completions of a receive CQ that the scenario has armed. It
// only polls, because sleeping on the channel would arm the CQ anew.
func (s *Side) RecvWCsPolled(n int) []ibverbs.WC {
	wcs, err := s.poll(s.Conn.RecvCQ(), n)
	return s.arrived(wcs, err, n, "receive")
}

// SendWCsPolled waits for n completions of the send queue by polling, as RecvWCsPolled does.
func (s *Side) SendWCsPolled(n int) []ibverbs.WC {
	wcs, err := s.poll(s.Conn.SendCQ(), n)
	return s.arrived(wcs, err, n, "send")
}

func (s *Side) poll(cq *ibverbs.CQ, n int) ([]ibverbs.WC, error) {
	until := time.Now().Add(s.Scaled(waitLimit))
	wcs := make([]ibverbs.WC, n)
	got, err := 0, error(nil)
	for got < n && err == nil && time.Now().Before(until) {
		var k int
		if k, err = cq.Poll(wcs[got:]); k == 0 {
			time.Sleep(time.Millisecond)
		}
		got += k
	}
	if err == nil && got < n {
		err = context.DeadlineExceeded
	}
	return wcs[:got], err
}

// Quietly waits for n completions of a queue, as SendWCs does, but records nothing,
// because their order or their number depends on timing.
func (s *Side) Quietly(cq *ibverbs.CQ, n int) []ibverbs.WC {
	out, err := s.wait(cq, n)
	if err != nil && !s.over.Load() {
		s.unsettled.Store(true)
	}
	return out
}

func (s *Side) completions(cq *ibverbs.CQ, n int, queue string) []ibverbs.WC {
	out, err := s.wait(cq, n)
	return s.arrived(out, err, n, queue)
}

// arrived checks and observes the completions of a wait for n.
func (s *Side) arrived(wcs []ibverbs.WC, err error, n int, queue string) []ibverbs.WC {
	if !s.Check(err == nil, string(s.Role)+"'s "+queue+" completions arrive", "%d of %d came: %v", len(wcs), n, err) && !s.over.Load() {
		s.unsettled.Store(true)
	}
	for _, wc := range wcs {
		s.observeWC(queue, wc)
	}
	return wcs
}

func (s *Side) wait(cq *ibverbs.CQ, n int) ([]ibverbs.WC, error) {
	limit := waitLimit
	if s.over.Load() {
		limit /= 4 // only flushed work can complete, and not all of it does
	}
	ctx, cancel := context.WithTimeout(s.Context(), s.Scaled(limit))
	defer cancel()
	var out []ibverbs.WC
	wcs := make([]ibverbs.WC, 16)
	for len(out) < n {
		k, err := cq.PollWait(ctx, wcs[:min(len(wcs), n-len(out))])
		out = append(out, wcs[:k]...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func (s *Side) observeWC(queue string, wc ibverbs.WC) {
	key := string(s.Role) + "." + queue + ".wc"
	if wc.Status != ibverbs.WCSuccess {
		s.Observe(key, "%d %s", wc.WRID, wc.Status)
		return
	}
	if queue == "receive" || wc.Opcode == ibverbs.WCRDMARead {
		s.Observe(key, "%d %s %d", wc.WRID, wc.Opcode, wc.ByteLen)
		return
	}
	s.Observe(key, "%d %s", wc.WRID, wc.Opcode)
}

// WantWC checks one completion that has come.
func (s *Side) WantWC(wcs []ibverbs.WC, i int, wrid uint64, status ibverbs.WCStatus, what string) {
	if i >= len(wcs) {
		s.Check(false, what, "no completion number %d", i+1)
		return
	}
	wc := wcs[i]
	s.Check(wc.WRID == wrid && wc.Status == status, what, "WR %d completed with %s", wc.WRID, wc.Status)
}

// WaitEnd waits until this side gets the event of the connection's end.
func (s *Side) WaitEnd() {
	ctx, cancel := context.WithTimeout(s.Context(), s.Scaled(waitLimit))
	defer cancel()
	err := s.Conn.Wait(ctx)
	if s.Check(err == nil, string(s.Role)+" learns that the connection has ended", "%v", err) {
		s.over.Store(true)
	} else {
		s.unsettled.Store(true)
	}
	s.Observe(string(s.Role)+".event", "DISCONNECTED")
}

// ChannelEvent reports whether a completion channel gives an event within d.
func (s *Side) ChannelEvent(ch *ibverbs.CompChannel, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.Context(), s.Scaled(d))
	defer cancel()
	_, err := ch.Next(ctx)
	s.Check(err == nil || errors.Is(err, context.DeadlineExceeded), "waiting for a channel's event works", "%v", err)
	return err == nil
}
