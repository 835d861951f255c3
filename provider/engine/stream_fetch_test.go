package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// asked is an object that answers when the test says so, in the test's order.
type asked struct {
	b []byte

	mu    sync.Mutex
	calls []*askedCall
}

type askedCall struct {
	off, n int
	answer chan error
}

func (o *asked) ReadAt(b []byte, off int64) (int, error) {
	c := &askedCall{int(off), len(b), make(chan error)}
	o.mu.Lock()
	o.calls = append(o.calls, c)
	o.mu.Unlock()
	switch err := <-c.answer; err {
	case nil:
		return copy(b, o.b[off:]), nil
	case io.EOF: // as if the object ended here
		return copy(b[:len(b)-1], o.b[off:]), err
	default:
		return 0, err
	}
}

// take returns the calls that are waiting, by their offsets, when nothing moves any
// more.
func (o *asked) take() []*askedCall {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	calls := o.calls
	o.calls = nil
	slices.SortFunc(calls, func(a, b *askedCall) int { return cmp.Compare(a.off, b.off) })
	return calls
}

// fromObject is a message of size bytes from an object of a to memory of b, on its
// way in a bubble.
type fromObject struct {
	a, b *side
	o    *asked
	m    *memory.Region
	dst  *region
	peer *side // who posted it
}

// objectMessages are the messages that can come from an object.
var objectMessages = []string{"response", "Send", "Write"}

func sendFromObject(t *testing.T, message string, size int, crc, markers bool) *fromObject {
	p := params(crc)
	p.MarkersTx, p.MarkersRx = markers, markers
	a, b := pair(t, memnet.New(nil), memAddr, Options{}, sideOptions{}, p)
	x := &fromObject{a: a, b: b, o: &asked{b: make([]byte, size)}, peer: a}
	pattern(x.o.b, size)
	x.m = a.object(x.o, size, provider.AccessRemoteRead)
	x.dst = b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	wr := provider.SendWR{WRID: 1, Flags: provider.SendSignaled,
		SGList: []provider.SGE{{Addr: x.m.Addr(), Length: uint32(size), LKey: x.m.STag()}}}
	switch message {
	case "response":
		x.peer = b
		wr.Opcode, wr.SGList = provider.WRRDMARead, []provider.SGE{x.dst.sge(0, size)}
		wr.RemoteAddr, wr.RKey = x.m.Addr(), x.m.STag()
		a.send(provider.SendWR{Opcode: provider.WRRDMAWrite}) // without it b may not send
	case "Send":
		wr.Opcode = provider.WRSend
		b.recv(provider.RecvWR{WRID: 2, SGList: []provider.SGE{x.dst.sge(0, size)}})
	case "Write":
		wr.Opcode = provider.WRRDMAWrite
		wr.RemoteAddr, wr.RKey = x.dst.to(0), x.dst.m.STag()
	}
	synctest.Wait()
	x.peer.send(wr)
	return x
}

// wantGiven checks that nothing of what was fetched is still held.
func (x *fromObject) wantGiven(what string) {
	x.a.t.Helper()
	synctest.Wait()
	testkit.Equal(x.a.t, what+": pieces that are read ahead", x.a.dev.prog.ahead.Load(), 0)
}

