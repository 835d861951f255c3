package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// written is an object in memory that notes where it is written, and fails from an offset on.
type written struct {
	b     []byte
	calls []string
	fails int
	gate  chan struct{} // if not nil, each call waits for a value
}

// together is a network on which bytes that are written at once arrive at once.
var together = memnet.Options{MSS: 1 << 17, Window: 4 << 20}

var errWritten = errors.New("this byte can't be written")

func (o *written) ReadAt(b []byte, off int64) (int, error) { return copy(b, o.b[off:]), nil }

func (o *written) WriteAt(b []byte, off int64) (int, error) {
	if o.gate != nil {
		<-o.gate
	}
	o.calls = append(o.calls, fmt.Sprintf("%d at %d", len(b), off))
	if o.fails > 0 && int(off)+len(b) > o.fails {
		return 0, errWritten
	}
	return copy(o.b[off:], b), nil
}

// gathering is a peer that writes to an object.
type gathering struct {
	s    *side
	r    *raw
	o, p *memory.Region // two regions of the object
	mem  *memory.Region
	b    []byte // what the peer sends to there
}

// to is a segment of a Write of the bytes from from to end to the same place of a region.
func (x *gathering) to(m *memory.Region, from, end int, last bool) []byte {
	return x.r.fpdu(rdmap.WriteHeader(m.STag(), m.Addr()+uint64(from), last), x.b[from:end])
}

// segments returns the segments of a Write of all bytes to the region o, with n bytes each.
func (x *gathering) segments(n int) (all []byte) {
	for i := 0; i < len(x.b); i += n {
		end := min(i+n, len(x.b))
		all = append(all, x.to(x.o, i, end, end == len(x.b))...)
	}
	return all
}

// TestStoresTogether: segments that come together and go to bytes of an object that follow each
// other are written to it together, and in order.
func TestStoresTogether(t *testing.T) {
	const size = 4000
	for _, c := range []struct {
		name  string
		fpdus func(x *gathering) [][]byte
		calls []string
	}{
		{"a Write", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 0, 100, false), x.to(x.o, 100, 200, false), x.to(x.o, 200, size, true)}
		}, []string{"4000 at 0"}},
		{"Writes of the same length", func(x *gathering) (all [][]byte) {
			for i := 0; i < 2000; i += 100 {
				all = append(all, x.to(x.o, i, i+100, true))
			}
			return all
		}, []string{"2000 at 0"}},
		{"more than a store has", func(x *gathering) (all [][]byte) {
			for i := range 2*storeSegments + 1 {
				all = append(all, x.to(x.o, i, i+1, true))
			}
			return all
		}, []string{"64 at 0", "64 at 64", "1 at 128"}},
		{"with a gap", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 0, 100, true), x.to(x.o, 101, 201, true), x.to(x.o, 201, 301, true)}
		}, []string{"100 at 0", "200 at 101"}},
		{"backwards", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 100, 200, true), x.to(x.o, 0, 100, true)}
		}, []string{"100 at 100", "100 at 0"}},
		{"memory between them", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 0, 100, true), x.to(x.mem, 100, 200, true), x.to(x.o, 100, 200, true)}
		}, []string{"100 at 0", "100 at 100"}},
		{"another region of the object between them", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 0, 100, true), x.to(x.p, 100, 200, true), x.to(x.o, 200, 300, true)}
		}, []string{"100 at 0", "100 at 100", "100 at 200"}},
		{"an empty Write between them", func(x *gathering) [][]byte {
			return [][]byte{x.to(x.o, 0, 100, true), x.to(x.o, 100, 100, true), x.to(x.o, 100, 200, true)}
		}, []string{"100 at 0", "100 at 100"}},
		{"Sends", func(x *gathering) (all [][]byte) {
			for i := range 2 {
				x.s.recv(provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{
					{Addr: x.o.Addr() + uint64(300*i), Length: 300, LKey: x.o.STag()}}})
				for at := 0; at < 300; at += 100 {
					h := rdmap.SendHeader(rdmap.OpSend, 0, uint32(i+1), uint32(at), at == 200)
					all = append(all, x.r.fpdu(h, x.b[300*i+at:][:100]))
				}
			}
			return all
		}, []string{"300 at 0", "300 at 300"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
				o := &written{b: make([]byte, size)}
				x := &gathering{s, r, s.object(o, size, writable), s.object(o, size, writable),
					s.reg(size, writable).m, octets(size)}
				r.write(bytes.Join(c.fpdus(x), nil))
				synctest.Wait()
				testkit.Equal(t, "what was written", fmt.Sprint(o.calls), fmt.Sprint(c.calls))
				testkit.OK(t, s.qp.Cause())
				want := bytes.Clone(o.b) // where something was written, it is what was sent
				for _, call := range o.calls {
					var n, at int
					testkit.Must(fmt.Sscanf(call, "%d at %d", &n, &at))(t)
					copy(want[at:at+n], x.b[at:])
				}
				testkit.EqualBytes(t, "the object", o.b, want)
				testkit.Equal(t, "chunks that are lent", s.dev.chunks.Lent(), 0)
			})
		})
	}
}

