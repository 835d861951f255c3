//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// messenger is our end of a connection to a C program: memory for messages of one size, and
// receives for all expected messages.
type messenger struct {
	t       *testing.T
	ctx     context.Context
	conn    *rdmacm.Conn
	size    int
	in, out *ibverbs.MR
}

// openDevice opens a device of a provider for the test.
func openDevice(t *testing.T, provider string) *ibverbs.Context {
	t.Helper()
	vctx, _, err := openProvider(provider, netip.MustParseAddr(siwAddr), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vctx.Close(); err != nil {
			t.Errorf("closing the device: %v", err)
		}
	})
	return vctx
}

// config makes the connection receive count messages of size bytes, and send as many.
func (m *messenger) config(vctx *ibverbs.Context, size, count int) *rdmacm.ConnConfig {
	m.t.Helper()
	pd, err := vctx.AllocPD()
	if err != nil {
		m.t.Fatal(err)
	}
	m.cleanup("PD", pd.Close)
	m.size = size
	for _, mr := range []**ibverbs.MR{&m.in, &m.out} {
		if *mr, err = pd.AllocMR(size*count, ibverbs.AccessLocalWrite); err != nil {
			m.t.Fatal(err)
		}
		m.cleanup("MR", (*mr).Close)
	}
	for i := range m.out.Bytes() {
		m.out.Bytes()[i] = byte(i)
	}
	return &rdmacm.ConnConfig{
		PD: pd, Cap: ibverbs.QPCap{MaxSendWR: count + 1, MaxRecvWR: count + 1},
		Prepare: func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			for i := range count {
				sge, err := m.in.SGE(i*size, size)
				if err != nil {
					return err
				}
				if err := conn.QP().PostRecv(ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{sge}}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (m *messenger) cleanup(what string, closeIt func() error) {
	m.t.Cleanup(func() {
		if err := closeIt(); err != nil {
			m.t.Errorf("closing the %s: %v", what, err)
		}
	})
}

// dial connects to a C program.
func dial(t *testing.T, vctx *ibverbs.Context, port uint16, size, count int) *messenger {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	m := &messenger{t: t, ctx: ctx}
	conn, err := rdmacm.Dial(ctx, vctx, netip.MustParseAddrPort(addrOf(port)), m.config(vctx, size, count))
	if err != nil {
		t.Fatal(err)
	}
	m.conn = conn
	m.cleanup("connection", conn.Close)
	return m
}

// listen listens for C programs.
func listen(t *testing.T, vctx *ibverbs.Context, port uint16) *rdmacm.Listener {
	t.Helper()
	l, err := rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort(addrOf(port)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("closing the listener: %v", err)
		}
	})
	return l
}

// accept accepts a C program's connection.
func accept(t *testing.T, vctx *ibverbs.Context, l *rdmacm.Listener, size, count int) *messenger {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	m := &messenger{t: t, ctx: ctx}
	req, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := req.Accept(ctx, m.config(vctx, size, count))
	if err != nil {
		t.Fatal(err)
	}
	m.conn = conn
	m.cleanup("connection", conn.Close)
	return m
}

// send sends count messages, then waits for their completions.
func (m *messenger) send(count int) {
	m.t.Helper()
	for i := range count {
		sge, err := m.out.SGE(i*m.size, m.size)
		if err == nil {
			err = m.conn.QP().PostSend(ibverbs.SendWR{WRID: uint64(i), Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}})
		}
		if err != nil {
			m.t.Fatalf("send %d: %v", i, err)
		}
	}
	m.want(m.conn.SendCQ(), count, ibverbs.WCSend)
}

// receive waits for count messages, in order, each with its length.
func (m *messenger) receive(count int) {
	m.t.Helper()
	m.want(m.conn.RecvCQ(), count, ibverbs.WCRecv)
}

// want waits for count completions, in order.
func (m *messenger) want(cq *ibverbs.CQ, count int, op ibverbs.WCOpcode) {
	m.t.Helper()
	if err := m.completions(m.ctx, cq, count, op); err != nil {
		m.t.Fatal(err)
	}
}

// completions waits for count completions, in order, as long as ctx permits.
func (m *messenger) completions(ctx context.Context, cq *ibverbs.CQ, count int, op ibverbs.WCOpcode) error {
	wcs := make([]ibverbs.WC, 1)
	for i := range count {
		if _, err := cq.PollWait(ctx, wcs); err != nil {
			return fmt.Errorf("%v %d: %w", op, i, err)
		}
		wc := wcs[0]
		if err := wc.Err(); err != nil {
			return fmt.Errorf("%v %d: %w", op, i, errors.Join(err, m.conn.QP().Cause()))
		}
		if wc.Opcode != op || wc.WRID != uint64(i) || op == ibverbs.WCRecv && wc.ByteLen != uint32(m.size) {
			return fmt.Errorf("%v %d: %+v", op, i, wc)
		}
	}
	return nil
}

// acceptFirst starts a C program that connects to l, sends a message of size bytes at once and then
// waits. l listens on a port. acceptFirst receives the message. If siw does not read it,
// acceptFirst starts again.
func acceptFirst(t *testing.T, vctx *ibverbs.Context, l *rdmacm.Listener, port uint16, size int,
	start func() *program) (*messenger, *program) {
	t.Helper()
	for {
		p := start()
		m := accept(t, vctx, l, size, 1)
		ctx, cancel := context.WithTimeout(m.ctx, siwhang.Limit)
		err := m.completions(ctx, m.conn.RecvCQ(), 1, ibverbs.WCRecv)
		cancel()
		if err == nil {
			return m, p
		}
		if vctx.Provider() != "kernel" || !errors.Is(err, context.DeadlineExceeded) ||
			!siwhang.Unread(t, port) {
			t.Fatalf("%v\n%s: stdout:\n%s\nstderr:\n%s", err, p, &p.stdout, &p.stderr)
		}
		p.kill()
	}
}

// received returns the bytes of all received messages.
func (m *messenger) received() []byte { return bytes.Clone(m.in.Bytes()) }

// ended waits until the C program has ended the connection.
func (m *messenger) ended() {
	m.t.Helper()
	if err := m.conn.Wait(m.ctx); err != nil {
		m.t.Errorf("the C program doesn't end the connection: %v", err)
	}
}

// disconnect ends the connection.
func (m *messenger) disconnect() {
	m.t.Helper()
	if err := m.conn.Disconnect(); err != nil {
		m.t.Error(err)
	}
	m.ended()
}

// overProviders runs a test with each provider at our end.
func overProviders(t *testing.T, name string, test func(t *testing.T, vctx *ibverbs.Context)) {
	for _, p := range providers {
		t.Run(fmt.Sprintf("%s, our side %s", name, p), func(t *testing.T) { test(t, openDevice(t, p)) })
	}
}
