//go:build linux && !386 && !arm

// The regions of these tests are longer than the addresses of 32-bit systems reach.

package engine

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// marks is an object of zeros but for a few bytes. It keeps the written bytes that are not zero,
// and counts all written bytes.
type marks struct {
	mu     sync.Mutex
	at     map[uint64]byte
	octets uint64
}

var someZeros [policy.Chunk]byte

func (m *marks) ReadAt(b []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(b)
	for at, v := range m.at {
		if i := at - uint64(off); i < uint64(len(b)) {
			b[i] = v
		}
	}
	return len(b), nil
}

func (m *marks) WriteAt(b []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.octets += uint64(len(b))
	for i := 0; i < len(b); i += len(someZeros) {
		part := b[i:min(i+len(someZeros), len(b))]
		if bytes.Equal(part, someZeros[:len(part)]) {
			continue
		}
		for j, v := range part {
			if v != 0 {
				m.at[uint64(off)+uint64(i+j)] = v
			}
		}
	}
	return len(b), nil
}

// unused returns n bytes of memory, of which only written ones take any. It asks for huge pages,
// because one fault then maps 2 MiB of zeros. The 512 faults of small pages take longer than
// everything else that the test does with the memory.
func unused(t testing.TB, n int) []byte {
	t.Helper()
	b := testkit.Must(syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE))(t)
	t.Cleanup(func() { testkit.OK(t, syscall.Munmap(b)) })
	_ = syscall.Madvise(b, unix.MADV_HUGEPAGE)
	return b
}

// longestMessage is the longest message of DDP and RDMAP: lengths and message offsets have 32 bits.
const longestMessage = 1<<32 - 1

// TestE2ELongestMessage moves 2^32-1 bytes with one work request of each kind, to and
// from objects that begin below 4 GiB and end after: not a byte is elsewhere, and
// one byte more is refused. The Write's source is memory: 2^31 bytes, and the same
// again but for the last, because a fault for each of their pages is most of the test's time.
func TestE2ELongestMessage(t *testing.T) {
	if testkit.Race {
		t.Skip("12 GiB take minutes with the race detector; ci/test runs this without it")
	}
	const begin = 1<<32 - 100 // in the target's region
	const half = 1 << 31
	source := map[uint64]byte{0: 1, 65535: 2, half - 2: 3, half - 1: 4,
		half: 1, half + 65535: 2, longestMessage - 1: 3}
	moved := func(by uint64) map[uint64]byte {
		m := make(map[uint64]byte)
		for at, v := range source {
			m[at+by] = v
		}
		return m
	}
	w := e2eWire{name: "TCP", real: true}
	w.run(t, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		b0 := unused(t, half)
		for at, v := range source {
			b0[at%half] = v
		}
		mem := testkit.Must(a.pd.RegMR(b0, provider.AccessLocalWrite))(t).(*memory.Region)
		object := func(e *e2eEnd, o *marks) *memory.Region {
			m := testkit.Must(e.pd.RegObject(o, begin+longestMessage,
				provider.AccessLocalWrite|provider.AccessRemoteWrite|provider.AccessRemoteRead))(t).(*memory.Region)
			t.Cleanup(func() { closeAll(t, "object's MR", m) })
			return m
		}
		t.Cleanup(func() { closeAll(t, "MR", mem) })
		target, back, received := &marks{at: map[uint64]byte{}}, &marks{at: map[uint64]byte{}}, &marks{at: map[uint64]byte{}}
		tm, bm, rm := object(b, target), object(a, back), object(b, received)

		long := func(m *memory.Region) provider.SGE { return sge(m, 0, longestMessage) }
		to, stag := tm.Addr()+begin, tm.RKey()
		_, err := a.q.PostSend([]provider.SendWR{{
			Opcode: provider.WRRDMAWrite, RemoteAddr: to, RKey: stag,
			SGList: []provider.SGE{sge(mem, 0, half), sge(mem, 0, half)},
		}})
		testkit.WantErr(t, "2^32 bytes", err, syscall.EINVAL)

		one := func(e *e2eEnd, c *cq) provider.WC {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			got, err := e.collect(ctx, c, 1)
			if err != nil || got[0].Status != provider.WCSuccess {
				t.Fatalf("%v, %v (%v)", got, err, e.q.Cause())
			}
			return got[0]
		}
		check := func(what string, o *marks, want map[uint64]byte) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.octets != longestMessage || !maps.Equal(o.at, want) {
				t.Errorf("%s: %d bytes came, and not zero are %v, want %v", what, o.octets, o.at, want)
			}
		}

		b.recv(1, long(rm))
		a.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList: []provider.SGE{sge(mem, 0, half), sge(mem, 0, half-1)}, RemoteAddr: to, RKey: stag})
		one(a, a.scq)
		a.send(provider.SendWR{WRID: 3, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{long(bm)}, RemoteAddr: to, RKey: stag})
		one(a, a.scq)
		check("the Write", target, moved(begin)) // the Read was answered after it
		check("the Read", back, moved(0))
		a.send(provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: provider.SendSignaled,
			SGList: []provider.SGE{long(bm)}})
		if wc := one(b, b.rcq); wc.WRID != 1 || wc.ByteLen != longestMessage {
			t.Errorf("the receive: %+v", wc)
		}
		one(a, a.scq)
		check("the Send", received, moved(0))
	})
}

