package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// messages is a configuration with n receives of size bytes.
func messages(n, size int) *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{Receives: n, ReceiveSize: size}
}

// wantMessage receives and releases a message.
func wantMessage(t *testing.T, ctx context.Context, c *rdmacm.Conn, want []byte) {
	t.Helper()
	m := testkit.Must(c.Receive(ctx))(t)
	if !bytes.Equal(m.Data, want) || int(m.WC.ByteLen) != len(want) || m.WC.Opcode != ibverbs.WCRecv {
		t.Errorf("received %d bytes, %.40q, in %+v; want %d, %.40q", len(m.Data), m.Data, m.WC, len(want), want)
	}
	testkit.OK(t, m.Release())
}

// TestConnMessages is an echo: many more messages than there are receives, of all lengths that fit,
// in both directions, until the client ends the connection.
func TestConnMessages(t *testing.T) {
	ctx := timeout(t)
	const size = 5000
	client, server := pair(t, messages(2, size), messages(2, size))
	lengths := []int{0, 1, 5, 63, 64, 65, 4096, size, 0, size, 100}
	served, left := make(chan error, 1), make(chan error, 1)
	go func() {
		var err error
		for range lengths {
			var m rdmacm.Message
			if m, err = server.Receive(ctx); err == nil {
				err = errors.Join(server.SendBytes(ctx, m.Data), m.Release())
			}
			if err != nil {
				break
			}
		}
		served <- err
		_, err = server.Receive(ctx)
		left <- err
	}()
	for i, n := range lengths {
		msg := bytes.Repeat([]byte{byte('a' + i)}, n)
		testkit.OK(t, client.SendBytes(ctx, msg))
		clear(msg) // SendBytes does not keep it
		wantMessage(t, ctx, client, bytes.Repeat([]byte{byte('a' + i)}, n))
	}
	testkit.OK(t, <-served) // its last Send is complete as well
	testkit.OK(t, client.Shutdown(ctx))
	err := <-left
	if ctx.Err() != nil || !errors.Is(err, ibverbs.ErrFlushed) && !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("the client has left: %v, want ErrFlushed or ENOTCONN", err)
	}
	wantErr(t, "SendBytes after Shutdown", client.SendBytes(ctx, []byte("late")), os.ErrClosed, "Conn.SendBytes")
}

// TestConnMessagesAcceptorFirst: the accepting side may send first, to receives that Dial has
// posted in time.
func TestConnMessagesAcceptorFirst(t *testing.T) {
	ctx := timeout(t)
	for range repeats(20, 3) {
		client, server := pair(t, messages(1, 16), nil)
		testkit.OK(t, server.SendBytes(ctx, []byte("welcome")))
		wantMessage(t, ctx, client, []byte("welcome"))
	}
}

