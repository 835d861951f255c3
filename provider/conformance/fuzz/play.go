package fuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A Target plays sequences to one provider. Its program accepts each connection with memory
// registered, receives posted, and the Reads that the sequence asks for. One goroutine uses it.
type Target struct {
	Name string
	// Quiet is how long nothing has to come before the peer takes this for the provider's answer.
	Quiet time.Duration
	// Limit is how long anything that has to come may take.
	Limit time.Duration

	ep       *conformance.Endpoint
	pd       *ibverbs.PD
	other    *ibverbs.PD
	cq       *ibverbs.CQ // of the receives
	sendCQ   *ibverbs.CQ
	memory   [regions]*ibverbs.MR
	listener *rdmacm.Listener
	requests chan *rdmacm.Request
	stop     context.CancelFunc
}

// An Outcome is what a sequence led to: names and values in a fixed order of names.
type Outcome []Value

// A Value is one observation, such as "receive 1": "success 16".
type Value struct{ Key, Text string }

func (o *Outcome) add(key, format string, args ...any) {
	*o = append(*o, Value{key, fmt.Sprintf(format, args...)})
}

// Open makes a target of an endpoint, and closes the endpoint's context with it.
func Open(ep *conformance.Endpoint) (*Target, error) {
	t := &Target{Name: ep.Name, Quiet: 40 * time.Millisecond, Limit: 20 * time.Second, ep: ep}
	err := t.open()
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("opening the target %s: %w", ep.Name, err)
	}
	return t, nil
}

func (t *Target) open() (err error) {
	if t.pd, err = t.ep.Context.AllocPD(); err != nil {
		return err
	}
	if t.other, err = t.ep.Context.AllocPD(); err != nil {
		return err
	}
	if err := t.openCQs(); err != nil {
		return err
	}
	for r := range regions {
		if err := t.register(r); err != nil {
			return err
		}
	}
	return t.listen()
}

