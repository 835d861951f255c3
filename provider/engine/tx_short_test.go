package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestMessagesLeaveAsAnyOther posts the same messages twice. The first time each is built by
// itself, with its payload in two pieces. The second time one loop builds short messages, or the
// FPDUs of long ones. The bytes on the wire are the same.
func TestMessagesLeaveAsAnyOther(t *testing.T) {
	short := rapid.OneOf(rapid.Just(64), rapid.IntRange(0, 100), rapid.IntRange(1000, 1100))
	long := rapid.OneOf(rapid.IntRange(1000, 9000), rapid.IntRange(1424, 1430),
		rapid.IntRange(2*1424-2, 2*1424+policy.CopyMost+2))
	for _, c := range []struct {
		name   string
		octets *rapid.Generator[int]
		mss    int
	}{
		{"short", short, 0},
		{"long", long, 1448},
		{"long with SACK room", long, 1448 - 28},
		{"segments shorter than what is copied", long, 1000},
	} {
		for _, crc := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, crc %v", c.name, crc), func(t *testing.T) { leaveAsAnyOther(t, c.octets, c.mss, crc) })
		}
	}
}

func leaveAsAnyOther(t *testing.T, octets *rapid.Generator[int], mss int, crc bool) {
	const depth = 64
	so := sideOptions{cap: provider.QPCap{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 2, MaxInlineData: 256}}
	var outs [2]*nowhere
	var ends [2]*side
	var sources [2][2]*region
	for i := range ends {
		x, y := tcpPair(t, Options{Extensions: true}, crc, so)
		defer y.qp.Close()
		ends[i], outs[i] = x, x.replaceConn()
		outs[i].keep, outs[i].mss = true, mss
		for j := range sources[i] {
			sources[i][j] = x.reg(10_000, provider.AccessLocalWrite)
			pattern(sources[i][j].b, j)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var lists [2][]provider.SendWR
		for range rapid.IntRange(1, depth).Draw(t, "messages") {
			n := octets.Draw(t, "octets")
			wr := provider.SendWR{
				Opcode:         rapid.SampledFrom([]provider.WROpcode{provider.WRRDMAWrite, provider.WRRDMAWrite, provider.WRSend, provider.WRSendWithInv, provider.WRRDMAWriteWithImm}).Draw(t, "opcode"),
				RemoteAddr:     rapid.Uint64().Draw(t, "TO"),
				RKey:           rapid.Uint32().Draw(t, "STag"),
				InvalidateRKey: 0x55aa55aa,
				Imm:            rapid.Uint32().Draw(t, "immediate data"),
				Flags:          rapid.SampledFrom([]provider.SendFlags{0, provider.SendSolicited}).Draw(t, "flags"),
			}
			from := rapid.IntRange(0, 1).Draw(t, "region")
			for i := range lists {
				wr, src := wr, sources[i][from]
				switch {
				case i == 0:
					wr.SGList = []provider.SGE{src.sge(7, n/2), src.sge(7+n/2, n-n/2)}
				case n <= 256 && from == 1:
					wr.Flags |= provider.SendInline
					wr.Inline = src.b[7 : 7+n]
				default:
					wr.SGList = []provider.SGE{src.sge(7, n)}
				}
				lists[i] = append(lists[i], wr)
			}
		}
		for i, s := range ends {
			outs[i].out = outs[i].out[:0]
			lists[i][len(lists[i])-1].Flags |= provider.SendSignaled
			s.send(lists[i]...)
			s.spin(1)
		}
		if len(outs[0].out) == 0 {
			t.Fatal("nothing left")
		}
		if !bytes.Equal(outs[0].out, outs[1].out) {
			t.Fatalf("one by one\n% x\nin one loop\n% x", outs[0].out, outs[1].out)
		}
	})
}

