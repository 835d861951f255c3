//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

func testSend(t *testing.T) {
	a, p := connected(t)
	for _, size := range []int{1, 33, 4096, 200_000} {
		fill(a.buf[:size], size)
		// Three pieces to gather and two to scatter to, of different sizes.
		x := size / 3
		half := size/2 + 1
		p.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{p.sge(0, half), p.sge(500_000, size)}})
		a.send(provider.SendWR{
			WRID: 20, Opcode: provider.WRSend, Flags: provider.SendSignaled,
			SGList: []provider.SGE{a.sge(0, x), a.sge(x, x), a.sge(2*x, size-2*x)},
		})
		if wc := a.poll(1)[0]; wc.WRID != 20 || wc.Status != provider.WCSuccess || wc.Opcode != provider.WCSend || wc.QPN != a.qp.QPN() {
			t.Errorf("%d bytes: send completed with %+v", size, wc)
		}
		wc := p.poll(1)[0]
		if wc.WRID != 10 || wc.Status != provider.WCSuccess || wc.Opcode != provider.WCRecv || int(wc.ByteLen) != size || wc.QPN != p.qp.QPN() {
			t.Errorf("%d bytes: receive completed with %+v", size, wc)
		}
		got := append(bytes.Clone(p.buf[:min(half, size)]), p.buf[500_000:500_000+max(size-half, 0)]...)
		if !bytes.Equal(got, a.buf[:size]) {
			t.Errorf("%d bytes arrived changed", size)
		}
	}
	// Unsignalled work completes without a completion.
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 8)}})
	p.poll(1)
	a.idle("after an unsignalled send")
}

func testSendWithInvalidate(t *testing.T) {
	a, p := connected(t)
	extra := make([]byte, 64)
	mr := testkit.Must(p.pd.RegMR(extra, allRights))(t)
	defer closeAll(t, mr)

	write := provider.SendWR{
		WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 64)},
		RemoteAddr: mr.Addr(), RKey: mr.RKey(),
	}
	p.recv(provider.RecvWR{WRID: 2, SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(write, provider.SendWR{
		WRID: 3, Opcode: provider.WRSendWithInv, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)},
		InvalidateRKey: mr.RKey(),
	})
	if wc := p.poll(1)[0]; wc.Status != provider.WCSuccess || wc.ByteLen != 8 {
		t.Fatalf("receive of the Send with Invalidate: %+v", wc)
	}
	for _, wc := range a.poll(2) {
		if wc.Status != provider.WCSuccess {
			t.Fatalf("sender: %+v", wc)
		}
	}
	// The STag is invalid for the peer, so the next Write ends the connection.
	a.send(write)
	p.want("after a Write to an invalidated STag", provider.CMDisconnected)
	a.want("after a Write to an invalidated STag", provider.CMDisconnected)
}

func testWriteAndRead(t *testing.T) {
	a, p := connected(t)
	for _, size := range []int{1, 1500, 300_001} {
		fill(a.buf[:size], size)
		a.send(provider.SendWR{
			WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList: []provider.SGE{a.sge(0, size)}, RemoteAddr: p.mr.Addr() + 1000, RKey: p.mr.RKey(),
		}, provider.SendWR{
			WRID: 2, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{a.sge(500_000, size)}, RemoteAddr: p.mr.Addr() + 1000, RKey: p.mr.RKey(),
		})
		wcs := a.poll(2)
		if wcs[0].WRID != 1 || wcs[0].Opcode != provider.WCRDMAWrite || wcs[0].Status != provider.WCSuccess {
			t.Errorf("%d bytes: Write completed with %+v", size, wcs[0])
		}
		if wcs[1].WRID != 2 || wcs[1].Opcode != provider.WCRDMARead || wcs[1].Status != provider.WCSuccess || int(wcs[1].ByteLen) != size {
			t.Errorf("%d bytes: Read completed with %+v", size, wcs[1])
		}
		// The Read has completed, so the earlier Write's bytes were in place.
		if !bytes.Equal(a.buf[500_000:500_000+size], a.buf[:size]) || !bytes.Equal(p.buf[1000:1000+size], a.buf[:size]) {
			t.Errorf("%d bytes arrived changed", size)
		}
	}
	p.idle("the target of Writes and Reads")

	two := []provider.SGE{a.sge(0, 8), a.sge(8, 8)}
	n, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRRDMARead, SGList: two, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}})
	if n != 0 {
		t.Errorf("%d Reads with two entries posted", n)
	}
	wantErrno(t, "a Read with two entries", err, syscall.EINVAL)
}

