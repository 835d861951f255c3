package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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
				if !slices.Equal(o.calls, c.calls) {
					t.Errorf("written were %v, want %v", o.calls, c.calls)
				}
				if s.qp.stream.Load() == nil {
					t.Fatal("the stream is over: ", s.qp.Cause())
				}
				want := bytes.Clone(o.b) // where something was written, it is what was sent
				for _, call := range o.calls {
					var n, at int
					testkit.Must(fmt.Sscanf(call, "%d at %d", &n, &at))(t)
					copy(want[at:at+n], x.b[at:])
				}
				if !bytes.Equal(o.b, want) {
					t.Error("other bytes")
				}
				if n := s.dev.chunks.Lent(); n != 0 {
					t.Errorf("%d chunks are lent", n)
				}
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
				if !bytes.Equal(o.b, x.b) {
					t.Error("other bytes")
				}
				return
			}
			if err := s.qp.Cause(); !errors.Is(err, errWritten) {
				t.Errorf("ended with %v", err)
			}
			r.wantTerminate("the object has failed", fault{errObjectWrite.Layer, errObjectWrite.EType,
				errObjectWrite.Code}, nil, 0, nil)
		})
	}
}

// TestStoresBeforeFault: what came before an FPDU with a wrong CRC is stored, and then the stream
// ends.
func TestStoresBeforeFault(t *testing.T) {
	const size = 300
	storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		o := &written{b: make([]byte, size)}
		m := s.object(o, size, writable)
		x := &gathering{s, r, m, nil, nil, octets(size)}
		bad := x.to(m, 200, 300, true)
		bad[len(bad)-1]++
		r.write(bytes.Join([][]byte{x.to(m, 0, 100, true), x.to(m, 100, 200, true), bad}, nil))
		synctest.Wait()
		if want := []string{"200 at 0"}; !slices.Equal(o.calls, want) {
			t.Errorf("written were %v, want %v", o.calls, want)
		}
		if s.qp.stream.Load() != nil {
			t.Error("the stream goes on")
		}
	})
}