// TestFaultBehindShortMessages: what can't be sent ends a run of short messages.
// Those before it arrive, those after it do not.
//
//rfc:5040 RDMAP-7.1-01 Local ULP informed of error
func TestFaultBehindShortMessages(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		src := s.reg(64, provider.AccessLocalWrite)
		pattern(src.b, 1)
		good := provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 64)}, RKey: 5, RemoteAddr: 6}
		bad := good
		bad.SGList = []provider.SGE{src.sge(1, 64)} // one byte beyond the region
		for i, wr := range []*provider.SendWR{&good, &bad} {
			wr.Flags, wr.WRID = provider.SendSignaled, uint64(i)
		}
		s.send(good, good, good, good, good, bad, good)
		for range 5 {
			s.wantWC("before the fault", provider.WC{Opcode: provider.WCRDMAWrite})
			testkit.EqualBytes(t, "the payload",
				r.want("before the fault", rdmap.WriteHeader(5, 6, true)), src.b)
		}
		s.wantWC("the fault", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		s.wantWC("after it", provider.WC{Status: provider.WCWRFlushErr})
		r.next("a Terminate")
		r.wantFIN("and the end")
	})
}

// TestRunOfWrites: Writes of the same length that come in one read are verified together. A fault
// in one of them ends the stream at that one: all before it are in the region, and nothing after it
// is.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
//rfc:5041 DDP-7.1-06 Each segment is validated, not only the first
//rfc:5041 DDP-8.2-01 PD mismatch: not placed, local error surfaced
func TestRunOfWrites(t *testing.T) {
	const n, count, bad = 64, 24, 13 // the bad one is neither first nor last of what is verified at once
	type writes struct {
		dst, other *region
		h          []provider.SendWR // where to
		payload    [][]byte
	}
	for _, c := range []struct {
		name   string
		bend   func(w *writes)
		break_ bool
		want   fault
	}{
		{name: "all are good", bend: func(*writes) {}},
		{name: "a CRC is wrong", bend: func(*writes) {}, break_: true, want: fault{2, 0, 2}},
		{name: "one byte beyond the region", bend: func(w *writes) { w.h[bad].RemoteAddr = w.dst.to(count*n - n + 1) }, want: fault{1, 1, 1}},
		{name: "before the region", bend: func(w *writes) { w.h[bad].RemoteAddr = w.dst.to(0) - 1 }, want: fault{1, 1, 1}},
		{name: "an STag of nothing", bend: func(w *writes) { w.h[bad].RKey = w.dst.m.STag() + 1 }, want: fault{1, 1, 0}},
		{name: "a region without the right", bend: func(w *writes) { w.h[bad].RKey = w.other.m.STag(); w.h[bad].RemoteAddr = w.other.to(0) }, want: fault{1, 1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				w := writes{dst: s.reg(count*n, provider.AccessLocalWrite|provider.AccessRemoteWrite), other: s.reg(count*n, provider.AccessLocalWrite)}
				for i := range count {
					p := make([]byte, n)
					pattern(p, i)
					w.payload = append(w.payload, p)
					w.h = append(w.h, provider.SendWR{RKey: w.dst.m.STag(), RemoteAddr: w.dst.to(i * n)})
				}
				c.bend(&w)
				var all []byte
				for i := range count {
					fpdu := r.fpdu(rdmap.WriteHeader(w.h[i].RKey, w.h[i].RemoteAddr, true), w.payload[i])
					if c.break_ && i == bad {
						fpdu[mpa.HeaderLen+14] ^= 1
					}
					all = append(all, fpdu...)
				}
				r.write(all)
				good := count
				if c.want != (fault{}) {
					good = bad
					h := rdmap.WriteHeader(w.h[bad].RKey, w.h[bad].RemoteAddr, true)
					if c.break_ {
						r.wantTerminate("refused", c.want, nil, 0, nil)
					} else {
						r.wantTerminate("refused", c.want, &h, n, nil)
					}
				}
				synctest.Wait() // the device's goroutine may be writing
				for s.qp.stream.Load() != nil && w.dst.b[good*n-1] != w.payload[good-1][n-1] {
					s.dev.poller.Poll()
					synctest.Wait()
				}
				testkit.EqualBytes(t, "what came before", w.dst.b[:good*n],
					bytes.Join(w.payload[:good], nil))
				w.dst.untouched(0, good*n)
				w.other.untouched(0, 0)
			})
		})
	}
}

