package engine

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestOperations does each operation in each size class, over every framing.
//
// An end of the networks that cut can be written when a third of its window is free, as a
// socket of Linux. Otherwise each octet that is read has the other end write one: segments
// have 7 octets on average, and each of these subtests takes 15 s under the race detector.
func TestOperations(t *testing.T) {
	cut := func(seed uint64) transport.Network {
		return memnet.New(&memnet.Options{Seed: seed, Cut: true, WriteRoom: 40 << 10})
	}
	for _, c := range []struct {
		name    string
		network transport.Network
		addr    string
		opts    Options
		crc     bool
		markers bool
	}{
		{"mem", memnet.New(nil), memAddr, Options{}, true, false},
		{"mem cut", cut(1), memAddr, Options{}, true, false},
		{"mem without CRC", memnet.New(nil), memAddr, Options{}, false, false},
		{"mem cut without CRC", cut(2), memAddr, Options{}, false, false},
		{"mem markers", memnet.New(nil), memAddr, Options{}, true, true},
		{"mem cut markers without CRC", cut(4), memAddr, Options{}, false, true},
		{"TCP", nil, tcpAddr, Options{}, true, false},
		{"TCP without CRC", nil, tcpAddr, Options{}, false, false},
		{"TCP markers", nil, tcpAddr, Options{}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			network := c.network
			if network == nil {
				network = testkit.Must(tcpNetwork(Options{}))(t)
			}
			p := params(c.crc)
			p.MarkersTx, p.MarkersRx = c.markers, c.markers
			a, b := pair(t, network, c.addr, c.opts, sideOptions{}, p)
			for _, size := range []int{0, 1, 63, 64, 1023, 1024, 1025, 4096, 70000, 1 << 20} {
				t.Run(fmt.Sprint(size), func(t *testing.T) { eachOperation(t, a, b, size) })
			}
		})
	}
}

func eachOperation(t *testing.T, a, b *side, size int) {
	src := a.reg(size+8, provider.AccessLocalWrite)
	pattern(src.b, size)
	dst := b.reg(size+8, provider.AccessLocalWrite|provider.AccessRemoteWrite|provider.AccessRemoteRead)
	recv := b.reg(size+8, provider.AccessLocalWrite)
	back := a.reg(size+8, provider.AccessLocalWrite)
	data := src.b[3 : 3+size]

	b.recv(provider.RecvWR{WRID: 7, SGList: []provider.SGE{recv.sge(1, size)}})
	a.send(
		provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{src.sge(3, size)}, RemoteAddr: dst.to(5), RKey: dst.m.stag},
		provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{src.sge(3, size)}},
		provider.SendWR{WRID: 3, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{back.sge(2, size)}, RemoteAddr: dst.to(5), RKey: dst.m.stag},
	)
	b.wantWC("the Send arrives", provider.WC{WRID: 7, Opcode: provider.WCRecv, ByteLen: uint32(size)})
	a.wantWC("Write completes", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
	a.wantWC("Send completes", provider.WC{WRID: 2, Opcode: provider.WCSend})
	a.wantWC("Read completes", provider.WC{WRID: 3, Opcode: provider.WCRDMARead, ByteLen: uint32(size)})
	if !bytes.Equal(dst.b[5-0:5+size], data) && size+8 >= 5+size {
		t.Error("written octets differ")
	}
	if !bytes.Equal(recv.b[1:1+size], data) {
		t.Error("sent octets differ")
	}
	if !bytes.Equal(back.b[2:2+size], data) {
		t.Error("read octets differ")
	}
	dst.untouched(5, 5+size)
	recv.untouched(1, 1+size)
	back.untouched(2, 2+size)
}
