package rsocket_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// rawPeer is a peer that sends whatever a test wants.
type rawPeer struct {
	conn *rdmacm.Conn
	mr   *ibverbs.MR // the memory for its sends and receives
	ring *ibverbs.MR // its ring and, at the end, its SGL
	peer proto.Hello
}

// rawRing is the length of a raw peer's ring.
const rawRing = 8192

// edit changes valid private data.
type edit func(h *proto.Hello) []byte

func good(h *proto.Hello) []byte { return h.Append(nil) }

// config returns the configuration of a connection with private data that edit makes.
func (r *rawPeer) config(t testing.TB, hello edit) *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		NoOpeningWrite: true,
		Cap:            ibverbs.QPCap{MaxRecvWR: 128, MaxSendWR: 512},
		Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) error {
			r.mr = testkit.Must(c.PD().AllocMR(1<<17, ibverbs.AccessLocalWrite))(t)
			r.ring = testkit.Must(c.PD().AllocMR(rawRing+32, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
			t.Cleanup(func() { testkit.OK(t, errors.Join(r.mr.Close(), r.ring.Close())) })
			for range 100 {
				sge := testkit.Must(r.mr.SGE(1<<16, 4))(t)
				if err := c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}}); err != nil {
					return err
				}
			}
			param.PrivateData = hello(&proto.Hello{
				Credits: 100,
				SGL:     proto.Region{Addr: r.ring.Addr() + rawRing, Key: r.ring.RKey(), Len: 2},
				Data:    proto.Region{Addr: r.ring.Addr(), Key: r.ring.RKey(), Len: rawRing / 2},
			})
			return nil
		},
	}
}

// dialRaw connects a raw peer to a listener, and returns both ends.
func dialRaw(t *testing.T, cfg rsocket.Config) (*rawPeer, *rsocket.Conn) {
	t.Helper()
	ctx := timeout(t)
	vctx, addr := device(t)
	lc := rsocket.ListenConfig{Config: cfg}
	l := testkit.Must(lc.Listen(ctx, vctx, "tcp", addr.String()))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	var s *rsocket.Conn
	go func() {
		var err error
		s, err = l.AcceptContext(ctx)
		accepted <- err
	}()
	r := new(rawPeer)
	var err error
	r.conn, err = rdmacm.Dial(ctx, vctx, l.Addr().(*net.TCPAddr).AddrPort(), r.config(t, good))
	testkit.OK(t, err)
	testkit.OK(t, <-accepted)
	r.peer = testkit.Must(proto.ParseHello(r.conn.PrivateData()))(t)
	t.Cleanup(func() {
		s.Close()
		testkit.OK(t, r.conn.Close())
	})
	return r, s
}

// send sends bytes as a message.
func (r *rawPeer) send(t *testing.T, b []byte) {
	t.Helper()
	copy(r.mr.Bytes(), b)
	sge := testkit.Must(r.mr.SGE(0, len(b)))(t)
	if err := r.conn.Send(timeout(t), sge); !r.mayFail(t, err) {
		t.Errorf("the raw peer sends: %v", err)
	}
}

// mayFail reports whether work of the raw peer may fail this way, because its connection ends when
// it breaks the protocol. siw then completes the Send or Write that it was sending with
// LOC_QP_OP_ERR (kernel-notes/siw-error-reports.md), and flushes later work. The test has to check
// that the other side ended the connection, and why.
func (r *rawPeer) mayFail(t *testing.T, err error) bool {
	t.Helper()
	var work *ibverbs.WCError
	if !ondevice.OnSiw() || !errors.As(err, &work) || work.Status != ibverbs.WCLocQPOpErr {
		return err == nil || errors.Is(err, ibverbs.ErrFlushed)
	}
	select {
	case <-r.conn.Done():
		return true
	case <-timeout(t).Done():
		return false
	}
}

// message sends a message of a kind and a number.
func (r *rawPeer) message(t *testing.T, kind, value uint32) {
	t.Helper()
	r.send(t, binary.NativeEndian.AppendUint32(nil, kind<<29|value))
}

// write writes to the memory of the peer.
func (r *rawPeer) write(t *testing.T, addr uint64, key uint32, b []byte) {
	t.Helper()
	copy(r.mr.Bytes(), b)
	sge := testkit.Must(r.mr.SGE(0, len(b)))(t)
	dst := ibverbs.RemoteRegion{Addr: addr, Len: uint64(len(b)), RKey: key}
	if err := r.conn.Write(timeout(t), dst, sge); !r.mayFail(t, err) {
		t.Errorf("the raw peer writes: %v", err)
	}
}

