//go:build !386 && !arm

// The region of this test is longer than the addresses of 32-bit systems reach.

package engine

import (
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestE2EHugeReadRequest: a Read Request for 4 GiB less one octet, of a region
// that has them, costs the responder no more than what the socket takes, also
// when the peer then reads nothing; and closing the region does not wait for it.
//
//rfc:5040 RDMAP-8.1.1-11-01 Cap on outstanding reads
func TestE2EHugeReadRequest(t *testing.T) {
	const size = 1<<32 - 1
	huge := testkit.Must(syscall.Mmap(-1, 0, size, syscall.PROT_READ,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE))(t)
	defer syscall.Munmap(huge)
	synctest.Test(t, func(t *testing.T) {
		w := e2eWire{net: memnet.Options{Seed: 1}}
		network, addr := w.network()
		b := newE2EEnd(t, w, network, e2eSetup{})
		b.down = make(chan error, 1)
		peer, conn := e2eDial(t, network, addr)
		defer peer.Close()
		testkit.OK(t, b.q.start(conn, mpa.Params{Revision: 2, CRC: true, IRD: 4, ORD: 4}, nil,
			func(err error) { b.down <- err }))
		m := testkit.Must(b.pd.RegMR(huge, provider.AccessRemoteRead))(t)

		h := rdmap.ReadRequestHeader(1)
		r := rdmap.ReadRequest{SinkSTag: 1, Size: size, SourceSTag: m.RKey(), SourceTO: m.Addr()}
		framer := mpa.NewFramer(false, true)
		request := testkit.Must(framer.AppendFPDU(nil, r.AppendTo(h.AppendTo(nil))))(t)

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if n, err := peer.Writev([][]byte{request}); n != len(request) {
			t.Fatal(n, err)
		}
		synctest.Wait()
		room, total := make([]byte, 64<<10), 0
		for range 100 { // some of it is taken, so that more is sent
			n := testkit.Must(peer.Readv([][]byte{room}))(t)
			total += n
			synctest.Wait()
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Errorf("%d octets were allocated for one Read Request", used)
		}
		if total < 100000 {
			t.Errorf("only %d octets came", total)
		}
		testkit.OK(t, m.Close())
		testkit.OK(t, b.q.Close())
	})
}