// TestObjectReadAhead: of a long message several pieces are asked for at once, one
// after the other as one is sent, and never more; whatever the order of the answers,
// the bytes are in theirs.
func TestObjectReadAhead(t *testing.T) {
	const size = 20*policy.Chunk + 12345
	for _, message := range objectMessages {
		for _, fr := range framings {
			t.Run(message+", "+fr.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := sendFromObject(t, message, size, fr.crc, fr.markers)
					next, most := 0, 0
					waiting := x.o.take()
					for len(waiting) > 0 {
						for _, c := range waiting {
							if most < len(waiting) {
								most = len(waiting)
							}
							next = max(next, c.off+c.n)
						}
						if len(waiting) > objectReads {
							t.Fatalf("%d calls at once", len(waiting))
						}
						// The last first: nothing of it can be sent before the first.
						before := bytes.Clone(x.dst.b)
						for _, c := range slices.Backward(waiting[1:]) {
							c.answer <- nil
							if more := x.o.take(); len(more) > 0 {
								t.Fatalf("%d more calls while the first has no answer", len(more))
							}
						}
						testkit.EqualBytes(t, "the peer's bytes", before, x.dst.b)
						waiting[0].answer <- nil
						waiting = x.o.take()
						if len(waiting) > 0 && waiting[0].off != next {
							t.Fatalf("asked for byte %d, and %d is next", waiting[0].off, next)
						}
					}
					if most != objectReads || next != size {
						t.Errorf("%d calls at once, up to byte %d", most, next)
					}
					testkit.Equal(t, "the status", x.peer.poll().Status, provider.WCSuccess)
					synctest.Wait()
					testkit.EqualBytes(t, "what has come", x.dst.b, x.o.b)
					x.wantGiven("it is sent")
					if n := len(x.a.dev.chunks.All()); n < objectReads {
						t.Errorf("%d chunks are back", n)
					}
				})
			})
		}
	}
}

// TestObjectReadAheadFails: a failure in the middle of a message, or at its end, is reported when
// its turn comes. Everything before it is sent, and nothing after it, although that has come.
func TestObjectReadAheadFails(t *testing.T) {
	broken := errors.New("the object is broken")
	const size = 8 * policy.Chunk
	for _, message := range objectMessages {
		for _, short := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ends early: %v", message, short), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := sendFromObject(t, message, size, true, false)
					want, fails := broken, 0
					for pieces := 0; ; {
						waiting := x.o.take()
						if len(waiting) == 0 {
							break
						}
						for i, c := range slices.Backward(waiting) {
							switch {
							case pieces+i != 5:
								c.answer <- nil
							case short:
								fails, want = c.off, io.ErrUnexpectedEOF
								c.answer <- io.EOF
							default:
								fails = c.off
								c.answer <- broken
							}
						}
						pieces += len(waiting)
					}
					if fails == 0 {
						t.Fatal("the piece was not asked for")
					}
					var mine *provider.TerminateError
					if err := x.a.wantDown("our end"); !errors.As(err, &mine) || mine.Remote || !errors.Is(mine.Err, want) ||
						!strings.Contains(mine.Err.Error(),
							fmt.Sprintf(" at %d of the object of mr %#x", fails, x.m.STag())) {
						t.Errorf("our end ended with %v", err)
					}
					status := provider.WCLocProtErr
					if message == "response" {
						status = provider.WCRemOpErr
					}
					testkit.Equal(t, "the status", x.peer.poll().Status, status)
					var theirs *provider.TerminateError
					if err := x.b.wantDown("the peer's end"); !errors.As(err, &theirs) || !theirs.Remote {
						t.Errorf("the peer's end ended with %v", err)
					}
					testkit.EqualBytes(t, "what is before the failure", x.dst.b[:fails],
						x.o.b[:fails])
					x.dst.untouched(0, fails)
					x.wantGiven("it has failed")
				})
			})
		}
	}
}

// TestObjectReadAheadEnds: a stream that ends while an object is being asked waits for
// none of its answers. The region does, and with the last of them all is given back.
func TestObjectReadAheadEnds(t *testing.T) {
	for _, message := range objectMessages {
		t.Run(message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := sendFromObject(t, message, 10*policy.Chunk, true, false)
				waiting := x.o.take()
				if len(waiting) != objectReads {
					t.Fatalf("%d calls at once", len(waiting))
				}
				waiting[1].answer <- nil
				synctest.Wait()
				testkit.OK(t, x.a.qp.Close())
				closed := make(chan error, 1)
				go func() { closed <- x.m.Close() }()
				for _, i := range []int{3, 2, 0} {
					synctest.Wait()
					select {
					case <-closed:
						t.Fatal("the region is closed while its object is being asked")
					default:
					}
					waiting[i].answer <- nil
				}
				testkit.OK(t, <-closed)
				x.wantGiven("the stream has ended")
				if n := len(x.a.dev.chunks.All()); n < objectReads {
					t.Errorf("%d chunks are back", n)
				}
			})
		})
	}
}

