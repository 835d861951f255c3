package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
	"github.com/govs-rdma/govs/provider/engine"
)

// readerFunc and writerFunc make an io.Reader and an io.Writer of a function.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

var errOwn = errors.New("an error of the test")

// TestConnReadFrom: readers that misbehave, or fail.
func TestConnReadFrom(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	n, err := c.ReadFrom(io.MultiReader(strings.NewReader("abc"), strings.NewReader("def")))
	if n != 6 || err != nil {
		t.Errorf("ReadFrom returns %d, %v", n, err)
	}
	n, err = c.ReadFrom(readerFunc(func(p []byte) (int, error) { return copy(p, "ghi"), errOwn }))
	wantErr(t, "ReadFrom of a reader that fails", err, errOwn, "readfrom rsocket")
	if n != 3 {
		t.Errorf("ReadFrom returns %d", n)
	}
	for _, wrong := range []int{-1, 1 << 20} {
		_, err = c.ReadFrom(readerFunc(func([]byte) (int, error) { return wrong, nil }))
		wantErr(t, "ReadFrom of a reader that miscounts", err, err, "returned")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the reader's panic is gone")
			}
		}()
		_, _ = c.ReadFrom(readerFunc(func([]byte) (int, error) { panic("of the reader") }))
	}()
	// A direction that was closed during the call sends nothing more.
	_, err = c.ReadFrom(readerFunc(func(p []byte) (int, error) { return len(p), c.CloseWrite() }))
	wantErr(t, "ReadFrom with CloseWrite in it", err, syscall.EPIPE)
	if got := testkit.Must(io.ReadAll(plainConn{s}))(t); string(got) != "abcdefghi" {
		t.Errorf("the peer reads %q", got)
	}
}

// TestConnWriteTo: writers that misbehave, or fail.
func TestConnWriteTo(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	testkit.Must(c.Write([]byte("abcdef")))(t)
	n, err := s.WriteTo(writerFunc(func(p []byte) (int, error) { return 1, nil }))
	wantErr(t, "WriteTo a writer that is short", err, io.ErrShortWrite, "writeto rsocket")
	if n != 1 {
		t.Errorf("WriteTo returns %d", n)
	}
	n, err = s.WriteTo(writerFunc(func(p []byte) (int, error) { return 2, errOwn }))
	wantErr(t, "WriteTo a writer that fails", err, errOwn)
	if n != 2 {
		t.Errorf("WriteTo returns %d", n)
	}
	_, err = s.WriteTo(writerFunc(func(p []byte) (int, error) { return len(p) + 1, nil }))
	wantErr(t, "WriteTo a writer that miscounts", err, err, "returned 4 for 3 bytes")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the writer's panic is gone")
			}
		}()
		_, _ = s.WriteTo(writerFunc(func([]byte) (int, error) { panic("of the writer") }))
	}()
	testkit.OK(t, c.Close())
	rest := new(bytes.Buffer)
	if n, err := s.WriteTo(rest); n != 3 || err != nil || rest.String() != "def" {
		t.Errorf("WriteTo returns %d, %v, and has written %q", n, err, rest)
	}
}

// TestConnWithoutCopies: ReadFrom makes its reader read into the send buffer, and WriteTo makes its
// writer write from the ring, even if io.Copy calls them.
func TestConnWithoutCopies(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	const total = 300_000
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(c, io.LimitReader(readerFunc(func(p []byte) (int, error) {
			if _, own := c.Owns(p); !own {
				t.Error("the reader reads into other memory than the send buffer")
			}
			return len(p), nil
		}), total))
		sent <- errors.Join(err, c.CloseWrite())
	}()
	n, err := io.Copy(writerFunc(func(p []byte) (int, error) {
		if ring, _ := s.Owns(p); !ring {
			t.Error("the writer writes from other memory than the ring")
		}
		return len(p), nil
	}), s)
	if n != total || err != nil {
		t.Errorf("io.Copy returns %d, %v", n, err)
	}
	testkit.OK(t, <-sent)
}

// TestConnCloseUnderReadFrom: Close does not wait for a reader or a writer that does not return,
// and their memory stays until they do.
func TestConnCloseUnderReadFrom(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	testkit.Must(s.Write([]byte("x")))(t)
	in, out, release := make(chan []byte), make(chan []byte), make(chan struct{})
	ended := make(chan error, 2)
	go func() {
		_, err := c.ReadFrom(readerFunc(func(p []byte) (int, error) {
			in <- p
			<-release
			p[0] = 1
			return 1, nil
		}))
		ended <- err
	}()
	go func() {
		_, err := c.WriteTo(writerFunc(func(p []byte) (int, error) {
			out <- p
			<-release
			return len(p) + int(p[0]) - 'x', nil
		}))
		ended <- err
	}()
	<-in
	<-out
	testkit.OK(t, c.Close())
	testkit.OK(t, s.Close())
	if err := vctx.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("the device is closed while memory of it is used: %v", err)
	}
	close(release)
	for range 2 {
		wantErr(t, "a call that was under way", <-ended, net.ErrClosed)
	}
}