func testZeroLength(t *testing.T) {
	a, p := connected(t)
	copy(p.buf, "untouched")
	copy(a.buf, "untouched")
	// Queue slots keep their previous contents; a request without entries must not use them.
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(100, 8)}})
	a.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}})
	a.poll(1)
	p.poll(1)
	for round := range 70 { // more than the queues have slots
		p.recv(provider.RecvWR{WRID: 10})
		a.send(
			provider.SendWR{WRID: 20, Opcode: provider.WRSend, Flags: provider.SendSignaled},
			provider.SendWR{WRID: 21, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
			provider.SendWR{WRID: 22, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
		)
		for i, wc := range a.poll(3) {
			if wc.WRID != uint64(20+i) || wc.Status != provider.WCSuccess {
				t.Fatalf("round %d: %+v", round, wc)
			}
		}
		if wc := p.poll(1)[0]; wc.WRID != 10 || wc.Status != provider.WCSuccess || wc.ByteLen != 0 {
			t.Fatalf("round %d: receive without entries: %+v", round, wc)
		}
	}
	// Entries of length zero name nothing, at any place in the list.
	nothing := provider.SGE{Addr: 1, LKey: 0xffffffff}
	p.recv(provider.RecvWR{WRID: 11, SGList: []provider.SGE{nothing, p.sge(100, 4), nothing, p.sge(200, 100)}})
	a.send(
		provider.SendWR{WRID: 23, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{nothing, a.sge(0, 5), nothing, a.sge(5, 4)}},
		provider.SendWR{WRID: 24, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{nothing, a.sge(0, 9)}, RemoteAddr: p.mr.Addr() + 300, RKey: p.mr.RKey()},
		provider.SendWR{WRID: 25, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{nothing, a.sge(300, 9)}, RemoteAddr: p.mr.Addr() + 300, RKey: p.mr.RKey()},
	)
	for i, wc := range a.poll(3) {
		if wc.WRID != uint64(23+i) || wc.Status != provider.WCSuccess {
			t.Errorf("with entries of length zero: %+v", wc)
		}
	}
	if wc := p.poll(1)[0]; wc.ByteLen != 9 || string(p.buf[100:104])+string(p.buf[200:205]) != "untouched" || string(a.buf[300:309]) != "untouched" {
		t.Errorf("with entries of length zero: %+v, %q, %q, read back %q", wc, p.buf[100:104], p.buf[200:205], a.buf[300:309])
	}
	if string(a.buf[:9]) != "untouched" || string(p.buf[:9]) != "untouched" {
		t.Error("an operation without bytes wrote some")
	}
}

func testInline(t *testing.T) {
	a, p := connected(t)
	payload := []byte("inline data needs no registration")
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 100)}}, provider.RecvWR{WRID: 2, SGList: []provider.SGE{p.sge(100, 100)}})
	a.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, Flags: provider.SendSignaled | provider.SendInline, Inline: payload},
		provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: provider.SendSignaled | provider.SendInline})
	want := bytes.Clone(payload)
	clear(payload) // PostSend has copied it
	wcs := p.poll(2)
	if int(wcs[0].ByteLen) != len(want) || !bytes.Equal(p.buf[:len(want)], want) || wcs[1].ByteLen != 0 {
		t.Errorf("received %q, completions %+v", p.buf[:len(want)], wcs)
	}
	a.poll(2)
}

func testBatches(t *testing.T) {
	a, p := connected(t)
	const n = 3*postBatch + 5
	recvs := make([]provider.RecvWR, n)
	sends := make([]provider.SendWR, n)
	for i := range n {
		a.buf[i] = byte(i)
		recvs[i] = provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{p.sge(1000+i, 1)}}
		sends[i] = provider.SendWR{WRID: uint64(i), Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(i, 1)}}
	}
	p.recv(recvs...)
	a.send(sends...)
	for _, s := range []*side{a, p} {
		for i, wc := range s.poll(n) {
			if wc.WRID != uint64(i) || wc.Status != provider.WCSuccess {
				t.Fatalf("completion %d: %+v", i, wc)
			}
		}
	}
	if !bytes.Equal(p.buf[1000:1000+n], a.buf[:n]) {
		t.Error("the messages arrived changed or out of order")
	}
}