// TestStoresBound: segments that are stored together were in one receive context, and are written
// in chunks. An object that fails in one of them ends the stream.
func TestStoresBound(t *testing.T) {
	const size, segment = 3 << 20, 60_000
	for _, fails := range []int{0, 130_000} {
		storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
			o := &written{b: make([]byte, size), fails: fails, gate: make(chan struct{})}
			x := &gathering{s, r, s.object(o, size, writable), nil, nil, octets(size)}
			r.write(x.segments(segment))
			most := 0
			for stores := true; stores; {
				synctest.Wait()
				most = max(most, s.dev.chunks.Lent())
				select {
				case o.gate <- struct{}{}:
				default:
					stores = false
				}
			}
			testkit.Within(t, "chunks that are lent at a time", most, 2, storeChunks)
			if fails == 0 {
				testkit.EqualBytes(t, "the object", o.b, x.b)
				return
			}
			testkit.WantErr(t, "the cause", s.qp.Cause(), errWritten)
			r.wantTerminate("the object has failed", fault{errObjectWrite.Layer, errObjectWrite.EType,
				errObjectWrite.Code}, nil, 0, nil)
		})
	}
}

// TestStoresBeforeTheEnd: what came before an FPDU with a wrong CRC, or before a Terminate of the
// peer, is stored, and then the stream ends.
func TestStoresBeforeTheEnd(t *testing.T) {
	const size = 300
	for name, last := range map[string]func(x *gathering) []byte{
		"a wrong CRC": func(x *gathering) []byte {
			bad := x.to(x.o, 200, 300, true)
			bad[len(bad)-1]++
			return bad
		},
		"a Terminate": func(x *gathering) []byte {
			return x.r.fpdu(rdmap.TerminateHeader(), []byte{0x20, 0x06, 0x00, 0x00})
		},
	} {
		storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
			o := &written{b: make([]byte, size)}
			x := &gathering{s, r, s.object(o, size, writable), nil, nil, octets(size)}
			r.write(slices.Concat(x.to(x.o, 0, 100, true), x.to(x.o, 100, 200, true), last(x)))
			s.wantDown(name)
			testkit.Equal(t, name+": what was written", fmt.Sprint(o.calls), "[200 at 0]")
			closes(t, "the object", x.o)
		})
	}
}

// vectored is an object that can be written with vectors. It answers as answer says, or that it has
// written all.
type vectored struct {
	written
	last   int // how many bytes the last call had
	answer func(n int) (int, error)
}

func (o *vectored) WriteAt(b []byte, off int64) (int, error) {
	o.last = len(b)
	return o.written.WriteAt(b, off)
}

func (o *vectored) WriteVectorAt(b [][]byte, off int64) (int, error) {
	all := bytes.Join(b, nil)
	if n, err := o.WriteAt(all, off); o.answer == nil {
		return n, err
	}
	return o.answer(len(all))
}

// TestStoresVectors: an object that takes vectors is written with one call for each store. If it
// fails, the stream ends, even if it returns the full number of bytes.
func TestStoresVectors(t *testing.T) {
	const size, segment = 1 << 20, 60_000
	for name, answer := range map[string]func(n int) (int, error){
		"whole":               nil,
		"an error":            func(int) (int, error) { return 0, errWritten },
		"an error in between": func(int) (int, error) { return 100_000, errWritten },
		"an error after all":  func(n int) (int, error) { return n, errWritten },
	} {
		t.Run(name, func(t *testing.T) {
			storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
				o := &vectored{written{b: make([]byte, size), gate: make(chan struct{})}, 0, answer}
				x := &gathering{s, r, s.object(o, size, writable), nil, nil, octets(size)}
				r.write(x.segments(segment))
				wantWholeStores(t, s, o)
				if answer == nil {
					testkit.EqualBytes(t, "the object", o.b, x.b)
					return
				}
				testkit.WantErr(t, "the cause", s.qp.Cause(), errWritten)
				r.wantTerminate("the object has failed", fault{errObjectWrite.Layer,
					errObjectWrite.EType, errObjectWrite.Code}, nil, 0, nil)
			})
		})
	}
}