// TestConnSendBytesOfMany: more goroutines than the send queue has places, each with messages of
// all lengths, beside Sends and Writes of registered memory. Each message arrives once and whole,
// at one of several receiving goroutines.
func TestConnSendBytesOfMany(t *testing.T) {
	ctx := timeout(t)
	const senders, receives, size = 9, 8, 3000
	rounds := repeats(60, 6)
	a, b := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 4}}, messages(receives, size))
	here, _ := memory(t, a, size)
	_, there := memory(t, b, size)
	credit := make(chan struct{}, receives)
	for range receives {
		credit <- struct{}{}
	}
	var all sync.WaitGroup
	for k := range senders {
		all.Go(func() {
			for i := range rounds {
				msg := bytes.Repeat([]byte{byte(k)}, 4+(k*rounds+i)*7%(size-3))
				binary.BigEndian.PutUint32(msg, uint32(k*rounds+i))
				<-credit
				if err := a.SendBytes(ctx, msg); err != nil {
					t.Errorf("sender %d: %v", k, err)
					return
				}
				if err := a.Write(ctx, there, ibverbs.SGE{Addr: here.Addr(), Length: 8, LKey: here.LKey()}); err != nil {
					t.Errorf("writer %d: %v", k, err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	got := make(map[uint32]bool)
	receive := func() {
		m, err := b.Receive(ctx)
		if err != nil {
			t.Errorf("Receive: %v", err)
			return
		}
		id := binary.BigEndian.Uint32(m.Data)
		k := int(id) / rounds
		if want := 4 + int(id)*7%(size-3); len(m.Data) != want ||
			!bytes.Equal(m.Data[4:], bytes.Repeat([]byte{byte(k)}, want-4)) {
			t.Errorf("message %d has %d bytes, %.20x; want %d", id, len(m.Data), m.Data, want)
		}
		mu.Lock()
		if got[id] {
			t.Errorf("message %d came twice", id)
		}
		got[id] = true
		mu.Unlock()
		testkit.OK(t, m.Release())
		credit <- struct{}{}
	}
	const takers = 3
	for k := range takers {
		all.Go(func() {
			for range (senders*rounds + k) / takers {
				receive()
			}
		})
	}
	all.Wait()
	if len(got) != senders*rounds {
		t.Errorf("%d messages came, want %d", len(got), senders*rounds)
	}
}

// sentLast checks the error of a Send that makes the peer end the connection. It succeeds, because
// it has left, but siw may still be busy with it when the end comes
// (kernel-notes/siw-error-reports.md).
func sentLast(t *testing.T, err error) {
	t.Helper()
	wc := new(ibverbs.WCError)
	if !onKernel() || !errors.As(err, &wc) || wc.Status != ibverbs.WCLocQPOpErr {
		testkit.OK(t, err)
	}
}

// TestConnMessageTooLong: the receiving side's error says how long a message may be. The sending
// side's call has succeeded, and a later call says that the connection has ended.
func TestConnMessageTooLong(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, messages(2, 64))
	sentLast(t, client.SendBytes(ctx, make([]byte, 65)))
	_, err := server.Receive(ctx)
	wc := new(ibverbs.WCError)
	if !errors.As(err, &wc) || wc.Status != ibverbs.WCLocLenErr {
		t.Errorf("a message of 65 bytes: %v, want a WCError with %v", err, ibverbs.WCLocLenErr)
	}
	wantErr(t, "a message of 65 bytes", err, err, "which have 64 bytes", "ConnConfig.ReceiveSize")
	testkit.OK(t, client.Wait(ctx))
	if err := client.SendBytes(ctx, nil); err == nil {
		t.Error("SendBytes succeeds although the connection is over")
	}
}

// TestConnMessagesTooMany: messages that are not released leave no receive for the next one.
func TestConnMessagesTooMany(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, messages(2, 8))
	var held []rdmacm.Message
	for i := range 2 {
		testkit.OK(t, client.SendBytes(ctx, []byte{byte(i)}))
		held = append(held, testkit.Must(server.Receive(ctx))(t))
	}
	sentLast(t, client.SendBytes(ctx, []byte{2}))
	_, err := server.Receive(ctx)
	if !onKernel() { // siw does not say why a connection ends
		wantErr(t, "a message too many", err, syscall.ENOTCONN, "until Message.Release", "ConnConfig.Receives")
	}
	for i, m := range held {
		if !bytes.Equal(m.Data, []byte{byte(i)}) {
			t.Errorf("the message that was held is %x, want %x", m.Data, i)
		}
	}
}

// TestConnMessagesGivenUp: a Receive that is given up at any time takes no message, and Close ends
// waiting calls.
func TestConnMessagesGivenUp(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, messages(4, 8))
	for i := range repeats(200, 20) {
		brief, cancel := context.WithCancel(ctx)
		sent := make(chan error, 1)
		go func() { sent <- client.SendBytes(ctx, []byte{byte(i)}) }()
		timer := time.AfterFunc(time.Duration(i%50)*time.Microsecond, cancel)
		m, err := server.Receive(brief)
		if err != nil {
			wantErr(t, "a context that ends", err, context.Canceled, "Conn.Receive")
			m, err = server.Receive(ctx)
		}
		timer.Stop()
		cancel()
		testkit.OK(t, err)
		if !bytes.Equal(m.Data, []byte{byte(i)}) {
			t.Fatalf("message %d is %x", i, m.Data)
		}
		testkit.OK(t, m.Release())
		testkit.OK(t, <-sent)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	wantErr(t, "a context that has ended", client.SendBytes(ended, nil), context.Canceled, "Conn.SendBytes")

	closed := make(chan error, 3)
	for range cap(closed) {
		go func() {
			_, err := server.Receive(ctx)
			closed <- err
		}()
	}
	testkit.OK(t, server.Close())
	for range cap(closed) {
		wantErr(t, "Receive under Close", <-closed, os.ErrClosed)
	}
	wantErr(t, "SendBytes after Close", server.SendBytes(ctx, []byte("no")), os.ErrClosed, "Conn.SendBytes")
}

// TestConnSendBytesClosed: Close comes while goroutines send messages of growing lengths. No memory
// stays registered, as pair checks.
func TestConnSendBytesClosed(t *testing.T) {
	ctx := timeout(t)
	for range repeats(20, 3) {
		client, server := pair(t, nil, messages(64, 4096))
		var all sync.WaitGroup
		first := make(chan struct{}, 4)
		for range cap(first) {
			all.Go(func() {
				for n := 1; n <= 4096; n *= 2 { // fewer than there are receives
					err := client.SendBytes(ctx, make([]byte, n))
					if n == 1 {
						first <- struct{}{}
					}
					if err != nil {
						wantErr(t, "SendBytes under Close", err, os.ErrClosed)
						return
					}
				}
			})
		}
		all.Go(func() {
			for {
				m, err := server.Receive(ctx)
				if err != nil {
					return
				}
				_ = m.Release()
			}
		})
		for range cap(first) {
			<-first
		}
		testkit.OK(t, client.Close())
		all.Wait()
	}
}

// TestConnMessagesFaults: invalid calls.
func TestConnMessagesFaults(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	cq := testkit.Must(vctx.CreateCQ(16, nil))(t)
	defer cq.Close()
	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 1, MaxSGE: 1}}))(t)
	defer srq.Close()
	for _, c := range []struct {
		cfg   rdmacm.ConnConfig
		errno syscall.Errno
		words []string
	}{
		{rdmacm.ConnConfig{Receives: 1}, syscall.EINVAL, []string{"Receives is 1 and ReceiveSize 0"}},
		{rdmacm.ConnConfig{ReceiveSize: 1}, syscall.EINVAL, []string{"Receives is 0 and ReceiveSize 1"}},
		{rdmacm.ConnConfig{Receives: -1, ReceiveSize: 8}, syscall.EINVAL, []string{"Receives is -1"}},
		{rdmacm.ConnConfig{Receives: 1, ReceiveSize: -8}, syscall.EINVAL, []string{"ReceiveSize -8"}},
		{rdmacm.ConnConfig{Receives: 2, ReceiveSize: math.MaxInt}, syscall.EINVAL, []string{"2^32-1"}},
		{rdmacm.ConnConfig{Receives: 1 << 30, ReceiveSize: 1}, syscall.EINVAL, []string{"Receives is 1073741824"}},
		{rdmacm.ConnConfig{Receives: 1000, ReceiveSize: 1, Cap: ibverbs.QPCap{MaxRecvWR: 4}}, syscall.ENOMEM,
			[]string{"1000 receives", "MaxRecvWR"}},
		{rdmacm.ConnConfig{Receives: 1, ReceiveSize: 1, RecvCQ: cq}, syscall.EINVAL, []string{"ConnConfig.RecvCQ"}},
		{rdmacm.ConnConfig{Receives: 1, ReceiveSize: 1, SRQ: srq}, syscall.EINVAL, []string{"SRQ"}},
	} {
		_, err := rdmacm.Dial(ctx, vctx, l.Addr(), &c.cfg)
		wantErr(t, fmt.Sprintf("%d receives of %d", c.cfg.Receives, c.cfg.ReceiveSize), err, c.errno, c.words...)
	}
	client, server := pair(t, nil, messages(100, 8))
	_, err := client.Receive(ctx)
	wantErr(t, "no receives", err, syscall.EINVAL, "Conn.Receive", "ConnConfig.Receives")
	if _, init, err := server.QP().Query(); err != nil || init.Cap.MaxRecvWR < 100 {
		t.Errorf("a receive queue of %d (%v), want the 100 of Receives", init.Cap.MaxRecvWR, err)
	}
}

