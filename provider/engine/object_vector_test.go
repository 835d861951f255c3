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
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