// wantWholeStores lets the object go on until nothing is stored any more, and checks that each of
// its calls had all bytes of a store, and that some had more than a chunk.
func wantWholeStores(t *testing.T, s *side, o *vectored) {
	t.Helper()
	most := 0
	for {
		synctest.Wait()
		n, chunks := o.last, s.dev.chunks.Lent()
		select {
		case o.gate <- struct{}{}:
		default:
			if most < 2 {
				t.Errorf("a store had %d chunks at most, want 2 or more", most)
			}
			return
		}
		most = max(most, chunks)
		testkit.Equal(t, fmt.Sprintf("chunks of a store of %d bytes", n),
			(n+policy.Chunk-1)/policy.Chunk, chunks)
	}
}

// TestVectorAnswers: what an object has taken of a vector is what it says, within bounds, so that
// the segment after that is found. Fewer bytes than the vector has are an error.
func TestVectorAnswers(t *testing.T) {
	const segment, size = 50_000, 200_000
	p := testPD(t, unwired(t))
	for _, c := range []struct {
		name string
		n    int
		err  error
		done int
		want error
		at   int // the segment that is to blame, if there is an error
	}{
		{"all", size, nil, size, nil, 0},
		{"more than all", size + 1, nil, size, nil, 0},
		{"short", 100_000, nil, 100_000, io.ErrShortWrite, 2},
		{"nothing", 0, nil, 0, io.ErrShortWrite, 0},
		{"less than nothing", -1, nil, 0, io.ErrShortWrite, 0},
		{"failed", 0, errWritten, 0, errWritten, 0},
		{"failed in between", 99_999, errWritten, 99_999, errWritten, 1},
		{"failed after all", size, errWritten, size - 1, errWritten, 3},
		{"failed after more than all", size + 1, errWritten, size - 1, errWritten, 3},
		{"failed before nothing", -1, errWritten, 0, errWritten, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &vectored{written{b: make([]byte, size)}, 0,
				func(int) (int, error) { return c.n, c.err }}
			m := testkit.Must(p.RegObject(o, size, provider.AccessLocalWrite))(t).(*memory.Region)
			defer func() { testkit.OK(t, m.Close()) }()
			b := octets(size)
			st := &objectStore{pieces: []memory.Piece{{Region: m, N: size}}, n: size}
			for i, part := range slices.Collect(slices.Chunk(b, policy.Chunk)) {
				st.chunks[i] = (*chunk)(slices.Grow(part, policy.Chunk)[:policy.Chunk])
			}
			for range size / segment {
				st.segments = append(st.segments, storedSegment{a: rdmap.Action{Len: segment}})
			}
			done, err := st.write()
			if done != c.done || !errors.Is(err, c.want) {
				t.Errorf("%d bytes, error %v; want %d, %v", done, err, c.done, c.want)
			}
			if err != nil && st.at(done) != &st.segments[c.at] {
				t.Errorf("another segment than %d is to blame", c.at)
			}
			if !bytes.Equal(o.b, b) || len(o.calls) != 1 {
				t.Errorf("other bytes, or not one call: %v", o.calls)
			}
		})
	}
}