// TestConnCloseWriteUnderWrite: CloseWrite ends a waiting Write, and the data that the Write has
// sent arrives.
func TestConnCloseWriteUnderWrite(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	type result struct {
		n   int
		err error
	}
	wrote := make(chan result, 1)
	go func() {
		n, err := c.Write(make([]byte, 1<<20))
		wrote <- result{n, err}
	}()
	first := testkit.Must(s.Read(make([]byte, 1)))(t) // so Write has begun
	time.Sleep(50 * time.Millisecond)                 // and has probably filled all buffers
	testkit.OK(t, c.CloseWrite())
	r := <-wrote
	wantErr(t, "Write", r.err, syscall.EPIPE, "write rsocket")
	if got := first + len(testkit.Must(io.ReadAll(plainConn{s}))(t)); got != r.n || r.n == 0 {
		t.Errorf("of %d bytes that were written, %d were read", r.n, got)
	}
}

// TestIPv6: IPv6 addresses.
func TestIPv6(t *testing.T) {
	vctx, _ := device(t)
	c, s := pair(t, vctx, netip.MustParseAddrPort("[::1]:0"), rsocket.Config{}, rsocket.Config{})
	if c.RemoteAddr().String() != s.LocalAddr().String() || c.LocalAddr().String() != s.RemoteAddr().String() ||
		!strings.HasPrefix(c.LocalAddr().String(), "[::1]:") {
		t.Errorf("the client is %v -> %v, the server %v -> %v", c.LocalAddr(), c.RemoteAddr(), s.LocalAddr(), s.RemoteAddr())
	}
	bothWays(t, c, s, 1<<18, 1<<14, false, false)
}

// TestDialContext: names, networks and invalid ones.
func TestDialContext(t *testing.T) {
	ctx := timeout(t)
	vctx, _ := device(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	dial := new(rsocket.Dialer).DialContext(vctx)
	for _, network := range []string{"tcp", "tcp4"} {
		accepted := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			accepted <- err
		}()
		c := testkit.Must(dial(ctx, network, "localhost:"+port))(t)
		testkit.OK(t, <-accepted)
		testkit.OK(t, c.Close())
	}
	for address, network := range map[string]string{"127.0.0.1:1": "udp", "127.0.0.1": "tcp", "127.0.0.1:nosuch": "tcp",
		"::1:1": "tcp", "[::1]:1": "tcp4"} {
		_, err := dial(ctx, network, address)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("dialling %s %s: %v", network, address, err)
		}
	}
}

// TestConnStats: the counters of a connection, and their text.
func TestConnStats(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{ReceiveBuffer: 4096}, rsocket.Config{})
	testkit.Must(c.Write(make([]byte, 3000)))(t)
	testkit.Must(io.ReadFull(s, make([]byte, 1000)))(t)
	sent, got := c.Stats(), s.Stats()
	if sent.Sent.Octets != 3000 || sent.Sent.Transfers != 2 || sent.Sent.Grants != 0 || got.Unread+1000 > 3000 {
		t.Errorf("the client has %+v, the server %+v", sent, got)
	}
	if got.Room != 4096 || got.Credits != rsocket.DefaultReceiveQueue || got.FreeSendBuffer != rsocket.DefaultSendBuffer {
		t.Errorf("the server may send: %+v", got)
	}
	testkit.OK(t, c.CloseWrite())
	testkit.Must(io.ReadAll(s))(t)
	if st := s.Stats(); !st.PeerShutdown || st.PeerDisconnected ||
		st.Received.Octets != 3000 || st.Received.Transfers != 2 {
		t.Errorf("after the peer's end, the server has %+v", st)
	}
	for _, words := range []string{c.LocalAddr().String(), "received 3000 in 2", "the peer writes no more"} {
		if !strings.Contains(s.String(), words) {
			t.Errorf("%q does not say %q", s.String(), words)
		}
	}
	testkit.OK(t, c.Close())
	testkit.OK(t, s.SetDeadline(time.Now().Add(patience)))
	for !s.Stats().PeerDisconnected { // a call has to process the message first
		if _, err := s.Write([]byte("x")); err != nil {
			break
		}
	}
	if !strings.Contains(s.String(), "disconnected") && s.Stats().Err == nil {
		t.Errorf("%v", s)
	}
}