// receive returns the next message other than credits.
func (r *rawPeer) receive(t *testing.T) proto.Message {
	t.Helper()
	var wc [1]ibverbs.WC
	for {
		testkit.Must(r.conn.RecvCQ().PollWait(timeout(t), wc[:]))(t)
		testkit.OK(t, r.conn.Err(&wc[0]))
		m := proto.Message(binary.NativeEndian.Uint32(r.mr.Bytes()[1<<16:]))
		if m.Kind() != proto.KindCredits {
			return m
		}
	}
}

// grant writes an entry of the peer's SGL.
func (r *rawPeer) grant(t *testing.T, entry int, region proto.Region) {
	t.Helper()
	b := binary.NativeEndian.AppendUint64(nil, region.Addr)
	b = binary.NativeEndian.AppendUint32(b, region.Key)
	b = binary.NativeEndian.AppendUint32(b, region.Len)
	r.write(t, r.peer.SGL.Addr+uint64(16*entry), r.peer.SGL.Key, b)
}

// TestConnHostile: a peer that breaks the protocol ends its connection, and the error says how.
func TestConnHostile(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, r *rawPeer)
		say  string
	}{
		{"data of nothing", func(t *testing.T, r *rawPeer) { r.message(t, proto.KindData, 0) }, "data of 0 bytes"},
		{"data beyond the half", func(t *testing.T, r *rawPeer) { r.message(t, proto.KindData, 65537) },
			"65537 bytes; the half of the ring that it writes has room for 65536"},
		{"more data than credits", func(t *testing.T, r *rawPeer) {
			for range 385 {
				r.message(t, proto.KindData, 1)
			}
		}, "more data messages than it has credits for"},
		{"data after its end", func(t *testing.T, r *rawPeer) {
			r.message(t, proto.KindControl, proto.ControlShutdown)
			r.message(t, proto.KindData, 1)
		}, "after its shutdown"},
		{"credits for nothing", func(t *testing.T, r *rawPeer) { r.message(t, proto.KindCredits, 101) },
			"grants credits up to 101"},
		{"iomap", func(t *testing.T, r *rawPeer) { r.message(t, proto.KindIOMap, 0) }, "iomap entry"},
		{"reserved", func(t *testing.T, r *rawPeer) { r.message(t, 5, 0) }, "kind 5"},
		{"control", func(t *testing.T, r *rawPeer) { r.message(t, proto.KindControl, 9) }, "kind 7 with 9"},
		{"short", func(t *testing.T, r *rawPeer) { r.send(t, []byte{1, 2, 3}) }, "message of 3 bytes"},
		{"empty", func(t *testing.T, r *rawPeer) { r.send(t, nil) }, "message of 0 bytes"},
		{"credits again and again", func(t *testing.T, r *rawPeer) {
			for range 20 {
				r.message(t, proto.KindCredits, 100)
			}
		}, "change nothing"},
		{"a grant of too much", func(t *testing.T, r *rawPeer) {
			r.grant(t, 1, proto.Region{Addr: r.ring.Addr() + rawRing/2, Key: r.ring.RKey(), Len: 1 << 31})
			r.message(t, proto.KindCredits, 100)
			r.message(t, proto.KindCredits, 100)
		}, "grants 2147483648 bytes at "},
		{"a grant elsewhere", func(t *testing.T, r *rawPeer) {
			r.grant(t, 1, proto.Region{Addr: 0xffffffffffffff00, Key: 7, Len: 4096})
			r.message(t, proto.KindCredits, 100)
			r.message(t, proto.KindCredits, 100)
		}, "grants 4096 bytes at 0xffffffffffffff00"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, s := dialRaw(t, rsocket.Config{})
			did := make(chan struct{})
			go func() {
				defer close(did)
				tc.do(t, r)
			}()
			defer func() { <-did }()
			testkit.OK(t, s.SetDeadline(time.Now().Add(patience)))
			// It writes, and does not read, which would give the peer credits.
			_, err := s.Write(make([]byte, 1<<20))
			wantErr(t, "the call", err, syscall.EPROTO, "rsocket protocol: the peer", tc.say)
			select {
			case <-r.conn.Done():
			case <-timeout(t).Done():
				t.Error("the peer still has its connection")
			}
			testkit.OK(t, s.Close())
		})
	}
}

// TestConnHostileMessageTooLong: the message already ends the connection in iWARP.
func TestConnHostileMessageTooLong(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	did := make(chan struct{})
	go func() {
		defer close(did)
		r.send(t, make([]byte, 5))
	}()
	defer func() { <-did }()
	_, err := s.Read(make([]byte, 10))
	wantErr(t, "Read", err, syscall.ECONNRESET)
}