func testNoAllocations(t *testing.T) {
	a, p := connected(t)
	recvs := []provider.RecvWR{{SGList: []provider.SGE{p.sge(0, 64)}}, {SGList: []provider.SGE{p.sge(64, 64)}}}
	sends := []provider.SendWR{
		{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 64)}},
		{Opcode: provider.WRSend, Flags: provider.SendSignaled | provider.SendInline, Inline: make([]byte, 64)},
	}
	wcs := make([]provider.WC, 2)
	drain := func(s *side) {
		for got := 0; got < 2; {
			n, err := s.cq.Poll(wcs[got:])
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	if allocs := testing.AllocsPerRun(50, func() {
		p.recv(recvs...)
		a.send(sends...)
		drain(a)
		drain(p)
	}); allocs != 0 {
		t.Errorf("%v allocations for two messages", allocs)
	}
}

func testBadLKey(t *testing.T) {
	a, p := connected(t)
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 100)}})
	bad := a.sge(0, 64)
	bad.LKey ^= 0x00ff0000
	_, err := a.qp.PostSend([]provider.SendWR{{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{bad}}})
	if err != nil {
		t.Logf("PostSend: %v", err) // siw sends within the call and may return the error there too
	}
	wc := a.poll(1)[0]
	if wc.WRID != 2 || wc.Status != provider.WCLocQPOpErr {
		t.Errorf("send with an unknown lkey: %+v", wc)
	}
	var werr *provider.WCError
	if !errors.As(wc.Err(), &werr) || werr.Status != wc.Status {
		t.Errorf("Err: %v", wc.Err())
	}
	a.want("after the send with an unknown lkey", provider.CMDisconnected)
	p.want("after the peer's failure", provider.CMDisconnected)
	if wc := p.poll(1)[0]; wc.WRID != 1 || !errors.Is(wc.Err(), provider.ErrFlushed) {
		t.Errorf("receive after the peer's failure: %+v", wc)
	}
}

func testPostErrors(t *testing.T) {
	a, p := connected(t)
	manySGEs := make([]provider.SGE, 300)
	for i := range manySGEs {
		manySGEs[i] = a.sge(i, 1)
	}
	good := provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}}
	recv := provider.RecvWR{WRID: 9, SGList: []provider.SGE{p.sge(0, 8)}}

	for _, c := range []struct {
		name string
		wr   provider.SendWR
	}{
		// libsiw refuses this one, but loses the error after a good request.
		{"an opcode that siw has not", provider.SendWR{Opcode: provider.WRSendWithImm, SGList: []provider.SGE{a.sge(0, 8)}}},
		{"an opcode that verbs have not", provider.SendWR{Opcode: 200}},
		{"a memory window", provider.SendWR{Opcode: provider.WRBindMW}},
		{"too many entries", provider.SendWR{Opcode: provider.WRSend, SGList: manySGEs}},
		{"too much inline data", provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: make([]byte, 81)}},
		{"inline data and entries", provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, SGList: []provider.SGE{a.sge(0, 8)}}},
	} {
		n, err := a.qp.PostSend([]provider.SendWR{c.wr, good})
		if n != 0 {
			t.Errorf("%s: %d posted", c.name, n)
		}
		wantErrno(t, c.name, err, syscall.EINVAL)

		p.recv(recv)
		n, err = a.qp.PostSend([]provider.SendWR{good, c.wr, good})
		if n != 1 {
			t.Errorf("%s after a good request: %d posted", c.name, n)
		}
		wantErrno(t, c.name+" after a good request", err, syscall.EINVAL)
		if wc := a.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCSuccess {
			t.Errorf("%s: the request before it: %+v", c.name, wc)
		}
		p.poll(1)
	}
	if n, err := a.qp.PostSend(nil); n != 0 || err != nil {
		t.Errorf("nothing to post: %d, %v", n, err)
	}

	// A full receive queue. siw has rounded its size up.
	attr, init, err := p.qp.Query()
	if err != nil {
		t.Fatal(err)
	}
	if attr.Cap != init.Cap || init.Cap.MaxRecvWR < 64 || init.Cookie != p || init.SendCQ != p.cq {
		t.Errorf("Query: %+v, %+v", attr, init)
	}
	many := make([]provider.RecvWR, init.Cap.MaxRecvWR+3)
	for i := range many {
		many[i] = recv
	}
	n, err := p.qp.PostRecv(many)
	if n != init.Cap.MaxRecvWR {
		t.Errorf("%d of %d receives posted, the queue has %d slots", n, len(many), init.Cap.MaxRecvWR)
	}
	wantErrno(t, "a full receive queue", err, syscall.ENOMEM)
	n, err = p.qp.PostRecv([]provider.RecvWR{{SGList: manySGEs}})
	if n != 0 {
		t.Errorf("%d receives with 300 entries posted", n)
	}
	wantErrno(t, "a receive with 300 entries", err, syscall.EINVAL)
}
