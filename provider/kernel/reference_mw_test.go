//go:build cgo && linux && !nokernel

package kernel_test

import (
	"fmt"

	"github.com/govs-rdma/govs/provider"
)

// window is a window of the server over the first page of a region. It grants writing and reading
// of 50 bytes from byte 100 on.
type window struct {
	w    *connection
	buf  []byte
	mr   provider.MR
	mw   provider.MW
	next uint64 // wr_id of the server's next request
}

// windowed is a program with a window of a type that has not been bound.
func windowed(name string, typ provider.MWType, run func(b *window)) program {
	return program{name: name, run: func(w *connection) {
		b := &window{w: w, buf: make([]byte, 4096), next: 1}
		var err error
		b.mr, err = w.server.pd.RegMR(b.buf, provider.AccessLocalWrite|provider.AccessMWBind)
		check(w.t, "RegMR", err)
		b.mw, err = w.server.pd.AllocMW(typ)
		check(w.t, "AllocMW", err)
		// On iWARP the passive end may post but sends nothing before it has received from the peer
		// (RFC 5044 section 7.1). A bind waits too, because it is in the same queue.
		w.client.send(provider.SendWR{Opcode: provider.WRRDMAWrite, RemoteAddr: w.server.mr.Addr(), RKey: w.server.mr.RKey()})
		run(b)
		w.quiet()
		check(w.t, "Close of the window", b.mw.Close())
		check(w.t, "Close of the region", b.mr.Close())
	}}
}

// info describes the window's binding with the given rights.
func (b *window) info(access provider.Access) provider.MWBindInfo {
	return provider.MWBindInfo{LKey: b.mr.LKey(), Addr: b.mr.Addr() + 100, Length: 50, Access: access}
}

// bind posts a bind of a window of type 2, and waits for its completion.
func (b *window) bind(info provider.MWBindInfo) {
	b.w.t.Helper()
	b.request(provider.SendWR{Opcode: provider.WRBindMW, RKey: b.nextKey(), Bind: &info})
}

// nextKey returns the window's key with another lowest byte.
func (b *window) nextKey() uint32 { return b.mw.RKey()&^0xff | (b.mw.RKey()+1)&0xff }

// request posts a request of the server's and waits for its completion.
func (b *window) request(wr provider.SendWR) {
	b.w.t.Helper()
	wr.WRID, wr.Flags = b.next, signaled
	b.next++
	b.w.server.send(wr)
	b.w.sent(b.w.server, int(wr.WRID))
}

// access posts a request of the client's through the window, and waits for its
// completion.
func (b *window) access(id uint64, op provider.WROpcode, off uint64, n int) {
	b.w.t.Helper()
	b.w.client.send(provider.SendWR{WRID: id, Opcode: op, Flags: signaled, SGList: []provider.SGE{b.w.client.sge(0, n)}, RemoteAddr: b.mr.Addr() + off, RKey: b.mw.RKey()})
	b.w.sent(b.w.client, int(id))
}

const (
	remoteWrite = provider.AccessRemoteWrite
	remoteBoth  = provider.AccessRemoteWrite | provider.AccessRemoteRead
)

var windowPrograms = []program{
	windowed("window of type 1", provider.MWType1, func(b *window) {
		copy(b.w.client.buf, "through a window")
		check(b.w.t, "BindMW", b.w.server.qp.BindMW(b.mw, 1, signaled, b.info(remoteBoth)))
		b.w.sent(b.w.server, 1)
		b.access(1, provider.WRRDMAWrite, 100, 16)
		b.access(2, provider.WRRDMARead, 100, 50)
		b.w.note("what was written", fmt.Sprintf("%q", b.buf[100:116]))
	}),
	windowed("window of type 2", provider.MWType2, func(b *window) {
		copy(b.w.client.buf, "through a window")
		b.bind(b.info(remoteBoth))
		b.access(1, provider.WRRDMAWrite, 134, 16)
		b.access(2, provider.WRRDMARead, 100, 50)
		b.w.note("what was written", fmt.Sprintf("%q", b.buf[134:150]))
		// A window's key is invalid after an invalidation.
		b.request(provider.SendWR{Opcode: provider.WRLocalInv, InvalidateRKey: b.mw.RKey()})
		b.access(3, provider.WRRDMARead, 100, 8)
	}),
	windowed("window that the peer invalidates", provider.MWType2, func(b *window) {
		b.bind(b.info(remoteBoth))
		b.w.server.recv(100, 100)
		b.w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSendWithInv, Flags: signaled, SGList: []provider.SGE{b.w.client.sge(0, 9)}, InvalidateRKey: b.mw.RKey()})
		b.w.received(b.w.server, 1)
		b.access(2, provider.WRRDMARead, 100, 8)
	}),
	windowed("window bound once more", provider.MWType2, func(b *window) {
		b.bind(b.info(remoteBoth))
		b.request(provider.SendWR{Opcode: provider.WRLocalInv, InvalidateRKey: b.mw.RKey()})
		b.bind(b.info(remoteWrite))
		b.access(1, provider.WRRDMAWrite, 100, 8)
	}),
	windowed("read through a window for writing", provider.MWType2, func(b *window) {
		b.bind(b.info(remoteWrite))
		b.access(1, provider.WRRDMARead, 100, 8)
	}),
	windowed("read beside a window", provider.MWType2, func(b *window) {
		b.bind(b.info(remoteBoth))
		b.access(1, provider.WRRDMARead, 148, 8)
	}),
	windowed("read through a window that is not bound", provider.MWType2, func(b *window) {
		b.access(1, provider.WRRDMARead, 100, 8)
	}),
	windowed("bind beyond a region", provider.MWType2, func(b *window) {
		info := b.info(remoteBoth)
		info.Length = 4000
		b.bind(info)
	}),
	windowed("bind of a window that is bound", provider.MWType2, func(b *window) {
		b.bind(b.info(remoteBoth))
		b.bind(b.info(remoteBoth))
	}),
	// No program here invalidates an unbound window, because rxe crashes:
	// kernel-notes/rxe-crash-window.md.
	windowed("invalidate what is nobody's", provider.MWType2, func(b *window) {
		b.request(provider.SendWR{Opcode: provider.WRLocalInv, InvalidateRKey: b.mw.RKey() ^ 0xff00})
	}),
}