func (t *Target) openCQs() (err error) {
	for _, cq := range []**ibverbs.CQ{&t.cq, &t.sendCQ} {
		if *cq, err = t.ep.Context.CreateCQ(64, nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *Target) listen() error {
	l, err := rdmacm.Listen(context.Background(), t.ep.Context, netip.AddrPortFrom(t.ep.Addr, 0), nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	requests := make(chan *rdmacm.Request)
	t.listener, t.stop, t.requests = l, stop, requests
	go func() {
		defer close(requests)
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				_ = req.Close()
			}
		}
	}()
	return nil
}

// rights are those of the regions.
var rights = [regions]ibverbs.Access{
	Receive: ibverbs.AccessLocalWrite,
	Window:  ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite,
	Source:  ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead,
	Sink:    ibverbs.AccessLocalWrite,
	Foreign: ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead |
		ibverbs.AccessRemoteInvalidate,
	Gift: ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteInvalidate,
}

// register makes a region, or makes it anew.
func (t *Target) register(r Region) (err error) {
	if mr := t.memory[r]; mr != nil {
		t.memory[r] = nil
		if err := mr.Close(); err != nil {
			return err
		}
	}
	pd := t.pd
	if r == Foreign {
		pd = t.other
	}
	t.memory[r], err = pd.AllocMR(RegionSize, rights[r])
	return err
}

// Close frees everything.
func (t *Target) Close() {
	if t.listener != nil {
		t.stop()
		for req := range t.requests {
			_ = req.Close()
		}
		_ = t.listener.Close()
	}
	for _, mr := range t.memory {
		if mr != nil {
			_ = mr.Close()
		}
	}
	for _, cq := range []*ibverbs.CQ{t.cq, t.sendCQ} {
		if cq != nil {
			_ = cq.Close()
		}
	}
	for _, pd := range []*ibverbs.PD{t.pd, t.other} {
		if pd != nil {
			_ = pd.Close()
		}
	}
	_ = t.ep.Context.Close()
}

// fills are what the regions hold before a sequence.
var fills = func() (f [regions][RegionSize]byte) {
	for r := range regions {
		for i := range f[r] {
			f[r][i] = byte(i) ^ byte(i>>8) ^ byte(r)<<5
		}
	}
	return f
}()

// play is one sequence under way.
type play struct {
	*Target
	s    *Sequence
	peer *rawpeer.Peer
	conn *rdmacm.Conn
	out  Outcome
	at   [regions]Place

	asked int // Reads that the program has posted
}

// Play plays a sequence. An error means that the target can't be used any more.
func (t *Target) Play(ctx context.Context, s *Sequence) (Outcome, error) {
	if s.names(Gift) {
		if err := t.register(Gift); err != nil {
			return nil, fmt.Errorf("a new region on %s: %w", t.Name, err)
		}
	}
	p := &play{Target: t, s: s, at: canonical()}
	for r, mr := range t.memory {
		p.at[r] = Place{mr.RKey(), mr.Addr()}
		copy(mr.Bytes(), fills[r][:])
	}
	peer, err := rawpeer.Dial(ctx, t.listener.Addr(), nil)
	if err != nil {
		return nil, fmt.Errorf("connecting to the listener of %s: %w", t.Name, err)
	}
	p.peer, peer.CRC = peer, true
	defer func() {
		_ = peer.Close()
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}()
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	if t.invalidated(s) {
		for r := range regions {
			if err := t.register(r); err != nil {
				return nil, fmt.Errorf("a new region on %s: %w", t.Name, err)
			}
		}
	}
	return p.out, nil
}

// invalidated reports whether the peer may have invalidated a region.
func (t *Target) invalidated(s *Sequence) bool {
	return s.read().any(func(seg *segment) bool { return seg.op.Invalidates() })
}

func (p *play) run(ctx context.Context) error {
	if err := p.peer.Send(p.s.Request); err != nil {
		return err
	}
	switch ok, err := p.accept(ctx); {
	case err != nil:
		return err
	case ok && p.reply() && p.ask():
		for _, b := range p.s.writes(p.s.stream(p.at)) {
			if p.peer.Send(b) != nil {
				break // what comes back says why
			}
		}
		p.answers()
	}
	return p.settle(ctx)
}

// accept waits for the request and makes the program accept it. It reports false if the provider
// ends the connection or says nothing.
func (p *play) accept(ctx context.Context) (bool, error) {
	own := p.peer.LocalAddr()
	// siw must have accepted before the peer closes (kernel-notes/siw-listener-lost.md).
	limit := max(p.Quiet, 300*time.Millisecond)
	for quiet := time.Duration(0); quiet < limit; quiet += 2 * time.Millisecond {
		select {
		case req, ok := <-p.requests:
			if !ok {
				return false, fmt.Errorf("the listener of %s has ended", p.Name)
			}
			if req.RemoteAddr() != own { // of an earlier sequence
				_ = req.Close()
				continue
			}
			return p.acceptRequest(ctx, req), nil
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if p.peer.Poll() != nil {
			break
		}
	}
	p.out.add("request", "none")
	f, err := p.peer.ReadFrame(mpa.KindReply, p.Quiet)
	p.out.add("reply", "%s", replied(f, err))
	return false, nil
}

func (p *play) acceptRequest(ctx context.Context, req *rdmacm.Request) bool {
	p.out.add("request", "IRD %d ORD %d private %x", req.ResponderResources(), req.InitiatorDepth(),
		req.PrivateData())
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
		PD: p.pd, SendCQ: p.sendCQ, RecvCQ: p.cq, NoOpeningWrite: true,
		ResponderResources: depth, InitiatorDepth: maxReads,
		Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1},
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			var wrs []ibverbs.RecvWR
			for k := range receives {
				sge := p.sge(Receive, k*receiveSize, receiveSize)
				wrs = append(wrs, ibverbs.RecvWR{WRID: uint64(k + 1), SGList: sge})
			}
			return c.QP().PostRecv(wrs...)
		},
	})
	if err != nil {
		p.out.add("accept", "an error")
		_ = req.Close()
		return false
	}
	p.conn = conn
	return true
}

func (p *play) sge(r Region, off, n int) []ibverbs.SGE {
	mr := p.memory[r]
	return []ibverbs.SGE{{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}}
}

// reply reads the Reply, and reports whether it accepts.
func (p *play) reply() bool {
	f, err := p.peer.ReadFrame(mpa.KindReply, p.Limit)
	p.out.add("reply", "%s", replied(f, err))
	return err == nil && !f.Reject
}

func replied(f mpa.Frame, err error) string {
	if err == nil {
		return fmt.Sprintf("%x", f.AppendTo(nil)[16:]) // without the key
	}
	return ended(err)
}

// ended names how a direction ended.
func ended(err error) string {
	for _, e := range []struct {
		err  error
		name string
	}{
		{rawpeer.ErrSilence, "silence"}, {io.EOF, "FIN"}, {syscall.ECONNRESET, "RST"},
		{rawpeer.ErrTooMuch, "too much"},
	} {
		if errors.Is(err, e.err) {
			return e.name
		}
	}
	return "undecodable"
}

// ask makes the program post its Reads, and waits until they have been sent. An empty Write goes
// first, because the accepting side may not send before.
func (p *play) ask() bool {
	if p.s.Reads == 0 {
		return true
	}
	for k := range p.s.Reads {
		wr := ibverbs.SendWR{
			WRID: uint64(k + 1), Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled,
			SGList: p.sge(Sink, k*readSize, readSize), RKey: peerSTag, RemoteAddr: uint64(k) << 32,
		}
		if err := p.conn.QP().PostSend(wr); err != nil {
			p.out.add("asked", "refused")
			return false
		}
		p.asked++
	}
	if p.peer.SendFPDU(rawpeer.WriteMessage(0, 0, nil)) != nil {
		return false
	}
	for k := range p.s.Reads {
		seg, err := p.peer.ReadFPDU(p.Limit)
		if err != nil {
			p.out.add("asked", "%d, then %s", k, ended(err))
			return false
		}
		if r, err := rdmap.ParseReadRequest(seg.Payload); err == nil && k == 0 {
			p.at[Sink] = Place{r.SinkSTag, r.SinkTO}
		}
	}
	return true
}

