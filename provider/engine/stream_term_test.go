package engine

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// scene is what the faults below play in: a QP with two receives, a Send with
// room for 100 bytes and one for 10, and regions of each kind.
type scene struct {
	*side
	r     *raw
	open  *region // the peer may do everything with it
	ro    *region // the peer may read it
	wo    *region // the peer may write it
	local *region // the peer may do nothing with it
	alien *region // of another PD
}

// act is what the peer did wrong last.
type act struct {
	h    *ddp.Header // header that the Terminate must carry, nil for none
	n    int         // bytes of payload after it
	read *rdmap.ReadRequest
}

const everything = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead

// one sends a segment that is wrong.
func (s *scene) one(h ddp.Header, n int) act {
	s.r.send(h, make([]byte, n))
	return act{h: &h, n: n}
}

// read sends a Read Request that is wrong, with everything attached.
func (s *scene) read(q rdmap.ReadRequest) act {
	h := s.r.readReq(q)
	return act{h: &h, n: rdmap.ReadRequestLen, read: &q}
}

// ownRead makes the QP send a Read Request of 100 bytes.
func (s *scene) ownRead() rdmap.ReadRequest {
	s.send(provider.SendWR{WRID: 50, Opcode: provider.WRRDMARead, SGList: []provider.SGE{s.local.sge(10, 100)}, RemoteAddr: 5, RKey: 6})
	payload := s.r.want("the Read Request goes out", rdmap.ReadRequestHeader(1))
	return testkit.Must(rdmap.ParseReadRequest(payload))(s.t)
}

func write(stag uint32, to uint64, last bool) ddp.Header { return rdmap.WriteHeader(stag, to, last) }
func sendSeg(msn, mo uint32, last bool) ddp.Header {
	return rdmap.SendHeader(rdmap.OpSend, 0, msn, mo, last)
}

// change returns h after f.
func change(h ddp.Header, f func(*ddp.Header)) ddp.Header {
	f(&h)
	return h
}

func control(v uint8, op rdmap.Opcode) uint8 { return rdmap.Control{Version: v, Opcode: op}.Octet() }