// TestMixedSinkAfterEnd: the buffers of a receive, or of a Read, are an object and memory. After
// the QP was flushed or closed only the object can still be written. The memory and its region
// are the program's again.
func TestMixedSinkAfterEnd(t *testing.T) {
	const size = 100 // of each part
	for _, order := range []string{"the object first", "the memory first", "the memory on both sides"} {
		for _, op := range []string{"receive", "Read"} {
			for _, how := range []string{"Close", "ERR", "the peer's end"} {
				t.Run(op+", "+order+", "+how, func(t *testing.T) {
					story(t, Options{}, params(true), func(s *side, r *raw) {
						o := &store{b: make([]byte, size), gate: make(chan struct{}), busy: make(chan struct{}, 1)}
						om := testkit.Must(s.pd.RegObject(o, size, provider.AccessLocalWrite))(s.t).(*memory.Region)
						mem := s.reg(2*size, provider.AccessLocalWrite)
						object := provider.SGE{Addr: om.Addr(), Length: size, LKey: om.STag()}
						sges := map[string][]provider.SGE{
							"the object first":         {object, mem.sge(0, size)},
							"the memory first":         {mem.sge(0, size), object},
							"the memory on both sides": {mem.sge(0, size), object, mem.sge(size, size)},
						}[order]
						payload := make([]byte, size*len(sges))
						pattern(payload, 1)
						if op == "receive" {
							s.recv(provider.RecvWR{WRID: 1, SGList: sges})
							r.sendMsg(payload)
						} else {
							s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, SGList: sges})
							_, request := r.next("the Read Request")
							q := testkit.Must(rdmap.ParseReadRequest(request))(t)
							r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), payload)
						}
						<-o.busy
						synctest.Wait()
						switch how {
						case "Close":
							testkit.OK(t, s.qp.Close())
						case "ERR":
							testkit.OK(t, s.modify(provider.QPErr))
						default:
							s.qp.stream.Load().fail(&ending{cause: errPeerClosed})
							s.qp.stream.Load().settle()
						}
						s.wantWC("the flush", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
						closes(t, "the memory", mem.m)
						copy(mem.b, bytes.Repeat([]byte{0xa5}, len(mem.b)))
						o.gate <- struct{}{}
						synctest.Wait()
						mem.untouched(0, 0)
						closes(t, "the object", om)
					})
				})
			}
		}
	}
}

// TestMixedSink: when such a receive completes, all of it has arrived, whichever buffers a
// segment is for.
func TestMixedSink(t *testing.T) {
	const size = 100
	story(t, Options{}, params(true), func(s *side, r *raw) {
		o := &store{b: make([]byte, size)}
		om := testkit.Must(s.pd.RegObject(o, size, provider.AccessLocalWrite))(s.t).(*memory.Region)
		mem := s.reg(2*size, provider.AccessLocalWrite)
		sges := []provider.SGE{mem.sge(0, size), {Addr: om.Addr(), Length: size, LKey: om.STag()}, mem.sge(size, size)}
		for cut := 1; cut < 3*size; cut += 7 {
			clear(o.b)
			clear(mem.b)
			payload := make([]byte, 3*size)
			pattern(payload, cut)
			s.recv(provider.RecvWR{WRID: 1, SGList: sges})
			h := rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, 0, false)
			r.send(h, payload[:cut])
			h = rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, uint32(cut), true)
			r.send(h, payload[cut:])
			r.sendMSN++
			s.wantWC("the receive", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 3 * size})
			testkit.EqualBytes(t, fmt.Sprintf("what arrived, cut at %d", cut),
				bytes.Join([][]byte{mem.b[:size], o.b, mem.b[size:]}, nil), payload)
		}
		closes(t, "the memory", mem.m)
		closes(t, "the object", om)
	})
}

// TestMixedSourceAfterEnd: a message is sent from an object, which is slow to read, and from
// memory. The memory is not read any more once the object is being read, and can be
// deregistered at once.
func TestMixedSourceAfterEnd(t *testing.T) {
	const size = 100
	for _, how := range []string{"while it is sent", "Close"} {
		t.Run(how, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				o := &store{b: bytes.Repeat([]byte{1}, size), gate: make(chan struct{}), busy: make(chan struct{}, 1)}
				om := testkit.Must(s.pd.RegObject(o, size, 0))(s.t).(*memory.Region)
				mem := s.reg(2*size, provider.AccessLocalWrite)
				want := bytes.Join([][]byte{mem.b[:size], o.b, mem.b[size:]}, nil)
				object := provider.SGE{Addr: om.Addr(), Length: size, LKey: om.STag()}
				s.send(provider.SendWR{
					WRID: 1, Opcode: provider.WRSend, Flags: signaled,
					SGList: []provider.SGE{mem.sge(0, size), object, mem.sge(size, size)},
				})
				<-o.busy
				if how == "Close" {
					testkit.OK(t, s.qp.Close())
				}
				closes(t, "the memory", mem.m)
				clear(mem.b) // a race, if it is still read
				o.gate <- struct{}{}
				if how == "Close" {
					s.wantWC("the flush", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
				} else {
					r.wantMessage("the Send", want)
				}
				synctest.Wait()
				closes(t, "the object", om)
			})
		})
	}
}