// TestSendsAreReportedInOrder compares the send queue with a list: Sends and
// Writes end in their order, Reads in theirs, and a WQE is reported when all before
// it are over.
//
//rfc:5040 RDMAP-5.5-15-01 Local completions in submission order
func TestSendsAreReportedInOrder(t *testing.T) {
	s := newSide(t, Options{}, sideOptions{cqe: 256, cap: provider.QPCap{MaxSendWR: 16, MaxSendSGE: 1}})
	q := s.qp
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(1<<32-20, 1<<32-1), rapid.Uint32Range(1<<31-20, 1<<31+20)).Draw(t, "start")
		sq := &q.sq
		sq.tail.Store(start)
		sq.free.Store(start)
		sq.head, sq.out = start, start
		next := start // to report
		over := make(map[uint32]bool)
		read := func(i uint32) bool { return sq.at(i).op == provider.WRRDMARead }
		oldest := func(reads bool) (uint32, bool) {
			for i := next; i != sq.tail.Load(); i++ {
				if read(i) == reads && !over[i] {
					return i, true
				}
			}
			return 0, false
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"post", "post", "out", "read"}).Draw(t, "step") {
			case "post":
				tail := sq.tail.Load()
				if tail-next == uint32(len(sq.wqes)) {
					continue
				}
				*sq.at(tail) = sendWQE{wrid: uint64(tail), flags: provider.SendSignaled, op: rapid.SampledFrom([]provider.WROpcode{
					provider.WRRDMAWrite, provider.WRSend, provider.WRRDMARead}).Draw(t, "op")}
				delete(over, tail)
				sq.tail.Store(tail + 1)
			case "out":
				i, any := oldest(false)
				if !any {
					continue
				}
				over[i] = true
				q.finishSends(i + 1)
			case "read":
				i, any := oldest(true)
				if !any {
					continue
				}
				over[i] = true
				q.finishWQE(i)
			}
			var wcs [16]provider.WC
			for i := range q.sendCQ.pop(wcs[:]) {
				if wcs[i].WRID != uint64(next) || !over[next] {
					t.Fatalf("WQE %d is reported, next is %d (over: %v)", wcs[i].WRID, next, over[next])
				}
				next++
			}
			if next != sq.tail.Load() && over[next] {
				t.Fatalf("WQE %d is over and not reported", next)
			}
		}
	})
	q.sq.head = q.sq.tail.Load() // nothing is to be flushed
}

// TestShortFillsBatch posts more short messages at once than one batch has room for,
// of lengths up to the longest that is copied: what follows begins the next batch.
func TestShortFillsBatch(t *testing.T) {
	for _, size := range []int{1, 64, 900, 1000, policy.CopyMost - 1, policy.CopyMost} {
		a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{
			cap: provider.QPCap{MaxSendWR: 1024, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 4096,
		}, params(true))
		src, dst := a.reg(size, provider.AccessLocalWrite), b.reg(size, allRights)
		pattern(src.b, size)
		wrs := make([]provider.SendWR, 1000)
		for i := range wrs {
			wrs[i] = provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.RKey()}
		}
		wrs[len(wrs)-1].Flags = provider.SendSignaled
		b.recv(provider.RecvWR{})
		a.send(wrs...)
		a.send(provider.SendWR{Opcode: provider.WRSend})
		a.spin(1)
		b.spin(1)
		testkit.EqualBytes(t, fmt.Sprintf("what was placed of %d bytes", size), src.b, dst.b)
	}
}

// segmentLog is a memnet filter that says which segments do not consist of whole
// FPDUs.
type segmentLog struct {
	mu       sync.Mutex
	segments int
	full     int // segments of mss bytes
	mss      int
	split    []string
}

func (l *segmentLog) filter(s *memnet.Segment) memnet.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments++
	if len(s.Data) == l.mss {
		l.full++
	}
	for rest := s.Data; len(rest) > 0; {
		_, n, ok := mpa.ParseHeader(rest)
		if !ok || n > len(rest) {
			l.split = append(l.split, fmt.Sprintf("segment of %d bytes at %d ends inside an FPDU of %d",
				len(s.Data), s.Offset, n))
			break
		}
		rest = rest[n:]
	}
	return memnet.Pass
}

