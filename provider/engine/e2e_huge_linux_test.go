//go:build !386 && !arm

// The region of this test is longer than the addresses of 32-bit systems reach.

package engine

import (
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
		if used > 4<<20 {
			t.Errorf("%d bytes were allocated for one Read Request", used)
		}
		if total < 100000 {
			t.Errorf("only %d bytes came", total)
		}
		testkit.OK(t, m.Close())
	})
}
