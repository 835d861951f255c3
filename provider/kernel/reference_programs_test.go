//go:build cgo && linux && !nokernel

package kernel_test

import (
	"encoding/binary"
	"fmt"

	"github.com/govs-rdma/govs/provider"
)

const signaled = provider.SendSignaled

// to makes a request from the client to a region of the server.
func (w *connection) to(id uint64, op provider.WROpcode, mr provider.MR, off uint64, list ...provider.SGE) provider.SendWR {
	return provider.SendWR{WRID: id, Opcode: op, Flags: signaled, SGList: list, RemoteAddr: mr.Addr() + off, RKey: mr.RKey()}
}

// failing is a program whose first request fails at the peer, followed by others.
func failing(name string, wr func(w *connection) provider.SendWR) program {
	return program{name: name, run: func(w *connection) {
		w.server.recv(64, 64)
		w.client.recv(64)
		w.client.send(wr(w))
		w.sent(w.client, 1)
		w.quiet()
		w.client.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.client.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.quiet()
	}}
}

// sending is a program of Sends for which the server has receives.
func sending(name string, receives []int, wrs func(w *connection) []provider.SendWR) program {
	return program{name: name, run: func(w *connection) {
		w.server.recv(receives...)
		for i, wr := range wrs(w) {
			wr.WRID = uint64(i + 1)
			w.client.send(wr)
		}
		w.quiet()
	}}
}