// TestE2ERegionAbove4GiB: offsets in a region have 64 bits.
func TestE2ERegionAbove4GiB(t *testing.T) {
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		all := unused(t, 6<<30)
		target := testkit.Must(b.pd.RegMR(all, allRights))(t).(*memory.Region)
		t.Cleanup(func() { closeAll(t, "MR", target) })
		const n = 3000
		local, sink := a.filled(n, provider.AccessLocalWrite, 7), a.region(n, provider.AccessLocalWrite)
		inside := local.all[canaryOctets : canaryOctets+n]
		for i, at := range []int{1<<32 - 1500, 5 << 30, 6<<30 - n} {
			a.send(provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{sge(local.Region, 0, n)},
				RemoteAddr: target.Addr() + uint64(at), RKey: target.RKey()})
			a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
				SGList:     []provider.SGE{sge(sink.Region, 0, n)},
				RemoteAddr: target.Addr() + uint64(at), RKey: target.RKey()})
			if wc := a.wait(a.scq, 1)[0]; wc.WRID != uint64(i) || wc.Status != provider.WCSuccess {
				t.Fatalf("at %#x: %+v (%v)", at, wc, a.q.Cause())
			}
			if !bytes.Equal(all[at:at+n], inside) || !bytes.Equal(sink.all[canaryOctets:canaryOctets+n], inside) {
				t.Errorf("at %#x other bytes were written, or read", at)
			}
			if all[at-1] != 0 || at+n < len(all) && all[at+n] != 0 {
				t.Errorf("at %#x the neighbours were written", at)
			}
		}
		// Where they would be with offsets of 32 bits there is nothing.
		for _, low := range [][]byte{all[:1500], all[1<<30:][:n], all[2<<30-n:][:n]} {
			testkit.Equal(t, "bytes written 4 GiB too low", len(bytes.Trim(low, "\x00")), 0)
		}
		a.send(provider.SendWR{WRID: 9, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList:     []provider.SGE{sge(local.Region, 0, n)},
			RemoteAddr: target.Addr() + 6<<30 - n + 1, RKey: target.RKey()})
		terminated(t, b.ended(), false, 1, 1, 1)
	})
}

// TestE2EHugeReadRequest: a Read Request for 4 GiB less one byte, of a region that has them, costs
// the responder no more than the socket takes, even if the peer then reads nothing. Closing the
// region does not wait for the peer.
//
//rfc:5040 RDMAP-8.1.1-11-01 Cap on outstanding reads
func TestE2EHugeReadRequest(t *testing.T) {
	const size = 1<<32 - 1
	huge := testkit.Must(syscall.Mmap(-1, 0, size, syscall.PROT_READ,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE))(t)
	defer syscall.Munmap(huge)
	storyOn(t, memnet.Options{Seed: 1}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		m := testkit.Must(s.pd.RegMR(huge, provider.AccessRemoteRead))(t)
		total := 0
		used := allocated(func() {
			r.readReq(rdmap.ReadRequest{SinkSTag: 1, Size: size, SourceSTag: m.RKey(), SourceTO: m.Addr()})
			synctest.Wait()
			room := make([]byte, 64<<10)
			for range 100 { // some of it is taken, so that more is sent
				total += testkit.Must(r.c.Readv([][]byte{room}))(t)
				synctest.Wait()
			}
		})
		testkit.Within(t, "bytes allocated for one Read Request", used, 0, 4<<20)
		if total < 100000 {
			t.Errorf("only %d bytes came", total)
		}
		testkit.OK(t, m.Close())
	})
}
