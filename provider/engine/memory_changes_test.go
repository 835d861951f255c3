package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// interrupted is a stream that calls before just before it takes bytes, which is after their
// CRC was calculated. What fails says, if it is not nil, is the error of the write.
type interrupted struct {
	transport.Conn
	before func()
	fails  func() error
}

func (c *interrupted) Writev(bufs [][]byte) (int, error) {
	c.before()
	if c.fails != nil {
		return 0, c.fails()
	}
	return c.Conn.Writev(bufs)
}

// interruptible is a network whose pollers accept an interrupted stream instead of its own.
type interruptible struct{ transport.Network }

func (n interruptible) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return interruptiblePoller{p}, err
}

type interruptiblePoller struct{ transport.Poller }

func plainConn(c transport.Conn) transport.Conn {
	if i, is := c.(*interrupted); is {
		return i.Conn
	}
	return c
}

func (p interruptiblePoller) Remove(c transport.Conn) { p.Poller.Remove(plainConn(c)) }

func (p interruptiblePoller) WantRead(c transport.Conn, on bool) error {
	return p.Poller.WantRead(plainConn(c), on)
}

func (p interruptiblePoller) WantWrite(c transport.Conn, on bool) error {
	return p.Poller.WantWrite(plainConn(c), on)
}

// interrupt calls before at the beginning of each write of the side's stream.
func (s *side) interrupt(before func()) { s.interruptWith(before, nil) }

func (s *side) interruptWith(before func(), fails func() error) {
	s.qp.stream.Load().replaceConn(func(c transport.Conn) transport.Conn {
		return &interrupted{c, before, fails}
	})
}

// TestMemoryChangesWhileSent: the memory of Writes, Sends and Read Responses changes after their
// CRC was calculated, and before the socket takes them. The connection goes on, because a copy is
// sent.
func TestMemoryChangesWhileSent(t *testing.T) {
	const size = 150000
	for _, c := range []struct {
		name    string
		sges    int
		markers bool
		mss     int
	}{
		{"one SGE", 1, false, 0},
		{"two SGEs", 2, false, 0},
		{"one SGE, MSS 1448", 1, false, 1448},
		{"one SGE, markers", 1, true, 0},
		{"two SGEs, markers", 2, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := params(true)
			p.MarkersTx, p.MarkersRx = c.markers, c.markers
			o := Options{}
			o.TCP.MaxSegment = c.mss
			a, b := pair(t, interruptible{testkit.Must(tcpNetwork(o))(t)}, tcpAddr, Options{}, sideOptions{}, p)
			src, dst := a.reg(size, provider.AccessRemoteRead), b.reg(size, writable)
			var sges []provider.SGE
			for i := range c.sges {
				n := size / c.sges
				sges = append(sges, src.sge(i*n, n))
			}
			changes := 0
			a.interrupt(func() {
				changes++
				for i := range src.b {
					src.b[i]++
				}
			})
			changed := func(what string) {
				t.Helper()
				if changes == 0 {
					t.Fatalf("%s: nothing was sent, so nothing changed", what)
				}
				changes = 0
			}
			a.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: signaled, SGList: sges,
				RemoteAddr: dst.to(0), RKey: dst.m.STag()})
			a.wantWC("the Write", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
			changed("the Write")
			b.recv(provider.RecvWR{WRID: 2, SGList: []provider.SGE{dst.sge(0, size)}})
			a.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, Flags: signaled, SGList: sges})
			a.wantWC("the Send", provider.WC{WRID: 3, Opcode: provider.WCSend})
			b.wantWC("the receive", provider.WC{WRID: 2, Opcode: provider.WCRecv, ByteLen: size})
			changed("the Send")
			b.send(provider.SendWR{WRID: 4, Opcode: provider.WRRDMARead, Flags: signaled,
				SGList: []provider.SGE{dst.sge(0, size)}, RemoteAddr: src.to(0), RKey: src.m.STag()})
			b.wantWC("the Read", provider.WC{WRID: 4, Opcode: provider.WCRDMARead, ByteLen: size})
			changed("the Read Response")
		})
	}
}