// TestObjectReadAheadBound: what a device reads ahead is bounded. A stream that may not
// goes on with one piece at a time.
func TestObjectReadAheadBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = policy.AheadMost - 1
		x := sendFromObject(t, "response", 10*policy.Chunk, true, false)
		first := x.o.take()
		x.a.dev.prog.ahead.Add(others) // of other streams; three are of this one
		for _, c := range first {
			c.answer <- nil
		}
		rounds := 0
		for waiting := x.o.take(); len(waiting) > 0; waiting = x.o.take() {
			if rounds++; len(waiting) > 2 {
				t.Errorf("%d calls at once, of which one is ahead", len(waiting))
			}
			for _, c := range waiting {
				c.answer <- nil
			}
		}
		if wc := x.peer.poll(); wc.Status != provider.WCSuccess || rounds < 3 {
			t.Errorf("it ended with %v after %d rounds", wc.Status, rounds)
		}
		x.a.dev.prog.ahead.Add(-others)
		x.wantGiven("it is sent")
	})
}

// TestObjectMULPDUChanges: segments end where the pieces of an object do when the path
// has changed since they were asked for.
func TestObjectMULPDUChanges(t *testing.T) {
	for _, message := range objectMessages {
		t.Run(message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := sendFromObject(t, message, 12*policy.Chunk, true, false)
				st := x.a.qp.stream.Load()
				mulpdu := []int{ddp.MinMULPDU, 1000, 60000, 777, 1442}
				for round := 0; ; round++ {
					waiting := x.o.take()
					if len(waiting) == 0 {
						break
					}
					st.tx.mu.Lock()
					st.tx.format.MULPDU, st.tx.mssAge = mulpdu[round%len(mulpdu)], 1 // it is not asked for again soon
					st.tx.mu.Unlock()
					for _, c := range waiting {
						c.answer <- nil
					}
				}
				testkit.Equal(t, "the status", x.peer.poll().Status, provider.WCSuccess)
				synctest.Wait()
				testkit.EqualBytes(t, "what has come", x.dst.b, x.o.b)
			})
		})
	}
}

// TestObjectWriteWithImm: a Write with immediate data from an object completes after
// its immediate data, and once.
func TestObjectWriteWithImm(t *testing.T) {
	const size = 900
	write := mpa.FPDULen(ddp.TaggedHeaderLen + size)
	// The window takes the Write's FPDU, and no more.
	storyOn(t, memnet.Options{Window: write}, extended(Options{}), params(true), sideOptions{}, func(s *side, r *raw) {
		o := &asked{b: make([]byte, size)}
		m := s.object(o, size, 0)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWriteWithImm, Flags: provider.SendSignaled, Imm: 7, RKey: 9,
			SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
		o.take()[0].answer <- nil
		synctest.Wait()
		s.noWC("the immediate data is not out")
		r.want("the Write", rdmap.WriteHeader(9, 0, true))
		r.want("the immediate data", rdmap.ImmediateHeader(false, 1))
		s.wantWC("both are out", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
		s.noWC("once")
	})
}

// brokenObject is an object that panics after its first piece.
type brokenObject struct{}

func (brokenObject) ReadAt(b []byte, off int64) (int, error) {
	if off > 0 {
		panic("the object has a bug")
	}
	return len(b), nil
}

// TestObjectPanics: a panic of an object is the program's to see, also where it is read
// ahead.
func TestObjectPanics(t *testing.T) {
	const here = "GOVS_TEST_OBJECT_PANICS"
	if os.Getenv(here) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestObjectPanics$")
		cmd.Env = append(os.Environ(), here+"=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !bytes.Contains(out, []byte("panic: the object has a bug")) {
			t.Errorf("the program ended with %v:\n%s", err, out)
		}
		return
	}
	a, b := pair(t, memnet.New(nil), memAddr, Options{}, sideOptions{}, params(true))
	const size = 3 * policy.Chunk
	dst := b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	m := testkit.Must(a.pd.RegObject(brokenObject{}, size, 0))(t)
	a.send(provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.LKey()}},
		RemoteAddr: dst.to(0), RKey: dst.m.STag(), Flags: provider.SendSignaled})
	a.poll()
}
