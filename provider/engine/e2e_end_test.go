package engine

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestE2EDisconnect: what is posted before a disconnect arrives; receives are
// flushed on both sides; posts afterwards are accepted and flushed.
//
//rfc:5041 DDP-6.2.1-01 Graceful close flushes pending data first
func TestE2EDisconnect(t *testing.T) {
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		src := a.filled(300000, 0, 1)
		dst := b.region(300000, provider.AccessLocalWrite)
		b.recv(1, sge(dst.mr, 0, 300000))
		b.recv(2)
		b.recv(3)
		a.recv(10)
		a.send(provider.SendWR{WRID: 20, Opcode: provider.WRSend, SGList: []provider.SGE{sge(src.mr, 0, 300000)}, Flags: provider.SendSignaled})
		a.q.disconnect()
		a.q.disconnect()
		b.one(b.rcq, provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 300000})
		checkMessage(t, "send", dst, 0, src.buf)
		if err := a.ended(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("cause of ours: %v", err)
		}
		if err := b.ended(); !errors.Is(err, io.EOF) {
			t.Errorf("cause of the peer's: %v", err)
		}
		a.one(a.scq, provider.WC{WRID: 20, Opcode: provider.WCSend})
		b.flushed(b.rcq, 2, 2)
		a.flushed(a.rcq, 10, 1)
		for _, e := range []*e2eEnd{a, b} {
			e.recv(30)
			e.send(provider.SendWR{WRID: 31,
				Opcode: provider.WRSend}) // unsignalled: a failure is reported nevertheless
			e.flushed(e.rcq, 30, 1)
			e.flushed(e.scq, 31, 1)
			testkit.OK(t, e.q.Close())
			wantErr(t, errOf(e.q.PostSend([]provider.SendWR{{Opcode: provider.WRSend}})), os.ErrClosed)
			wantErr(t, errOf(e.q.PostRecv([]provider.RecvWR{{}})), os.ErrClosed)
			e.none(e.scq)
			e.none(e.rcq)
		}
	})
}