// TestSendBytesGivenUp: a message that was given up is still sent, and later messages do not
// overwrite it in memory.
func TestSendBytesGivenUp(t *testing.T) {
	ctx := timeout(t)
	dial := messages(4, 16)
	dial.NoOpeningWrite = true // so that the server's messages wait for the client
	client, server := pair(t, dial, messages(4, 16))
	const given = 3
	for i := range given {
		brief, cancel := context.WithCancel(ctx)
		msg := fmt.Appendf(nil, "given up %d", i)
		gave := make(chan error, 1)
		go func() { gave <- server.SendBytes(brief, msg) }()
		for testkit.Must(server.QP().Stats())(t).SendsPosted <= i && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
		wantErr(t, "a message that can't be sent yet", <-gave, context.Canceled, "Conn.SendBytes",
			"until the peer's first message")
		clear(msg)
	}
	last := make(chan error, 1)
	go func() { last <- server.SendBytes(ctx, []byte("the last")) }()
	testkit.OK(t, client.SendBytes(ctx, []byte("the first")))
	for i := range given {
		wantMessage(t, ctx, client, fmt.Appendf(nil, "given up %d", i))
	}
	wantMessage(t, ctx, client, []byte("the last"))
	testkit.OK(t, <-last)
}

// TestMessagesBesideVerbs: completions of the program's own work go to OnSend. Receive also returns
// what verbs deliver: immediate data, and a key that the peer has invalidated.
func TestMessagesBesideVerbs(t *testing.T) {
	ctx := timeout(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	l := testkit.Must(rdmacm.ListenName(ctx, vctx, "127.0.0.1:0", nil))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		if req, err := l.Accept(ctx); err == nil {
			c, err := req.Accept(ctx, messages(4, 16))
			testkit.OK(t, err)
			accepted <- c
		}
	}()
	var own []uint64
	a := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{
		OnSend: func(wc *ibverbs.WC) { own = append(own, wc.WRID) }}))(t)
	defer a.Close()
	b := <-accepted
	defer b.Close()

	empty := ibverbs.NewWrite(ibverbs.RemoteRegion{})
	empty.WRID = 7
	testkit.OK(t, a.QP().PostSend(empty))
	testkit.OK(t, a.SendBytes(ctx, []byte("beside")))
	wantMessage(t, ctx, b, []byte("beside"))
	if len(own) != 1 || own[0] != 7 {
		t.Errorf("OnSend got the WRIDs %v, want 7 once", own)
	}

	testkit.OK(t, a.Do(ctx, ibverbs.NewSendWithImm(0xfffefdfc)))
	m := testkit.Must(b.Receive(ctx))(t)
	if len(m.Data) != 0 || m.WC.Flags != ibverbs.WCWithImm || m.WC.Imm != 0xfffefdfc {
		t.Errorf("a Send with immediate data: %d bytes, %+v", len(m.Data), m.WC)
	}
	testkit.OK(t, m.Release())

	mr := testkit.Must(b.PD().AllocMR(16, allRights|ibverbs.AccessRemoteInvalidate))(t)
	defer mr.Close()
	key := mr.RKey()
	invalidate := ibverbs.NewSend()
	invalidate.Opcode, invalidate.InvalidateRKey = ibverbs.WRSendWithInv, key
	testkit.OK(t, a.Do(ctx, invalidate))
	m = testkit.Must(b.Receive(ctx))(t)
	if m.WC.Flags != ibverbs.WCWithInv || m.WC.InvalidatedRKey != key {
		t.Errorf("a Send that invalidates %#x: %+v", key, m.WC)
	}
	testkit.OK(t, m.Release())
	here, _ := memory(t, a, 16)
	wantErr(t, "a Send with payload and immediate data", a.Do(ctx, ibverbs.NewSendWithImm(1, sge(t, here, 0, 1))),
		errors.ErrUnsupported, "RFC 7306")
}

// TestImmNeedsExtensions: if the engine has no immediate data, the error says how to enable it.
func TestImmNeedsExtensions(t *testing.T) {
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 16)
	_, there := memory(t, b, 16)
	for name, wr := range map[string]ibverbs.SendWR{
		"NewSendWithImm":  ibverbs.NewSendWithImm(1),
		"NewWriteWithImm": ibverbs.NewWriteWithImm(there, 1, sge(t, here, 0, 16)),
	} {
		wantErr(t, name, a.Do(timeout(t), wr), errors.ErrUnsupported, "engine.Options.Extensions")
	}
}
