//go:build linux

package engine

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Segments of which each holds more or fewer octets than an FPDU are packets of their own, and
// few of them may wait in a socket. FPDUs that fill their segments have no limit, nor do those
// of a network without a wire.
func TestUnsentLimit(t *testing.T) {
	for _, tc := range []struct {
		what          string
		crc           bool
		emss, records int
	}{
		{"the lowest MSS that Linux takes", true, 88, unsentRecords},
		{"the same without CRC", false, 88, unsentRecords},
		{"an MSS that no FPDU fills", true, 537, unsentRecords},
		{"one octet more than Ethernet's", true, 1449, unsentRecords},
		{"Ethernet with time stamps", true, 1448, 0},
		{"Ethernet without them", true, 1460, 0},
		{"jumbo frames", true, 8948, 0},
		{"jumbo frames that no FPDU fills", true, 8949, 0},
		{"loopback", true, 65483, 0},
		{"loopback without CRC", false, 65483, 0},
	} {
		mulpdu := mpa.MULPDU(tc.emss, false)
		if got, want := unsentLimit(tc.crc, tc.emss, mulpdu), tc.records*mpa.FPDULen(mulpdu); got != want {
			t.Errorf("%s: the limit is %d octets, want %d", tc.what, got, want)
		}
	}
}

// plainSocket is the Conn of a scripted peer. It has what that calls.
type plainSocket struct {
	transport.Conn
	fd int
}

func (p plainSocket) Writev(bufs [][]byte) (int, error) { return unix.Write(p.fd, bufs[0]) }

func (p plainSocket) Readv(bufs [][]byte) (int, error) {
	switch n, err := unix.Read(p.fd, bufs[0]); {
	case errors.Is(err, unix.EAGAIN):
		return 0, transport.ErrWouldBlock
	case n == 0 && err == nil:
		return 0, io.EOF
	default:
		return max(n, 0), err
	}
}

// smallPeer is a peer with tiny segments and a small receive buffer.
func smallPeer(t *testing.T, dst netip.AddrPort) *raw {
	t.Helper()
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { ok(t, unix.Close(fd)) })
	ok(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 88))
	ok(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	ok(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: dst.Addr().As4(), Port: int(dst.Port())}))
	ok(t, unix.SetNonblock(fd, true))
	r := &raw{t: t, c: plainSocket{fd: fd}, sendMSN: 1, readMSN: 1}
	r.framer, r.d = newFraming(true)
	return r
}

// socketTo returns the descriptor of this process's socket that is connected to an IPv4
// address.
func socketTo(t *testing.T, remote netip.AddrPort) int {
	t.Helper()
	for _, e := range must(os.ReadDir("/proc/self/fd"))(t) {
		fd := must(strconv.Atoi(e.Name()))(t)
		if sa, err := unix.Getpeername(fd); err == nil {
			if in, is := sa.(*unix.SockaddrInet4); is && netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)) == remote {
				return fd
			}
		}
	}
	t.Fatalf("no socket is connected to %v", remote)
	return -1
}

// TestTinySegmentsWaitInTheEngine: a peer with tiny segments requests a Read and takes nothing.
// The kernel has a few segments that it can't send yet, not a whole buffer: it would send all
// of them in one of our system calls once the peer acknowledges fast. When the peer takes the
// response, all of it comes.
//
//rfc:5042 SEC-6.4.2-01
func TestTinySegmentsWaitInTheEngine(t *testing.T) {
	network := transport.NewTCP(nil)
	s := newSide(t, Options{Network: network}, sideOptions{})
	m := s.reg(1<<20, provider.AccessRemoteRead)
	pattern(m.b, 1)
	l := must(network.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1))(t)
	defer func() { ok(t, l.Close()) }()
	peer := smallPeer(t, l.Addr())
	conn := must(l.Accept(t.Context()))(t)
	ours := socketTo(t, conn.RemoteAddr())
	s.start(conn, params(true), nil)
	peer.readReq(rdmap.ReadRequest{SinkSTag: 1, Size: uint32(len(m.b)), SourceSTag: m.m.stag, SourceTO: m.to(0)})

	unsent := func() int { return must(unix.IoctlGetInt(ours, unix.SIOCOUTQNSD))(t) }
	for before, end := -1, time.Now().Add(patience); unsent() == 0 || unsent() != before; time.Sleep(20 * time.Millisecond) {
		if before = unsent(); time.Now().After(end) {
			t.Fatalf("%d octets wait in the socket, and they still change", before)
		}
	}
	longest := mpa.FPDULen(mpa.MULPDU(conn.MSS(), false))
	if got, limit := unsent(), (unsentRecords+1)*longest; got > limit {
		t.Errorf("%d octets wait in the socket, %d FPDUs; want at most %d", got, got/longest, limit)
	}

	for at := 0; at < len(m.b); {
		h, payload := peer.next("the rest of the response")
		want := rdmap.ReadResponseHeader(1, uint64(at), at+len(payload) == len(m.b))
		if h != want || !bytes.Equal(payload, m.b[at:at+len(payload)]) {
			t.Fatalf("at octet %d of the response: header\n%+v, want\n%+v", at, h, want)
		}
		at += len(payload)
	}
}