// answers notes what comes back, until the response to the barrier, the provider's end, or a
// silence.
func (p *play) answers() {
	var payload []byte // of the response that is coming
	for {
		seg, err := p.peer.ReadFPDU(p.Quiet)
		if err != nil {
			if len(payload) > 0 {
				p.out.add("answer", "unfinished response %x", payload)
			}
			p.out.add("end", "%s", ended(err))
			return
		}
		h := &seg.Header
		switch op := rdmap.ParseControl(h.ULPCtl).Opcode; op {
		case rdmap.OpReadResponse:
			payload = append(payload, seg.Payload...)
			if !h.Last {
				continue
			}
			if h.STag == barrierSTag {
				p.out.add("end", "barrier %x", payload)
				return
			}
			to := h.TO + uint64(len(seg.Payload)-len(payload)) // of the first segment
			p.out.add("answer", "response %x TO %x %s", h.STag, to, brief(payload))
			payload = nil
		case rdmap.OpTerminate:
			t, err := rdmap.ParseTerminate(seg.Payload, rdmap.PhaseAfterFirstFPDU)
			if err != nil {
				p.out.add("terminate", "%x", seg.Payload)
				continue
			}
			p.out.add("terminate", "%d/%d/%#02x", t.Layer, t.EType, t.Code)
			p.out.add("terminate form", "%s M %v D %v R %v length %d", t.Layout, t.M, t.D, t.R,
				t.SegmentLength)
		default:
			p.out.add("answer", "%v %x", op, seg.Payload)
		}
	}
}

// brief returns a payload, or its beginning and a checksum if it is long.
func brief(b []byte) string {
	if len(b) <= 64 {
		return fmt.Sprintf("%d:%x", len(b), b)
	}
	return fmt.Sprintf("%d:%x...%08x", len(b), b[:16], mpa.CRC(0, b))
}

// settle ends the connection, and notes completions and memory.
func (p *play) settle(ctx context.Context) error {
	_ = p.peer.CloseWrite()
	if rest, err := p.peer.Drain(p.Limit); errors.Is(err, rawpeer.ErrSilence) {
		if p.conn != nil {
			return fmt.Errorf("%s hangs: it has not ended its direction %v after the peer's FIN",
				p.Name, p.Limit)
		}
		p.out.add("after the FIN", "%d bytes, silence", len(rest))
	}
	if p.conn != nil {
		ctx, cancel := context.WithTimeout(ctx, p.Limit)
		defer cancel()
		if err := p.conn.Wait(ctx); err != nil {
			return fmt.Errorf("%s hangs: its program gets no event of the connection's end: %w",
				p.Name, err)
		}
		if err := p.completions("receive", p.cq, receives); err != nil {
			return err
		}
		if err := p.completions("read", p.sendCQ, p.asked); err != nil {
			return err
		}
	}
	for r, mr := range p.memory {
		if text := changed(Region(r), mr.Bytes()); text != "" {
			p.out.add("memory "+Region(r).String(), "%s", text)
		}
	}
	return nil
}

// completions notes n completions of a queue.
func (p *play) completions(queue string, cq *ibverbs.CQ, n int) error {
	var wcs [8]ibverbs.WC
	until := time.Now().Add(p.Limit)
	for got := 0; got < n; {
		k, err := cq.Poll(wcs[:])
		if err != nil {
			return fmt.Errorf("polling on %s: %w", p.Name, err)
		}
		for _, wc := range wcs[:k] {
			if wc.QPN != p.conn.QP().QPN() {
				continue
			}
			got++
			text := wc.Status.String()
			if wc.Status == ibverbs.WCSuccess {
				text = fmt.Sprintf("%v %d", wc.Opcode, wc.ByteLen)
			}
			p.out.add(fmt.Sprintf("%s %d", queue, wc.WRID), "%s", text)
		}
		if k == 0 && !time.Now().Before(until) {
			return fmt.Errorf("%s hangs: %d of %d completions of %ss came, after %q",
				p.Name, got, n, queue, p.out)
		}
		if k == 0 {
			runtime.Gosched()
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

// changed describes which bytes of a region are not what they were before, "" if none.
func changed(r Region, b []byte) string {
	if bytes.Equal(b, fills[r][:]) {
		return ""
	}
	var text strings.Builder
	for i := 0; i < len(b); i++ {
		begin := i
		for i < len(b) && b[i] != fills[r][i] {
			i++
		}
		if i > begin {
			fmt.Fprintf(&text, "%d:%x ", begin, b[begin:i])
		}
	}
	return text.String()
}