// TestSegmentsAreWholeFPDUs sends messages of all kinds and lengths, many of them
// in a batch, and looks at what the network cuts. Only where segments are longer
// than on any wire are they filled with what there is: without CRC, which could be cut, or
// with an MSS that cuts none.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
//rfc:5044 MPA-5.1-02 Several FPDUs per segment only if wholly contained
func TestSegmentsAreWholeFPDUs(t *testing.T) {
	for _, mss := range []int{536, 1447, 1448, 1460, 8948, 32564, 65483} {
		for _, crc := range []bool{false, true} {
			t.Run(fmt.Sprintf("mss %d, crc %v", mss, crc), func(t *testing.T) {
				l := &segmentLog{mss: mss}
				network := memnet.New(&memnet.Options{MSS: mss, Window: 64 << 20, Filter: l.filter})
				a, b := pair(t, network, memAddr, Options{}, sideOptions{}, params(crc))
				oddMessages(a, b, 300)
				l.mu.Lock()
				defer l.mu.Unlock()
				filled := !crc && mss > mpa.FPDULen(mpa.MaxULPDU) || mss > 16<<10 && mss%4 == 0
				if filled != (len(l.split) > 0) {
					t.Errorf("%d of %d segments, %q", len(l.split), l.segments, l.split)
				}
				if mss%4 == 0 && l.full < l.segments/4 {
					t.Errorf("%d of %d segments are full", l.full, l.segments)
				}
			})
		}
	}
}

// oddMessages makes a do n operations of all kinds with messages of odd lengths, as many at a time
// as the queues take.
func oddMessages(a, b *side, n int) {
	const size, depth = 200_000, 16
	rnd := rand.New(rand.NewPCG(7, uint64(n)))
	// Reading bytes while they may be written is a race, on the wire as in memory.
	src, sink := a.reg(size, provider.AccessLocalWrite), a.reg(size, provider.AccessLocalWrite)
	dst := b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	received := b.reg(size, provider.AccessLocalWrite)
	source := b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
	pattern(src.b, n)
	for n > 0 {
		k := min(n, depth)
		n -= k
		var wrs []provider.SendWR
		sends := 0
		for range k {
			length := rnd.IntN(1 << rnd.IntN(18))
			wr := provider.SendWR{Flags: provider.SendSignaled, RemoteAddr: dst.to(0), RKey: dst.m.STag(),
				SGList: []provider.SGE{src.sge(rnd.IntN(100), length)}}
			switch rnd.IntN(4) {
			case 0:
				wr.Opcode = provider.WRSend
				b.recv(provider.RecvWR{SGList: []provider.SGE{received.sge(0, size)}})
				sends++
			case 1:
				wr.Opcode, wr.RemoteAddr, wr.RKey = provider.WRRDMARead, source.to(0), source.m.STag()
				wr.SGList = []provider.SGE{sink.sge(0, length)}
			default:
				wr.Opcode = provider.WRRDMAWrite
			}
			wrs = append(wrs, wr)
		}
		a.send(wrs...)
		a.spin(k)
		b.spin(sends)
	}
}