// TestAllocs: reading and writing allocate nothing.
func TestAllocs(t *testing.T) {
	if testkit.Race {
		t.Skip("the race detector allocates")
	}
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	done := make(chan error, 1)
	for _, size := range []int{1, 64, 5000, 200000} {
		go func() { done <- echo(s, size) }()
		buf := make([]byte, size)
		trip := func() {
			if _, err := c.Write(buf); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				t.Fatal(err)
			}
		}
		trip()
		if n := testing.AllocsPerRun(200, trip); n >= 1 {
			t.Errorf("a round trip of %d bytes allocates %.1f times", size, n)
		}
		testkit.OK(t, s.SetReadDeadline(time.Unix(1, 0)))
		wantErr(t, "the echo", <-done, os.ErrDeadlineExceeded)
		testkit.OK(t, s.SetReadDeadline(time.Time{}))
	}
}

// TestImmediateData: on a device that supports RFC 7306, immediate data is not processed as a
// message, even if the memory of its receive contains an earlier message.
func TestImmediateData(t *testing.T) {
	ctx := timeout(t)
	_, addr := device(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
	t.Cleanup(func() { closeDevice(t, vctx) })
	lc := rsocket.ListenConfig{Config: rsocket.Config{SendQueue: 16, ReceiveQueue: 16}}
	l := testkit.Must(lc.Listen(ctx, vctx, "tcp", addr.String()))(t)
	defer l.Close()
	accepted := make(chan *rsocket.Conn, 1)
	go func() {
		c, _ := l.AcceptContext(ctx)
		accepted <- c
	}()
	r := new(rawPeer)
	var err error
	r.conn, err = rdmacm.Dial(ctx, vctx, l.Addr().(*net.TCPAddr).AddrPort(), r.config(t, good))
	testkit.OK(t, err)
	s := <-accepted
	t.Cleanup(func() {
		s.Close()
		testkit.OK(t, r.conn.Close())
	})
	r.peer = testkit.Must(proto.ParseHello(r.conn.PrivateData()))(t)
	read := make([]byte, 100)
	for range 40 { // more than there are receives
		r.message(t, proto.KindData, 4)
		testkit.Must(s.Read(read))(t)
	}
	sge := testkit.Must(r.mr.SGE(0, 4))(t)
	err = r.conn.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWriteWithImm,
		SGList: []ibverbs.SGE{sge}, RemoteAddr: r.peer.Data.Addr, RKey: r.peer.Data.Key})
	if err != nil && !errors.Is(err, ibverbs.ErrFlushed) {
		t.Error(err)
	}
	n, err := s.Read(read)
	wantErr(t, "Read", err, syscall.EPROTO, "immediate data")
	if n != 0 {
		t.Errorf("Read returns %d bytes", n)
	}
}

// residentKiB returns how much anonymous memory the process has, in KiB.
func residentKiB(t *testing.T) int {
	debug.FreeOSMemory()
	b := testkit.Must(os.ReadFile("/proc/self/status"))(t)
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the kernel does not say how much memory the process has")
	}
	return testkit.Must(strconv.Atoi(string(m[1])))(t)
}

// TestIdleMemory: how much memory an idle end of a connection takes on the engine. Its rings take
// none before they are used.
func TestIdleMemory(t *testing.T) {
	if testkit.Race {
		t.Skip("the race detector needs memory of its own")
	}
	const pairs = 100
	for name, tc := range map[string]struct {
		cfg  rsocket.Config
		most int // KiB
	}{"default": {rsocket.Config{}, 110}, "tiny": {tiny, 40}} {
		t.Run(name, func(t *testing.T) {
			vctx, addr := device(t)
			before := residentKiB(t)
			for range pairs {
				c, s := pair(t, vctx, addr, tc.cfg, tc.cfg)
				for _, ends := range [][2]*rsocket.Conn{{c, s}, {s, c}} {
					testkit.Must(ends[0].Write([]byte("x")))(t)
					testkit.Must(io.ReadFull(ends[1], make([]byte, 1)))(t)
				}
			}
			each := (residentKiB(t) - before) / (2 * pairs)
			t.Logf("%d KiB", each)
			if each > tc.most {
				t.Errorf("an idle end takes %d KiB, and %d at most are expected", each, tc.most)
			}
		})
	}
}