var programs = []program{
	sending("send", []int{100, 100, 100, 8000, 0}, func(w *connection) []provider.SendWR {
		c := w.client
		return []provider.SendWR{
			{Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{c.sge(0, 100)}},
			{Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{c.sge(0, 3), c.sge(10, 0), c.sge(20, 5)}},
			{Opcode: provider.WRSend, Flags: signaled},
			{Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{c.sge(0, 5000)}},
			{Opcode: provider.WRSend, Flags: signaled | provider.SendSolicited},
		}
	}),
	sending("send inline", []int{100, 100}, func(w *connection) []provider.SendWR {
		return []provider.SendWR{
			{Opcode: provider.WRSend, Flags: signaled | provider.SendInline, Inline: []byte("inline")},
			{Opcode: provider.WRSend, Flags: signaled | provider.SendInline},
		}
	}),
	sending("send without signal", []int{100, 100, 100, 100}, func(w *connection) []provider.SendWR {
		list := []provider.SGE{w.client.sge(0, 9)}
		return []provider.SendWR{
			{Opcode: provider.WRSend, SGList: list},
			{Opcode: provider.WRSend, SGList: list},
			{Opcode: provider.WRSend, Flags: signaled, SGList: list},
			{Opcode: provider.WRSend, SGList: list},
		}
	}),
	{name: "all signaled", sigAll: true, run: func(w *connection) {
		w.server.recv(100)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, SGList: []provider.SGE{w.client.sge(0, 9)}})
		wr := w.to(2, provider.WRRDMAWrite, w.server.mr, 0, w.client.sge(0, 9))
		wr.Flags = 0
		w.client.send(wr)
		w.sent(w.client, 2)
	}},
	sending("immediate data", []int{100, 100, 100, 100}, func(w *connection) []provider.SendWR {
		list := []provider.SGE{w.client.sge(0, 9)}
		first, second := w.to(0, provider.WRRDMAWriteWithImm, w.server.mr, 0, list...), w.to(0, provider.WRRDMAWriteWithImm, w.server.mr, 0)
		first.Imm, second.Imm = 0x01020304, 0xfffefdfc
		second.Flags |= provider.SendSolicited
		return []provider.SendWR{
			{Opcode: provider.WRSendWithImm, Flags: signaled, Imm: 0x80000001},
			first, second,
			{Opcode: provider.WRSendWithImm, Flags: signaled, Imm: 0},
		}
	}),
	sending("immediate data with payload", []int{100}, func(w *connection) []provider.SendWR {
		return []provider.SendWR{{Opcode: provider.WRSendWithImm, Flags: signaled, Imm: 5, SGList: []provider.SGE{w.client.sge(0, 9)}}}
	}),
	{name: "invalidate", run: func(w *connection) {
		buf := make([]byte, 4096)
		mr, err := w.server.pd.RegMR(buf, provider.AccessLocalWrite|provider.AccessRemoteWrite|provider.AccessRemoteInvalidate)
		check(w.t, "RegMR", err)
		w.server.recv(100)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSendWithInv, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 9)}, InvalidateRKey: mr.RKey()})
		w.received(w.server, 1) // the key is valid until then
		w.quiet()
		check(w.t, "Close", mr.Close())
	}},
	{name: "write and read", run: func(w *connection) {
		c, s := w.client, w.server
		copy(c.buf, "0123456789")
		w.client.send(w.to(1, provider.WRRDMAWrite, s.mr, 100, c.sge(0, 6), c.sge(6, 4)))
		w.client.send(w.to(2, provider.WRRDMAWrite, s.wo, 0, c.sge(0, 5000)))
		w.client.send(w.to(3, provider.WRRDMAWrite, s.mr, 0))
		w.client.send(w.to(4, provider.WRRDMARead, s.mr, 100, c.sge(1000, 10)))
		w.client.send(w.to(5, provider.WRRDMARead, s.ro, 0, c.sge(2000, 5000)))
		fenced := w.to(6, provider.WRRDMARead, s.mr, 0)
		fenced.Flags |= provider.SendFence
		w.client.send(fenced)
		inline := w.to(7, provider.WRRDMAWrite, s.mr, 200)
		inline.Flags |= provider.SendInline
		inline.Inline = []byte("inline")
		w.client.send(inline)
		quietly := w.to(8, provider.WRRDMARead, s.mr, 100, c.sge(1100, 10))
		quietly.Flags = 0
		w.client.send(quietly)
		w.client.send(w.to(9, provider.WRRDMARead, s.mr, 200, c.sge(1200, 6)))
		w.sent(c, 8)
		w.note("what was read", fmt.Sprintf("%q %q %q", c.buf[1000:1010], c.buf[1100:1110], c.buf[1200:1206]))
		w.quiet()
	}},
	{name: "read into several", run: func(w *connection) {
		copy(w.server.buf, "0123456789")
		w.client.send(w.to(1, provider.WRRDMARead, w.server.mr, 0, w.client.sge(0, 3), w.client.sge(10, 7)))
		w.sent(w.client, 1)
		w.note("what was read", fmt.Sprintf("%q %q", w.client.buf[:3], w.client.buf[10:17]))
	}},
	{name: "atomics", run: func(w *connection) {
		word := func(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
		binary.NativeEndian.PutUint64(w.server.buf[64:], 40)
		for i, wr := range []provider.SendWR{
			{Opcode: provider.WRAtomicFetchAdd, CompareAdd: 2},
			{Opcode: provider.WRAtomicFetchAdd, CompareAdd: ^uint64(0)},
			{Opcode: provider.WRAtomicCmpAndSwp, CompareAdd: 41, Swap: 0x0102030405060708},
			{Opcode: provider.WRAtomicCmpAndSwp, CompareAdd: 41, Swap: 9},
			{Opcode: provider.WRAtomicFetchAdd, CompareAdd: 1, Flags: provider.SendFence},
		} {
			wr.WRID, wr.Flags, wr.RemoteAddr, wr.RKey = uint64(i+1), wr.Flags|signaled, w.server.mr.Addr()+64, w.server.mr.RKey()
			wr.SGList = []provider.SGE{w.client.sge(8*i, 8)}
			w.client.send(wr)
		}
		w.sent(w.client, 5)
		var found []uint64
		for i := range 5 {
			found = append(found, word(w.client.buf[8*i:]))
		}
		w.note("what was found", found)
		w.note("what is left", word(w.server.buf[64:]))
	}},
	{name: "atomic on a word that is not aligned", run: func(w *connection) {
		w.client.send(w.to(1, provider.WRAtomicFetchAdd, w.server.mr, 4, w.client.sge(0, 8)))
		w.quiet()
	}},
	{name: "SRQ", srq: true, run: func(w *connection) {
		w.server.recv(100, 100, 100)
		for id := range uint64(2) {
			w.client.send(provider.SendWR{WRID: id + 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 20)}})
		}
		w.sent(w.client, 2)
		w.received(w.server, 2)
	}},

	// Requests that are refused when they are posted.
	{name: "requests that can't be", run: func(w *connection) {
		many := make([]provider.SGE, 100)
		for i := range many {
			many[i] = w.client.sge(i, 1)
		}
		w.client.send(provider.SendWR{WRID: 1, Opcode: 77})
		w.client.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, SGList: many})
		w.client.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, Flags: provider.SendInline, Inline: make([]byte, 4000)})
		w.client.send(provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: 1 << 20})
		w.client.send(provider.SendWR{WRID: 5, Opcode: provider.WRMaskedAtomicFetchAdd, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}, RemoteAddr: w.server.mr.Addr(), RKey: w.server.mr.RKey()})
		_, err := w.client.qp.PostRecv([]provider.RecvWR{{SGList: many}})
		w.note("a receive with 100 entries", provider.Errno(err))
		w.quiet()
	}},

	// Requests that fail at the client.
	failing("send from memory that is nobody's", func(w *connection) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{{Addr: w.client.mr.Addr(), Length: 8, LKey: w.client.mr.LKey() ^ 0xff00}}}
	}),
	failing("send from beyond a region", func(w *connection) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(16380, 8)}}
	}),
	failing("unsignaled send from memory that is nobody's", func(w *connection) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRSend, SGList: []provider.SGE{{Addr: w.client.mr.Addr(), Length: 8, LKey: w.client.mr.LKey() ^ 0xff00}}}
	}),
	failing("read into memory that may not be written", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRRDMARead, w.server.mr, 0, provider.SGE{Addr: w.client.ro.Addr(), Length: 8, LKey: w.client.ro.LKey()})
	}),

	// Requests that fail at the server.
	failing("write with a key that is nobody's", func(w *connection) provider.SendWR {
		wr := w.to(1, provider.WRRDMAWrite, w.server.mr, 0, w.client.sge(0, 8))
		wr.RKey ^= 0xff00
		return wr
	}),
	failing("write to memory that may be read only", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRRDMAWrite, w.server.ro, 0, w.client.sge(0, 8))
	}),
	failing("write beyond a region", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRRDMAWrite, w.server.mr, 16380, w.client.sge(0, 8))
	}),
	failing("read with a key that is nobody's", func(w *connection) provider.SendWR {
		wr := w.to(1, provider.WRRDMARead, w.server.mr, 0, w.client.sge(0, 8))
		wr.RKey ^= 0xff00
		return wr
	}),
	failing("read of memory that may be written only", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRRDMARead, w.server.wo, 0, w.client.sge(0, 8))
	}),
	failing("read beyond a region", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRRDMARead, w.server.mr, 16380, w.client.sge(0, 8))
	}),
	failing("atomic without the right", func(w *connection) provider.SendWR {
		return w.to(1, provider.WRAtomicFetchAdd, w.server.wo, 0, w.client.sge(0, 8))
	}),
	failing("send longer than its receive", func(w *connection) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 100)}}
	}),
	{name: "receive into memory that is nobody's", run: func(w *connection) {
		w.server.recvInto(provider.SGE{Addr: w.server.mr.Addr(), Length: 8, LKey: w.server.mr.LKey() ^ 0xff00})
		w.server.recv(8)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.sent(w.client, 1)
		w.received(w.server, 1)
	}},
	{name: "send without a receive, tried once", noRNR: true, run: func(w *connection) {
		w.client.recv(8)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.sent(w.client, 1)
		w.quiet()
	}},

	// Flushes.
	{name: "disconnect", run: func(w *connection) {
		w.client.recv(8, 8)
		w.server.recv(8, 8, 8)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.sent(w.client, 1)
		w.received(w.server, 1)
		check(w.t, "Disconnect", w.client.id.Disconnect())
		w.client.want(provider.CMDisconnected)
		w.client.over = true
		w.client.recv(8)
		w.client.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.client.send(w.to(3, provider.WRRDMARead, w.server.mr, 0, w.client.sge(0, 8)))
		unsignaled := w.to(4, provider.WRRDMAWrite, w.server.mr, 0, w.client.sge(0, 8))
		unsignaled.Flags = 0
		w.client.send(unsignaled)
		w.sent(w.client, 4)
	}},
	{name: "to the error state", run: func(w *connection) {
		w.client.recv(8, 8)
		w.server.recv(8)
		check(w.t, "Modify", w.client.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
		w.received(w.client, 2)
		w.client.recv(8)
		w.client.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled, SGList: []provider.SGE{w.client.sge(0, 8)}})
		w.sent(w.client, 1)
		attr, _, err := w.client.qp.Query()
		check(w.t, "Query", err)
		w.note("state", attr.State)
	}},
}