// TestMemoryWorkAfterEnd: work on our own memory that was posted just before the connection
// ended is not done after its flush, however late the poster calls resume, and whatever state
// the transmit side was in.
func TestMemoryWorkAfterEnd(t *testing.T) {
	const size = 100
	posts := map[string]func(s *side, m *region) (post func() error, performed func() bool){
		"a registration": func(s *side, m *region) (func() error, func() bool) {
			f := testFast(s.t, s.pd, size)
			testkit.OK(t, f.Map(make([]byte, size)))
			return func() error { return s.enqueue(regWR(1, f, allRights)) }, func() bool {
				_, registered := f.Registered()
				return registered
			}
		},
		"a bind": func(s *side, m *region) (func() error, func() bool) {
			w := testMW(s.t, s.pd, provider.MWType2)
			return func() error { return s.enqueue(bindWR(1, w, m.m, 0, size, provider.AccessRemoteWrite)) }, isBound(w)
		},
		"a bind of type 1": func(s *side, m *region) (func() error, func() bool) {
			w := testMW(s.t, s.pd, provider.MWType1)
			return func() error {
				_, err := s.qp.enqueueBind(w, 1, signaled, &provider.MWBindInfo{
					LKey: m.m.STag(), Addr: m.to(0), Length: size, Access: provider.AccessRemoteWrite,
				})
				return err
			}, isBound(w)
		},
	}
	states := map[string]func(s *side) mpa.Params{
		"may not send": func(*side) mpa.Params { return responder(true) },
		"sends":        func(*side) mpa.Params { return params(true) },
		"is blocked":   func(*side) mpa.Params { return params(true) },
	}
	ends := map[string]func(s *side){
		"Close":  func(s *side) { testkit.OK(t, s.qp.Close()) },
		"ERR":    func(s *side) { testkit.OK(t, s.modify(provider.QPErr)) },
		"a Read": func(s *side) { s.qp.stream.Load().resume() }, // posted below; it fails
	}
	for what, prepare := range posts {
		for state, p := range states {
			for how, end := range ends {
				if how == "a Read" && state != "sends" {
					continue // the Read is not looked at in other states
				}
				t.Run(what+", the stream "+state+", ended by "+how, func(t *testing.T) {
					story(t, Options{}, p(nil), func(s *side, r *raw) {
						m := s.reg(size, bindable)
						post, performed := prepare(s, m)
						if how == "a Read" {
							bad := []provider.SGE{{Length: 1, LKey: 1}}
							testkit.OK(t, s.enqueue(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead,
								SGList: bad}))
						}
						testkit.OK(t, post())
						st := s.qp.stream.Load()
						if state == "is blocked" {
							st.tx.blocked.Store(true)
						}
						end(s) // before the poster calls resume
						if how == "a Read" {
							s.wantWC("the Read", provider.WC{WRID: 2, Status: provider.WCLocProtErr})
						}
						s.wantWC("the work", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
						st.resume()
						st.tx.room.Store(true)
						st.resume()
						testkit.Equal(t, "the work was done after its flush", performed(), false)
						s.noWC("after its flush")
						if how != "Close" { // nor is it done after RESET
							testkit.OK(t, s.modify(provider.QPReset))
							st.resume()
							s.noWC("after RESET")
						}
					})
				})
			}
		}
	}
}

// TestLateResumeAndNextConnection: a poster that calls resume of a stream that is over does not
// touch the queue's work for the next stream.
func TestLateResumeAndNextConnection(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		f := testFast(s.t, s.pd, 10)
		testkit.OK(t, f.Map(make([]byte, 10)))
		old := s.qp.stream.Load()
		for _, state := range []provider.QPState{provider.QPErr, provider.QPReset} {
			testkit.OK(t, s.modify(state))
		}
		mine, theirs := connectTransport(s.t, s.dev.opts.Network, memAddr)
		defer theirs.Close()
		s.start(mine, params(true))
		testkit.OK(t, s.enqueue(regWR(1, f, allRights)))
		old.resume()
		s.noWC("the stream before does not perform it")
		s.qp.stream.Load().resume()
		s.wantWC("the current stream performs it", provider.WC{WRID: 1, Opcode: provider.WCRegMR})
		s.send(invWR(2, f.RKey()))
		s.wantWC("the invalidation", provider.WC{WRID: 2, Opcode: provider.WCLocalInv})
	})
}

// enqueue does the first part of posting: the work request is in the queue, but resume was not
// called.
func (s *side) enqueue(wr provider.SendWR) error {
	_, _, err := s.qp.enqueueSends([]provider.SendWR{wr})
	return err
}

// isBound returns a function that reports whether w is bound.
func isBound(w *memory.Window) func() bool {
	return func() bool { _, bound := w.Bound(); return bound }
}