// faults are what a peer can do wrong on a running stream, one of each error and event. The raw
// scenarios of the suite have the other ways to the same errors.
var faults = []struct {
	what  string
	do    func(s *scene) act
	want  fault
	event provider.AsyncEventType // 0, which is EventCQErr, for none
	recv  provider.WCStatus       // of the first receive, 0 for a flush
	read  provider.WCStatus       // of our own Read if there is one, 0 for a flush
}{
	{what: "Write to an STag that was never given", want: fault{1, 1, 0},
		do: func(s *scene) act { return s.one(write(0xdead0000, s.open.to(0), true), 4) }},
	{what: "Write to a region of another PD", want: fault{1, 1, 2}, event: provider.EventQPAccessErr,
		do: func(s *scene) act { return s.one(write(s.alien.m.STag(), s.alien.to(0), true), 4) }},
	{what: "Write to a region that the peer may only read", want: fault{1, 1, 0}, event: provider.EventQPAccessErr,
		do: func(s *scene) act { return s.one(write(s.ro.m.STag(), s.ro.to(0), true), 4) }},
	{what: "Write one byte past the end", want: fault{1, 1, 1}, event: provider.EventQPAccessErr,
		do: func(s *scene) act { return s.one(write(s.open.m.STag(), s.open.to(197), true), 4) }},
	{what: "Write over the end of the address space", want: fault{1, 1, 3}, event: provider.EventQPAccessErr,
		do: func(s *scene) act { return s.one(write(s.open.m.STag(), math.MaxUint64-2, true), 4) }},
	{what: "second segment of a Write to another STag", want: fault{1, 1, 0}, event: provider.EventQPFatal,
		do: func(s *scene) act {
			h := write(s.wo.m.STag(), s.wo.to(0), false)
			s.r.send(h, []byte{0xa5, 0xa5})
			return s.one(write(s.open.m.STag(), s.open.to(0), true), 4)
		}},
	{what: "tagged segment of DDP version 0", want: fault{1, 1, 4},
		do: func(s *scene) act {
			return s.one(change(write(s.open.m.STag(), s.open.to(0), true), func(h *ddp.Header) { h.Version = 0 }), 4)
		}},
	{what: "untagged segment of DDP version 2", want: fault{1, 2, 6},
		do: func(s *scene) act {
			return s.one(change(sendSeg(1, 0, true), func(h *ddp.Header) { h.Version = 2 }), 4)
		}},
	{what: "RDMAP version 0", want: fault{0, 2, 5},
		do: func(s *scene) act {
			return s.one(change(sendSeg(1, 0, true), func(h *ddp.Header) { h.ULPCtl = control(0, rdmap.OpSend) }), 4)
		}},
	{what: "Send on queue 3", want: fault{1, 2, 1}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(change(sendSeg(1, 0, true), func(h *ddp.Header) { h.QN = 3 }), 4) }},
	{what: "Send with the MSN of the next", want: fault{1, 2, 3}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(sendSeg(2, 0, true), 4) }},
	{what: "Send with MSN 0", want: fault{1, 2, 3}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(sendSeg(0, 0, true), 4) }},
	{what: "Send that does not begin at its beginning", want: fault{1, 2, 4}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(sendSeg(1, 1, true), 4) }},
	{what: "Send one byte longer than its receive", want: fault{1, 2, 5},
		event: provider.EventQPFatal, recv: provider.WCLocLenErr,
		do: func(s *scene) act { return s.one(sendSeg(1, 0, true), 101) }},
	{what: "Send that invalidates an STag that was never given", want: fault{0, 2, 9}, recv: provider.WCRemInvReqErr,
		do: func(s *scene) act { return s.one(rdmap.SendHeader(rdmap.OpSendInvalidate, 0xdead0000, 1, 0, true), 0) }},
	{what: "Send that invalidates what the peer may not", want: fault{0, 1, 9}, recv: provider.WCRemInvReqErr,
		do: func(s *scene) act {
			return s.one(rdmap.SendHeader(rdmap.OpSendSEInvalidate, s.open.m.STag(), 1, 0, true), 0)
		}},
	{what: "Read of an STag that was never given", want: fault{0, 1, 0}, event: provider.EventQPReqErr,
		do: func(s *scene) act { return s.read(rdmap.ReadRequest{Size: 4, SourceSTag: 0xdead0000}) }},
	{what: "Read of a region of another PD", want: fault{0, 1, 3}, event: provider.EventQPReqErr,
		do: func(s *scene) act {
			return s.read(rdmap.ReadRequest{Size: 4, SourceSTag: s.alien.m.STag(), SourceTO: s.alien.to(0)})
		}},
	{what: "Read of a region that the peer may only write", want: fault{0, 1, 2}, event: provider.EventQPReqErr,
		do: func(s *scene) act {
			return s.read(rdmap.ReadRequest{Size: 4, SourceSTag: s.wo.m.STag(), SourceTO: s.wo.to(0)})
		}},
	{what: "Read one byte past the end", want: fault{0, 1, 1}, event: provider.EventQPReqErr,
		do: func(s *scene) act {
			return s.read(rdmap.ReadRequest{Size: 4, SourceSTag: s.ro.m.STag(), SourceTO: s.ro.to(197)})
		}},
	{what: "Read over the end of the address space", want: fault{0, 1, 4}, event: provider.EventQPReqErr,
		do: func(s *scene) act {
			return s.read(rdmap.ReadRequest{Size: 4, SourceSTag: s.ro.m.STag(), SourceTO: math.MaxUint64 - 2})
		}},
	{what: "Read Request with a byte too many", want: fault{1, 2, 5},
		do: func(s *scene) act { return s.one(rdmap.ReadRequestHeader(1), rdmap.ReadRequestLen+1) }},
	{what: "Read Request with a byte too few", want: fault{0, 2, 0xff},
		do: func(s *scene) act { return s.one(rdmap.ReadRequestHeader(1), rdmap.ReadRequestLen-1) }},
	{what: "Read Request with the MSN of the next", want: fault{1, 2, 3}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(rdmap.ReadRequestHeader(2), rdmap.ReadRequestLen) }},
	{what: "Read Response without a Read", want: fault{0, 2, 6},
		do: func(s *scene) act { return s.one(rdmap.ReadResponseHeader(s.local.m.STag(), s.local.to(0), true), 4) }},
	{what: "Read Response to another STag", want: fault{1, 1, 0}, event: provider.EventQPFatal,
		do: func(s *scene) act {
			q := s.ownRead()
			return s.one(rdmap.ReadResponseHeader(s.open.m.STag(), q.SinkTO, true), 100)
		}},
	{what: "Read Response to another TO", want: fault{1, 1, 1}, event: provider.EventQPFatal,
		do: func(s *scene) act {
			q := s.ownRead()
			return s.one(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+1, true), 100)
		}},
	{what: "Read Response with a byte too many", want: fault{1, 1, 1}, event: provider.EventQPFatal,
		read: provider.WCLocLenErr,
		do: func(s *scene) act {
			q := s.ownRead()
			return s.one(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), 101)
		}},
	{what: "Read Response with a byte too few", want: fault{1, 1, 1}, event: provider.EventQPFatal,
		do: func(s *scene) act {
			q := s.ownRead()
			return s.one(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), 99)
		}},
	{what: "Terminate of three bytes", want: fault{0, 2, 0xff},
		do: func(s *scene) act { return s.one(rdmap.TerminateHeader(), 3) }},
	{what: "Terminate that is too long", want: fault{1, 2, 5},
		do: func(s *scene) act { return s.one(rdmap.TerminateHeader(), rdmap.MaxTerminateLen+1) }},
	{what: "Terminate on the queue for Sends", want: fault{1, 2, 1}, event: provider.EventQPFatal,
		do: func(s *scene) act { return s.one(change(rdmap.TerminateHeader(), func(h *ddp.Header) { h.QN = 0 }), 4) }},
	{what: "ULPDU shorter than a DDP header", want: fault{2, 0, 3},
		do: func(s *scene) act {
			s.r.write(testkit.Must(s.r.framer.AppendFPDU(nil, []byte{0x41, 0x43, 0, 0}))(s.t))
			return act{}
		}},
	{what: "empty ULPDU", want: fault{2, 0, 3},
		do: func(s *scene) act { s.r.write(testkit.Must(s.r.framer.AppendFPDU(nil))(s.t)); return act{} }},
}

