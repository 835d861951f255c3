package engine

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestStatsFlushes: the work request that ends a connection is not flushed; those after it are.
func TestStatsFlushes(t *testing.T) {
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	src, dst := a.reg(64, provider.AccessLocalWrite), b.reg(1, allRights)
	b.recv(provider.RecvWR{SGList: []provider.SGE{dst.sge(0, 1)}}, provider.RecvWR{})
	send := provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 64)}}
	a.send(send) // longer than the receive
	if wc := b.poll(); wc.Status == provider.WCSuccess || wc.Status == provider.WCWRFlushErr {
		t.Fatalf("a receive that is too short: %v", wc.Status)
	}
	if wc := b.poll(); wc.Status != provider.WCWRFlushErr {
		t.Fatalf("the receive after it: %v", wc.Status)
	}
	if st := testkit.Must(b.qp.Stats())(t); st.FlushedRecvs != 1 {
		t.Errorf("%d receives were flushed, want 1", st.FlushedRecvs)
	}

	c, d := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	sink, peer := c.reg(64, allRights), d.reg(64, allRights)
	read := provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
		SGList: []provider.SGE{sink.sge(0, 64)}, RemoteAddr: peer.to(0), RKey: ^peer.m.stag}
	c.send(read, read)
	flushed := uint64(0)
	for end, n := time.Now().Add(patience), 0; n < 2; { // both ends have to be polled
		var wc [1]provider.WC
		if testkit.Must(c.cq.Poll(wc[:]))(t) == 1 {
			n++
			if wc[0].Status == provider.WCWRFlushErr {
				flushed++
			}
		}
		_ = testkit.Must(d.cq.Poll(wc[:]))(t)
		if time.Now().After(end) {
			t.Fatal("no completion")
		}
	}
	if st := testkit.Must(c.qp.Stats())(t); flushed == 2 || st.FlushedSends != flushed {
		t.Errorf("%d Reads were flushed, of which FlushedSends counts %d", flushed, st.FlushedSends)
	}
}
