package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
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
				if s.qp.stream.Load() == nil {
					t.Fatal("the stream is over: ", s.qp.Cause())
				}
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
			if most < 2 || most > storeChunks {
				t.Errorf("%d chunks are lent at a time, want 2 to %d", most, storeChunks)
			}
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