// framings are the ways in which a stream can be framed and placed.
var framings = []struct {
	name         string
	opts         Options
	crc, markers bool
}{
	{"CRC", Options{}, true, false},
	{"without CRC", Options{}, false, false},
	{"markers", Options{}, true, true},
}

func framingParams(crc, markers bool) mpa.Params {
	p := params(crc)
	p.MarkersRx, p.MarkersTx = markers, markers
	return p
}

// newScene makes the scene on a running side. The regions are 200 bytes of
// 0xa5.
func newScene(s *side, r *raw) *scene {
	sc := &scene{side: s, r: r,
		open:  s.reg(200, everything),
		ro:    s.reg(200, provider.AccessRemoteRead),
		wo:    s.reg(200, provider.AccessLocalWrite|provider.AccessRemoteWrite),
		local: s.reg(200, provider.AccessLocalWrite),
	}
	sc.alien = alien(s, 200)
	s.recv(provider.RecvWR{WRID: 100, SGList: []provider.SGE{sc.local.sge(0, 60), sc.local.sge(100, 40)}},
		provider.RecvWR{WRID: 101})
	return sc
}

// TestFaults: whatever a peer does wrong is answered by one Terminate with the
// RFC's layer, type and code and the headers at fault, and then by nothing; no
// byte is placed; the QP says why, and all that is posted is flushed.
//
//rfc:5040 RDMAP-6.2.1-01 Terminate used on RDMAP or LLP error
//rfc:5040 RDMAP-7.1-01 Local ULP informed of error
//rfc:5040 RDMAP-7.1-2-01 Inbound error on tagged or Send: DDP header, length
//rfc:5040 RDMAP-7.1-3-01 Inbound error on ReadReq: the RDMA header, too
//rfc:5040 RDMAP-5.4-06 At most one Terminate per stream
//rfc:5041 DDP-7.1-01 An error stops placement of the segment and is reported
//rfc:5041 DDP-7.1-02 Report includes DDP header, type, segment length
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
//rfc:5040 RDMAP-4.8-02 Only listed Layer/EType/Code combinations
//rfc:5040 RDMAP-4.8-12 Remote Protection only for ReadReq and Sends that invalidate
//rfc:5041 DDP-3-08 Connection is torn down when all streams are down
//rfc:5041 DDP-6.2.2-03 ULP may still send a last message after a receive fatal
//rfc:5041 DDP-7.2-01 Error numbers as in the table
//rfc:6580 IANA-3.1-01 RDMAP error registry closed set
//rfc:5042 SEC-6.2.1-01 No access outside the registered buffer
func TestFaults(t *testing.T) {
	for _, fr := range framings {
		for _, f := range faults {
			t.Run(fr.name+"/"+f.what, func(t *testing.T) {
				story(t, fr.opts, framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
					sc := newScene(s, r)
					a := f.do(sc)
					r.write(r.fpdu(sendSeg(1, 0, true), nil)) // a good one after the bad one
					r.wantTerminate("a Terminate for "+f.what, f.want, a.h, a.n, a.read)
					r.wantFIN("FIN after the Terminate, and nothing else")
					s.wantTerm("the QP ends", false, uint8(f.want.layer), uint8(f.want.etype), uint8(f.want.code))
					sc.wantFlushed(f.recv, f.read)
					if f.event != 0 {
						s.wantEvent("the event", f.event)
					}
					for _, m := range []*region{sc.open, sc.ro, sc.wo, sc.local, sc.alien} {
						m.untouched(0, 0)
					}
				})
			})
		}
	}
}