// TestConnHostileWrite: the peer cannot write outside the ring.
func TestConnHostileWrite(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	did := make(chan struct{})
	go func() {
		defer close(did)
		r.write(t, r.peer.SGL.Addr+31, r.peer.SGL.Key, make([]byte, 2))
	}()
	defer func() { <-did }()
	_, err := s.Read(make([]byte, 10))
	wantErr(t, "Read", err, syscall.ECONNRESET)
}

// TestConnVanishes: the end of a connection without the end of the stream is not io.EOF.
func TestConnVanishes(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	r.message(t, proto.KindData, 3)
	got := make([]byte, 10)
	if n, err := s.Read(got); n != 3 || err != nil {
		t.Errorf("Read returns %d, %v", n, err)
	}
	testkit.OK(t, r.conn.Disconnect())
	_, err := s.Read(got)
	wantErr(t, "Read", err, syscall.ECONNRESET)
	_, err = s.Write(got)
	wantErr(t, "Write", err, syscall.ECONNRESET)
	testkit.OK(t, s.Close())
}

// TestConnAcceptorIsSilent: an acceptor sends nothing before the peer's first message, even if it
// closes.
func TestConnAcceptorIsSilent(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{Inline: 16})
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, 4))
		wrote <- err
	}()
	select {
	case err := <-wrote:
		t.Errorf("Write before the peer's first message returns %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if st := s.Stats(); st.Sent.Transfers+st.Received.Grants != 0 {
		t.Errorf("%+v", st)
	}
	r.message(t, proto.KindData, 1)
	testkit.OK(t, <-wrote)
	if n := s.Stats().Sent.Transfers; n != 1 {
		t.Errorf("after the first message, there are %d transfers", n)
	}

	// The end of the stream has to wait as well. A Write does not.
	r, s = dialRaw(t, rsocket.Config{})
	go func() {
		_, err := s.Write(make([]byte, 4))
		wrote <- err
	}()
	time.Sleep(20 * time.Millisecond)
	testkit.OK(t, s.CloseWrite())
	wantErr(t, "Write", <-wrote, syscall.EPIPE)
	r.message(t, proto.KindData, 1)
	testkit.Must(s.Read(make([]byte, 1)))(t)
	if m := r.receive(t); m != proto.Shutdown {
		t.Errorf("the peer got %v, and not the shutdown", m)
	}

	// It is sent without another call by the program.
	r, s = dialRaw(t, rsocket.Config{})
	testkit.OK(t, s.CloseWrite())
	r.message(t, proto.KindData, 1)
	if m := r.receive(t); m != proto.Shutdown {
		t.Errorf("the peer of a program that waits for nothing got %v, and not the shutdown", m)
	}
	// A call that is waiting goes on without it.
	testkit.Must(s.Read(make([]byte, 1)))(t)
	r.message(t, proto.KindData, 1)
	testkit.Must(s.Read(make([]byte, 1)))(t)

	_, s = dialRaw(t, rsocket.Config{})
	testkit.OK(t, s.CloseWrite())
	began := time.Now()
	testkit.OK(t, s.Close())
	if d := time.Since(began); d > time.Second {
		t.Errorf("Close of a connection that has to be silent took %v", d)
	}
}

// TestConnListenerRefuses: a peer whose private data is not rsocket's gets no connection, and the
// listener goes on.
func TestConnListenerRefuses(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	var refused atomic.Int64
	lc := rsocket.ListenConfig{Refused: func(peer netip.AddrPort, err error) {
		refused.Add(1)
		if !peer.IsValid() || err == nil {
			t.Errorf("refused %v: %v", peer, err)
		}
	}}
	l := testkit.Must(lc.Listen(ctx, vctx, "tcp", addr.String()))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	bad := []edit{
		func(*proto.Hello) []byte { return []byte("hello") },
		version2,
		func(h *proto.Hello) []byte {
			h.Credits = 0
			return h.Append(nil)
		},
		func(*proto.Hello) []byte { return make([]byte, 40) },
	}
	for _, hello := range bad {
		r := new(rawPeer)
		_, err := rdmacm.Dial(ctx, vctx, to, r.config(t, hello))
		wantErr(t, "Dial", err, syscall.ECONNREFUSED)
	}
	c := testkit.Must(rsocket.Dial(ctx, vctx, "tcp", to.String()))(t)
	testkit.OK(t, <-accepted)
	testkit.OK(t, c.Close())
	if n := int(refused.Load()); n != len(bad) {
		t.Errorf("%d peers were refused, and not %d", n, len(bad))
	}
}

func version2(h *proto.Hello) []byte {
	data := h.Append(nil)
	data[0] = 2
	return data
}

