//go:build linux

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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

// segmentsOf is a peer whose segments have at most mss bytes, time stamps included, and whose
// receive buffer has so many.
func segmentsOf(t *testing.T, mss, buffer int, dst netip.AddrPort) (peer *raw, fd int) {
	t.Helper()
	fd = testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { testkit.OK(t, unix.Close(fd)) })
	testkit.OK(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, mss))
	testkit.OK(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer))
	testkit.OK(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	testkit.OK(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: dst.Addr().As4(), Port: int(dst.Port())}))
	testkit.OK(t, unix.SetNonblock(fd, true))
	return rawOn(t, plainSocket{fd: fd}, params(true)), fd
}

// socketTo returns the descriptor of this process's socket that is connected to an IPv4
// address.
func socketTo(t *testing.T, remote netip.AddrPort) int {
	t.Helper()
	for _, e := range testkit.Must(os.ReadDir("/proc/self/fd"))(t) {
		fd := testkit.Must(strconv.Atoi(e.Name()))(t)
		if sa, err := unix.Getpeername(fd); err == nil {
			if in, is := sa.(*unix.SockaddrInet4); is && netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)) == remote {
				return fd
			}
		}
	}
	t.Fatalf("no socket is connected to %v", remote)
	return -1
}

// readServer is an engine, and a peer that reads from it over the system's TCP.
type readServer struct {
	t    *testing.T
	m    *region
	peer *raw
	fd   int // the peer's
	ours int // the engine's
	conn transport.Conn
	st   *stream
}