// wantFlushed waits for the completions of all that a scene has posted: the
// first receive and the Read with these statuses, or flushed like the rest.
func (s *scene) wantFlushed(first, read provider.WCStatus) {
	s.t.Helper()
	if first == provider.WCSuccess {
		first = provider.WCWRFlushErr
	}
	if read == provider.WCSuccess {
		read = provider.WCWRFlushErr
	}
	if s.qp.sq.tail.Load() > 0 {
		s.wantWC("the Read", provider.WC{WRID: 50, Status: read})
		s.wantEvent("the send queue is drained", provider.EventSQDrained)
	}
	s.wantWC("the receive concerned", provider.WC{WRID: 100, Status: first})
	s.wantWC("the other receive", provider.WC{WRID: 101, Status: provider.WCWRFlushErr})
	s.noWC("each once")
	testkit.Equal(s.t, "the state", s.qp.getState(), provider.QPErr)
}

// TestBadCRC: one wrong bit anywhere in an FPDU ends the stream with 2/0/2, and
// nothing of it has been placed.
//
//rfc:5044 MPA-4.4-13 CRC verified before anything in the FPDU is acted on
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
//rfc:5044 MPA-8-2-01 Detect CRC mismatch (code 2)
//rfc:5044 MPA-8-03 For codes 2 and 3 MPA itself does not close TCP
//rfc:5041 DDP-3-04 Strong digest (CRC32c class) over the segment
//rfc:5041 DDP-6.2-01 DDP never starts teardown by itself
//rfc:5041 DDP-6.2.2-04 Stream not terminated until ULP says so
func TestBadCRC(t *testing.T) {
	for _, fr := range framings {
		if !fr.crc {
			continue
		}
		flips := map[int][]int{60_000: {1, 8*30 + 1, 8*30_000 + 1, 8*(60_000+16) + 9}} // by length of the payload
		for bit := 8 * mpa.HeaderLen; bit < 8*(2+14+12+4); bit += 13 {
			flips[12] = append(flips[12], bit)
		}
		for n, bits := range flips {
			for _, bit := range bits {
				t.Run(fmt.Sprintf("%s/%d bytes, bit %d", fr.name, n, bit), func(t *testing.T) {
					story(t, fr.opts, framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
						dst := s.reg(n, everything)
						r.send(rdmap.WriteHeader(0, 0, true), nil) // a good one first
						fpdu := r.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, n))
						fpdu[bit/8] ^= 1 << (bit % 8)
						r.write(fpdu)
						if bit < 8*mpa.HeaderLen {
							r.write(make([]byte, 4096)) // the length is wrong: it takes more
						}
						r.wantTerminate("a Terminate for the CRC",
							fault{iwarp.LayerLLP, iwarp.MPAErrors, iwarp.MPACRC}, nil, 0, nil)
						r.wantFIN("FIN after it")
						s.wantTerm("the QP ends", false, 2, 0, 2)
						dst.untouched(0, 0)
					})
				})
			}
		}
	}
}