// TestConnDialRefuses: Dial refuses such private data of a listener, with the reason.
func TestConnDialRefuses(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	for say, hello := range map[string]edit{
		"no private data":  func(*proto.Hello) []byte { return nil },
		"speaks version 2": version2,
		"bytes; rsocket's": func(h *proto.Hello) []byte { return h.Append(nil)[:12] },
		"SGL of 0 entries": func(h *proto.Hello) []byte {
			h.SGL.Len = 0
			return h.Append(nil)
		},
	} {
		done := make(chan error, 1)
		go func() {
			req, err := l.Accept(ctx)
			if err != nil {
				done <- err
				return
			}
			r := new(rawPeer)
			c, err := req.Accept(ctx, r.config(t, hello))
			if err == nil {
				err = errors.Join(c.Wait(ctx), c.Close())
			}
			done <- err
		}()
		_, err := rsocket.Dial(ctx, vctx, "tcp", l.Addr().String())
		wantErr(t, "Dial", err, syscall.EPROTO, say, "dial rsocket")
		if broke := (*proto.Error)(nil); !errors.As(err, &broke) {
			t.Errorf("Dial: %v", err)
		}
		testkit.OK(t, <-done)
	}
}

// TestConnDialErrors: no listener, and a deadline.
func TestConnDialErrors(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", addr.String()))(t)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	testkit.OK(t, l.Close())
	_, err := rsocket.Dial(ctx, vctx, "tcp", to.String())
	wantErr(t, "Dial to nobody", err, syscall.ECONNREFUSED, "dial rsocket "+to.String())
	past := rsocket.Dialer{Timeout: time.Nanosecond}
	_, err = past.Dial(ctx, vctx, "tcp", to.String())
	wantErr(t, "Dial without time", err, os.ErrDeadlineExceeded)
	wantErr(t, "Dial without time", err, context.DeadlineExceeded)
	if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%v is no timeout", err)
	}
	for _, cfg := range []rsocket.Config{{SendBuffer: 1}, {ReceiveBuffer: -1}, {SendQueue: 15}, {ReceiveQueue: 1 << 20},
		{Inline: 3}, {KeepAlive: time.Nanosecond}} {
		d := rsocket.Dialer{Config: cfg}
		_, err := d.Dial(ctx, vctx, "tcp", to.String())
		wantErr(t, "Dial", err, syscall.EINVAL, "of rsocket.Config is ", "must be")
		lc := rsocket.ListenConfig{Config: cfg}
		_, err = lc.Listen(ctx, vctx, "tcp", addr.String())
		wantErr(t, "Listen", err, syscall.EINVAL, "listen rsocket", "of rsocket.Config is ", "must be")
	}
}

// TestConnListener: deadlines and Close end a waiting Accept.
func TestConnListener(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", addr.String()))(t)
	accept := func() <-chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			failed <- err
		}()
		time.Sleep(10 * time.Millisecond)
		return failed
	}
	waiting := accept()
	testkit.OK(t, l.SetDeadline(time.Now().Add(10*time.Millisecond)))
	wantErr(t, "Accept with a deadline", <-waiting, os.ErrDeadlineExceeded, "accept rsocket")
	wantErr(t, "Accept after it", <-accept(), os.ErrDeadlineExceeded)
	testkit.OK(t, l.SetDeadline(time.Time{}))
	ended, end := context.WithCancel(ctx)
	end()
	_, err := l.AcceptContext(ended)
	wantErr(t, "AcceptContext", err, context.Canceled)
	waiting = accept()
	testkit.OK(t, l.SetDeadline(time.Unix(1, 0)))
	wantErr(t, "Accept with a past deadline", <-waiting, os.ErrDeadlineExceeded)
	testkit.OK(t, l.SetDeadline(time.Now().Add(time.Hour)))
	waiting = accept()
	testkit.OK(t, l.Close())
	wantErr(t, "Accept when the listener is closed", <-waiting, net.ErrClosed)
	wantErr(t, "Accept after Close", <-accept(), net.ErrClosed)
	wantErr(t, "a second Close", l.Close(), net.ErrClosed)
	wantErr(t, "SetDeadline after Close", l.SetDeadline(time.Now()), net.ErrClosed)
}

// TestConnDialGivenUp: a Dial whose context ends while the peer does not answer leaves nothing
// behind after the device has freed the connection.
func TestConnDialGivenUp(t *testing.T) {
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t) // no Accept follows
	d := rsocket.Dialer{Timeout: 50 * time.Millisecond}
	_, err := d.Dial(timeout(t), vctx, "tcp", l.Addr().String())
	wantErr(t, "Dial", err, os.ErrDeadlineExceeded)
	if !strings.Contains(err.Error(), "Timeout of the Dialer, 50ms, has passed") {
		t.Errorf("the error does not say whose time is up: %v", err)
	}
	testkit.OK(t, l.Close())
}