func newReadServer(t *testing.T, mss, buffer int) *readServer {
	t.Helper()
	network := transport.NewTCP(nil)
	s := newSide(t, Options{Network: network}, sideOptions{})
	r := &readServer{t: t, m: s.reg(1<<20, provider.AccessRemoteRead)}
	pattern(r.m.b, 1)
	l := testkit.Must(network.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	r.peer, r.fd = segmentsOf(t, mss, buffer, l.Addr())
	r.conn = testkit.Must(l.Accept(t.Context()))(t)
	r.ours = socketTo(t, r.conn.RemoteAddr())
	p := params(true)
	p.IRD = 64
	s.start(r.conn, p)
	r.st = s.qp.stream.Load()
	return r
}

// ask requests n Reads of the first bytes of the region.
func (r *readServer) ask(n, size int) {
	for range n {
		r.peer.readReq(rdmap.ReadRequest{SinkSTag: 1, Size: uint32(size), SourceSTag: r.m.m.STag(), SourceTO: r.m.to(0)})
	}
}

// answered waits until the socket has taken so many bytes in all.
func (r *readServer) answered(octets uint64, wait time.Duration) bool {
	for end := time.Now().Add(wait); r.st.sent() < octets; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// notSent is how many bytes the engine's socket holds that TCP can't send yet.
func (r *readServer) notSent() int {
	return testkit.Must(unix.IoctlGetInt(r.ours, unix.SIOCOUTQNSD))(r.t)
}

// stalls waits until the socket has something that TCP can't send, and takes no more.
func (r *readServer) stalls() {
	r.t.Helper()
	end := time.Now().Add(patience)
	for before := -1; r.notSent() == 0 || r.notSent() != before; time.Sleep(20 * time.Millisecond) {
		if before = r.notSent(); time.Now().After(end) {
			r.t.Fatalf("%d bytes wait in the socket, and they still change", before)
		}
	}
}

// takesAll makes the peer take the response to its only Read, which asked for the whole region.
func (r *readServer) takesAll() {
	r.t.Helper()
	for at := 0; at < len(r.m.b); {
		h, payload := r.peer.next("the rest of the response")
		want := rdmap.ReadResponseHeader(1, uint64(at), at+len(payload) == len(r.m.b))
		if h != want || !bytes.Equal(payload, r.m.b[at:at+len(payload)]) {
			r.t.Fatalf("at byte %d of the response: header\n%+v, want\n%+v", at, h, want)
		}
		at += len(payload)
	}
}

// wantFew checks that few of the FPDUs, which have so many bytes, wait in the socket.
func (r *readServer) wantFew(fpdu int) {
	r.t.Helper()
	// The limit is a power of two, so that it may be nearly twice 64 FPDUs.
	if n := r.notSent() / fpdu; n > 2*policy.NotSentRecords {
		r.t.Errorf("%d FPDUs wait in the socket, want at most %d", n, 2*policy.NotSentRecords)
	}
}

// TestTinySegmentsWaitInTheEngine: a peer with tiny segments requests a Read and takes nothing.
// The kernel has a few segments that it can't send yet, not a whole buffer: it would send all
// of them in one of our system calls once the peer acknowledges fast. When the peer takes the
// response, all of it comes.
//
//rfc:5042 SEC-6.4.2-01 Idle ULPs cannot hold resources forever
func TestTinySegmentsWaitInTheEngine(t *testing.T) {
	r := newReadServer(t, 88, 4096)
	r.ask(1, len(r.m.b))
	r.stalls()
	r.wantFew(mpa.FPDULen(mpa.MULPDU(r.conn.MSS(), false)))
	r.takesAll()
}

// TestStalledPeerCostsNothing: while a peer takes nothing, whatever its segments are, the engine
// waits, and does not look at the socket over and over.
//
//rfc:5042 SEC-6.4.2-01 Idle ULPs cannot hold resources forever
func TestStalledPeerCostsNothing(t *testing.T) {
	for _, mss := range []int{88, 149, 1361, 1461, 4109} {
		t.Run(fmt.Sprint(mss), func(t *testing.T) {
			r := newReadServer(t, mss, 64<<10)
			r.ask(1, len(r.m.b))
			r.stalls()
			testkit.Once(t, func() error {
				used, began := cpuTime(t), time.Now()
				time.Sleep(200 * time.Millisecond)
				used = cpuTime(t) - used
				if took := time.Since(began); used > took/20 { // 3 ms are usual
					return fmt.Errorf("%v of CPU time in %v beside a peer that takes nothing", used, took)
				}
				return nil
			})
			r.takesAll()
		})
	}
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	var ru unix.Rusage
	testkit.OK(t, unix.Getrusage(unix.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// TestShortReadsWaitInTheEngine: the peer requests many short Reads. Each response is an FPDU
// in a record, and so in a packet, of its own because of the pad, whatever the MSS is. Few of
// them wait in the socket when the peer takes nothing more.
//
//rfc:5042 SEC-6.4.2-01 Idle ULPs cannot hold resources forever
func TestShortReadsWaitInTheEngine(t *testing.T) {
	for _, tc := range []struct {
		what              string
		mss, size, buffer int
	}{
		{"tiny segments that FPDUs fill", 148, 41, 64 << 10},
		{"tiny segments that FPDUs don't fill", 88, 9, 64 << 10},
		{"Ethernet's segments", 1460, 705, 256 << 10},
		{"an MSS of 4100 bytes, FPDUs of half that", 4100 + 12, 2041, 256 << 10},
	} {
		t.Run(tc.what, func(t *testing.T) {
			r := newReadServer(t, tc.mss, tc.buffer)
			fpdu := mpa.FPDULen(ddp.TaggedHeaderLen + tc.size)
			// First the peer takes fast what it asks for, so that TCP's window grows, and
			// with it the socket's buffer.
			buf := make([]byte, 1<<20)
			const few = 32
			total := uint64(0)
			for range 400 {
				r.ask(few, tc.size)
				if total += uint64(few * fpdu); !r.answered(total, patience) {
					t.Fatalf("%d bytes were sent, want %d", r.st.sent(), total)
				}
				for n, err := 1, error(nil); n > 0 && err == nil; {
					n, err = unix.Read(r.fd, buf)
				}
			}
			full := false
			for range 1000 {
				r.ask(few, tc.size)
				if total += uint64(few * fpdu); !r.answered(total, 100*time.Millisecond) {
					full = true
					break
				}
			}
			if !full {
				t.Fatal("the socket takes all responses of a peer that takes none")
			}
			r.wantFew(fpdu)
		})
	}
}

// TestTCPOptions: the sockets get the program's options (package transport asks the kernel for
// each), and those that the engine has of its own: with CRC segments of a multiple of four bytes,
// and buffers for connections within the host. Open reports what can't be, by name.
func TestTCPOptions(t *testing.T) {
	set := transport.TCPOptions{
		CongestionControl: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10, DSCP: 8, Device: "lo",
		KeepAlive: transport.KeepAlive{Idle: time.Minute}, UserTimeout: time.Second,
		MaxSegment: 1000, LocalReceiveBuffer: 1 << 20, LocalSendBuffer: 1 << 20,
	}
	own := transport.TCPOptions{MaxSegment: policy.RecordSegment,
		LocalReceiveBuffer: policy.LocalReceiveBuffer, LocalSendBuffer: policy.LocalSendBuffer}
	long, none := own, own
	long.MaxSegment = 0
	none.LocalReceiveBuffer, none.LocalSendBuffer = -1, -1
	for _, tc := range []struct {
		opts Options
		want transport.TCPOptions
	}{
		{Options{}, own},
		{Options{CRC: CRCRequired}, own},
		{Options{CRC: CRCOff}, long},
		{Options{TCP: set}, set},
		{Options{TCP: transport.TCPOptions{LocalReceiveBuffer: -1, LocalSendBuffer: -1}}, none},
	} {
		d := testkit.Must(New(&tc.opts).Open(""))(t).(*device)
		testkit.Equal(t, "the options", d.opts.Network.(*transport.TCP).Options(), tc.want)
		testkit.OK(t, d.Close())
	}
	_, err := New(&Options{TCP: transport.TCPOptions{CongestionControl: "no-such-thing"}}).Open("")
	wantErr(t, err, syscall.ENOENT)
	testkit.WantErr(t, "the option", err, syscall.ENOENT, `CongestionControl = "no-such-thing"`)
}

// TestTurnsGoOn: a message that takes many turns is sent to its end, whether the program polls
// or waits for an event.
func TestTurnsGoOn(t *testing.T) {
	size := 24 * policy.BudgetMost
	if testkit.Race {
		size = 8 * policy.BudgetMost
	}
	for _, spin := range []bool{false, true} {
		for _, op := range []provider.WROpcode{provider.WRRDMAWrite, provider.WRRDMARead} {
			a, b := tcpPair(t, Options{}, true, sideOptions{})
			mine := a.reg(size, provider.AccessLocalWrite)
			theirs := b.reg(size, everything)
			pattern(mine.b, 1)
			pattern(theirs.b, 2)
			a.send(provider.SendWR{
				Opcode: op, Flags: signaled, SGList: []provider.SGE{mine.sge(0, size)},
				RemoteAddr: theirs.to(0), RKey: theirs.m.STag(),
			})
			if !spin {
				a.arrives(1)
			}
			a.spin(1)
			// when a Read after it is answered, all of it has arrived
			if op == provider.WRRDMAWrite {
				a.send(provider.SendWR{
					Opcode: provider.WRRDMARead, Flags: signaled, RemoteAddr: theirs.to(0),
					RKey: theirs.m.STag(),
				})
				a.spin(1)
			}
			testkit.EqualBytes(t, fmt.Sprintf("the bytes of %v, spinning %v", op, spin), mine.b,
				theirs.b)
		}
	}
}
