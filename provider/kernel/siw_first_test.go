//go:build cgo && linux && !nokernel

package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// testFirstFPDU: siw does not read what is in its socket when its accept ends, until more arrives
// (kernel-notes/siw-first-fpdu.md). A peer that sends its first FPDU before the Reply triggers this
// each time, although it may not do so (RFC 5044 section 7.1.1). A peer that sends the FPDU when it
// has the Reply also triggers it if siw's accept has not ended by then. How often that happens
// depends on the machine.
func testFirstFPDU(t *testing.T) {
	p := newSide(t)
	for range 5 {
		if !firstUnread(t, p, beforeReply, nil) {
			t.Error("siw has read an FPDU that came before its Reply left")
		}
	}
	t.Setenv("GOVS_SIW_HANGS", t.TempDir()) // these hangs are intended and must not count for the run
	firstUnread(t, p, beforeReply, func(port uint16) {
		if !siwhang.Unread(t, port) || !siwhang.Unread(t, 0) {
			t.Error("siwhang does not see what siw has not read")
		}
		if siwhang.Unread(t, port+1) {
			t.Error("siwhang sees it at another port")
		}
	})
	const connections = 50
	unread := 0
	for range connections {
		if firstUnread(t, p, afterReply, nil) {
			unread++
		}
	}
	t.Logf("of %d FPDUs that were sent as soon as the Reply was there siw has left %d unread",
		connections, unread)
}

const (
	beforeReply = iota // the peer sends its first FPDU when siw has its Request
	afterReply         // ... when it has siw's Reply
)

// firstUnread reports whether siw has left the first FPDU of a connection unread until another one
// arrived; then it reads both. meanwhile is called before that, with the listener's port.
func firstUnread(t *testing.T, p *side, when int, meanwhile func(port uint16)) bool {
	t.Helper()
	l := p.listen()
	peer := connectEager(t, l.LocalAddr())
	defer peer.close()
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.createQP()
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 8)}},
		provider.RecvWR{WRID: 2, SGList: []provider.SGE{p.sge(8, 8)}})
	sent := make(chan error, 1)
	if when == beforeReply {
		sent <- peer.send(1)
	} else {
		go func() {
			err := peer.awaitReply()
			if err == nil {
				err = peer.send(1)
			}
			sent <- err
		}()
		time.Sleep(time.Millisecond) // the peer polls for the Reply
	}
	testkit.OK(t, p.id.Accept(provider.ConnParam{}))
	testkit.OK(t, <-sent)
	p.want("after Accept", provider.CMEstablished)
	var wc [2]provider.WC
	n := 0
	for end := time.Now().Add(300 * time.Millisecond); n == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		n = testkit.Must(p.cq.Poll(wc[:]))(t)
	}
	if meanwhile != nil {
		meanwhile(l.LocalAddr().Port())
	}
	testkit.OK(t, peer.send(2))
	copy(wc[n:], p.poll(len(wc)-n))
	for i, c := range wc {
		if c.WRID != uint64(i+1) || c.Status != provider.WCSuccess || c.ByteLen != 4 {
			t.Fatalf("Send %d: %+v", i+1, c)
		}
	}
	closeAll(t, p.qp, p.id, l)
	return n == 0
}

// An eager peer loses no time after the Reply, because it polls for it.
type eager struct{ fd int }

// connectEager connects a peer by TCP, which sends its Request.
func connectEager(t *testing.T, addr netip.AddrPort) eager {
	t.Helper()
	e := eager{testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)}
	testkit.OK(t, unix.Connect(e.fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}))
	request := mpa.Frame{Kind: mpa.KindRequest, Revision: 1}
	testkit.Must(unix.Write(e.fd, request.AppendTo(nil)))(t)
	return e
}

// awaitReply waits for the Reply, which has no private data and which siw sends in one piece.
func (e eager) awaitReply() error {
	for deadline := time.Now().Add(patience); ; {
		_, _, err := unix.Recvfrom(e.fd, make([]byte, mpa.FrameHeaderLen), unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return err
		}
	}
}

// send sends the Send with a number, of 4 bytes. Neither side has asked for CRCs.
func (e eager) send(msn uint32) error {
	b := binary.BigEndian.AppendUint16(nil, 18+4) // ULPDU_Length
	b = binary.BigEndian.AppendUint16(b, 0x4143)  // L, versions 1 of DDP and RDMAP, Send
	b = append(b, make([]byte, 4+4)...)           // reserved, QN
	b = binary.BigEndian.AppendUint32(b, msn)
	b = append(b, make([]byte, 4+4+4)...) // MO, payload, CRC
	_, err := unix.Write(e.fd, b)
	return err
}

func (e eager) close() { _ = unix.Close(e.fd) }