// panicking is a Conn that panics, and then is none any more.
type panicking struct {
	transport.Conn
	s *stream
}

func (c *panicking) Writev([][]byte) (int, error) {
	c.s.conn = c.Conn
	panic("a fault in Writev")
}

func (c *panicking) Readv([][]byte) (int, error) {
	c.s.conn = c.Conn
	panic("a fault in Readv")
}

// TestPanicIsNoHang: a panic of the engine's, with a stream's lock held, gets
// through to the program, whose deferred Close of the QP returns.
func TestPanicIsNoHang(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(s *side) error
	}{
		{"Writev", func(s *side) error {
			_, err := s.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend}})
			return err
		}},
		{"Readv", func(s *side) error {
			_, err := s.cq.Poll(make([]provider.WC, 1))
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := tcpPair(t, Options{}, true, sideOptions{})
			defer y.qp.Close()
			st := x.qp.stream.Load()
			st.replaceConn(func(c transport.Conn) transport.Conn { return &panicking{c, st} })
			got := make(chan any, 1)
			go func() {
				defer func() { got <- recover() }()
				defer x.qp.Close()
				t.Errorf("no panic, but error %v", c.call(x))
			}()
			select {
			case p := <-got:
				testkit.Equal(t, "what is recovered", p, any("a fault in "+c.name))
			case <-time.After(patience):
				t.Fatal("Close hangs")
			}
		})
	}
}

// TestWriteFailsFirst: when writing fails because the peer has gone, what it has sent is still
// received, a Terminate above all, and then the stream ends. After any other error it ends at once.
func TestWriteFailsFirst(t *testing.T) {
	for _, c := range []struct {
		err       syscall.Errno
		delivered bool
	}{{syscall.EPIPE, true}, {syscall.ECONNRESET, true}, {syscall.EIO, false}} {
		t.Run(c.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := memnet.New(&memnet.Options{})
				s := newSide(t, Options{Network: interruptible{network}}, sideOptions{})
				r := s.connectRaw(network)
				dst := s.reg(64, provider.AccessLocalWrite)
				for k := range uint64(3) {
					s.recv(provider.RecvWR{WRID: k, SGList: []provider.SGE{dst.sge(0, 64)}})
				}
				s.interruptWith(func() {}, func() error { return c.err })
				s.send(provider.SendWR{WRID: 9, Opcode: provider.WRSend, Flags: provider.SendSignaled,
					SGList: []provider.SGE{dst.sge(0, 8)}})
				if c.delivered {
					for msn := range uint32(2) {
						r.send(rdmap.SendHeader(rdmap.OpSend, 0, msn+1, 0, true), []byte("a message"))
					}
					testkit.OK(t, r.c.CloseWrite())
				}
				got := make(map[uint64]provider.WCStatus)
				for range 4 {
					wc := s.poll()
					got[wc.WRID] = wc.Status
				}
				want := map[uint64]provider.WCStatus{0: provider.WCSuccess, 1: provider.WCSuccess,
					2: provider.WCWRFlushErr, 9: provider.WCWRFlushErr}
				if !c.delivered {
					want[0], want[1] = provider.WCWRFlushErr, provider.WCWRFlushErr
				}
				if !maps.Equal(got, want) {
					t.Errorf("completions are %v, want %v", got, want)
				}
				if err := s.wantDown("the stream ends"); !errors.Is(err, c.err) && c.err != syscall.EPIPE {
					t.Errorf("it ends with %v, not %v", err, c.err)
				}
			})
		})
	}
}
