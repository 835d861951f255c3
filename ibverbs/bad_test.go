package ibverbs_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// Invalid uses. The tests of this file run on the engine, and on siw through TestOnSiw.

// refused checks that a call failed with an *Error that wraps one of the errnos.
func refused(t *testing.T, what string, err error, errnos ...syscall.Errno) {
	t.Helper()
	var call *ibverbs.Error
	if !errors.As(err, &call) || call.Op == "" {
		t.Errorf("%s: got %v, want an *Error that names the call", what, err)
		return
	}
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return
		}
	}
	t.Errorf("%s: got %v, want one of %v", what, err, errnos)
}

// enodata is ENODATA of Linux. FreeBSD, where this file is only vetted, lacks the name.
const enodata = syscall.Errno(0x3d)

func TestBadSizes(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	for name, f := range map[string]func() error{
		"port 0":           func() error { _, err := vctx.QueryPort(0); return err },
		"port 2":           func() error { _, err := vctx.QueryPort(2); return err },
		"GID of port 0":    func() error { _, err := vctx.QueryGID(0, 0); return err },
		"GID -1":           func() error { _, err := vctx.QueryGID(1, -1); return err },
		"GID 1 million":    func() error { _, err := vctx.QueryGID(1, 1e6); return err },
		"P_Key 1000":       func() error { _, err := vctx.QueryPkey(1, 1000); return err },
		"P_Key of port 9":  func() error { _, err := vctx.QueryPkey(9, 1000); return err },
		"CQ of 0":          func() error { _, err := vctx.CreateCQ(0, nil); return err },
		"CQ of -1":         func() error { _, err := vctx.CreateCQ(-1, nil); return err },
		"CQ of 2^31-1":     func() error { _, err := vctx.CreateCQ(math.MaxInt32, nil); return err },
		"CQ of 2^63-1":     func() error { _, err := vctx.CreateCQ(math.MaxInt, nil); return err },
		"vector -1":        func() error { _, err := vctx.CreateCQ(1, &ibverbs.CQOptions{CompVector: -1}); return err },
		"vector 1 million": func() error { _, err := vctx.CreateCQ(1, &ibverbs.CQOptions{CompVector: 1e6}); return err },
	} {
		refused(t, name, f(), syscall.EINVAL, enodata, syscall.EIO, syscall.ENOENT)
	}

	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	for name, f := range map[string]func() error{
		"region of nothing":          func() error { _, err := pd.RegMR(nil, 0); return err },
		"region of 0":                func() error { _, err := pd.RegMR([]byte{}, ibverbs.AccessLocalWrite); return err },
		"fresh region of 0":          func() error { _, err := pd.AllocMR(0, 0); return err },
		"fresh region of -1":         func() error { _, err := pd.AllocMR(-1, 0); return err },
		"fresh region of 2^63-1":     func() error { _, err := pd.AllocMR(math.MaxInt, 0); return err },
		"fresh region of 2^62":       func() error { _, err := pd.AllocMR(math.MaxInt, 0); return err },
		"remote write without local": func() error { _, err := pd.RegMR(make([]byte, 8), ibverbs.AccessRemoteWrite); return err },
	} {
		refused(t, name, f(), syscall.EINVAL, syscall.ENOMEM)
	}

	cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
	defer cq.Close()
	for name, c := range map[string]ibverbs.QPInitAttr{
		"-1 sends":          {Cap: ibverbs.QPCap{MaxSendWR: -1, MaxRecvWR: 1}},
		"-1 receives":       {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: -1}},
		"-1 entries":        {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxSendSGE: -1}},
		"-1 bytes inline":   {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxInlineData: -1}},
		"2^40 sends":        {Cap: ibverbs.QPCap{MaxSendWR: min(1<<40, math.MaxInt)}},
		"2^31-1 sends":      {Cap: ibverbs.QPCap{MaxSendWR: math.MaxInt32}},
		"2^31-1 receives":   {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: math.MaxInt32}},
		"2^31-1 entries":    {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxSendSGE: math.MaxInt32}},
		"2^31-1 of receive": {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxRecvSGE: math.MaxInt32}},
		"2^31-1 inline":     {Cap: ibverbs.QPCap{MaxSendWR: 1, MaxInlineData: math.MaxInt32}},
		"another type":      {Cap: ibverbs.QPCap{MaxSendWR: 1}, Type: 77},
	} {
		c.SendCQ, c.RecvCQ = cq, cq
		_, err := pd.CreateQP(&c)
		refused(t, name, err, syscall.EINVAL, syscall.ENOMEM, syscall.EOPNOTSUPP)
	}
}

// linked has two connected Conns with a region each.
type linked struct {
	client, server     *rdmacm.Conn
	clientMR, serverMR *ibverbs.MR
}

// link connects the device with itself, and closes everything when the test ends.
func link(t *testing.T) *linked {
	t.Helper()
	ctx := timeout(t)
	vctx, addr := open()
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	var c linked
	region := func(mr **ibverbs.MR) func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error {
		return func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			*mr, err = c.PD().AllocMR(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead)
			return err
		}
	}
	size := ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxInlineData: 16}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			c.server, err = req.Accept(ctx, &rdmacm.ConnConfig{Cap: size, Prepare: region(&c.serverMR)})
		}
		accepted <- err
	}()
	c.client = testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Cap: size, Prepare: region(&c.clientMR)}))(t)
	testkit.OK(t, <-accepted)
	t.Cleanup(func() {
		for _, close := range []func() error{c.client.Close, c.server.Close, c.clientMR.Close, c.serverMR.Close} {
			testkit.OK(t, close())
		}
	})
	return &c
}

// A refused work request is not posted and does no harm: the requests before it in the list are
// sent, and the connection goes on.
func TestBadWorkRequests(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	sge := testkit.Must(c.clientMR.SGE(0, 8))(t)
	many := make([]ibverbs.SGE, 1000)
	for i := range many {
		many[i] = sge
	}
	wc := make([]ibverbs.WC, 1)
	for name, bad := range map[string]ibverbs.SendWR{
		"1000 entries":           {Opcode: ibverbs.WRSend, SGList: many},
		"opcode 77":              {Opcode: 77},
		"opcode 2^32-1":          {Opcode: math.MaxUint32},
		"memory window":          {Opcode: ibverbs.WRBindMW},
		"unknown flags":          {Opcode: ibverbs.WRSend, Flags: 1 << 30},
		"too much inline":        {Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: make([]byte, 4096)},
		"inline with entries":    {Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, SGList: []ibverbs.SGE{sge}},
		"inline without flag":    {Opcode: ibverbs.WRSend, Inline: []byte("12345678")},
		"inline Read":            {Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendInline},
		"Read with 1000 entries": {Opcode: ibverbs.WRRDMARead, SGList: many},
	} {
		testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(c.serverMR.SGE(0, 8))(t)}}))
		good := ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}}
		err := c.client.QP().PostSend(good, bad, good)
		refused(t, name, err, syscall.EINVAL, syscall.EOPNOTSUPP)
		var pe *ibverbs.PostError
		if !errors.As(err, &pe) || pe.Posted != 1 {
			t.Errorf("%s: got %#v, want a PostError with 1 posted", name, err)
		}
		for _, cq := range []*ibverbs.CQ{c.client.SendCQ(), c.server.RecvCQ()} {
			if _, err := cq.PollWait(ctx, wc); err != nil || wc[0].Err() != nil {
				t.Fatalf("%s: the request before it: %v, %v", name, err, wc[0].Err())
			}
		}
	}
	err := c.client.QP().PostRecv(ibverbs.RecvWR{}, ibverbs.RecvWR{SGList: many})
	refused(t, "receive with 1000 entries", err, syscall.EINVAL)
	testkit.OK(t, c.client.QP().PostSend())
	testkit.OK(t, c.client.QP().PostRecv())

	refused(t, "to state 77", c.client.QP().Modify(ibverbs.QPAttr{State: 77}, ibverbs.QPAttrState), syscall.EINVAL)
	refused(t, "negative read depth", c.client.QP().Modify(ibverbs.QPAttr{MaxRdAtomic: -1}, ibverbs.QPAttrMaxRdAtomic), syscall.EINVAL)
	testkit.OK(t, c.client.Shutdown(ctx))
}

// Memory that the QP may not use fails the request, not the program.
func TestBadMemory(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, c *linked, s *ibverbs.SGE){
		"behind the region":    func(_ *testing.T, _ *linked, s *ibverbs.SGE) { s.Addr += 4090 },
		"before the region":    func(_ *testing.T, _ *linked, s *ibverbs.SGE) { s.Addr-- },
		"around the end":       func(_ *testing.T, _ *linked, s *ibverbs.SGE) { s.Addr = math.MaxUint64 - 3 },
		"4 GiB":                func(_ *testing.T, _ *linked, s *ibverbs.SGE) { s.Length = math.MaxUint32 },
		"key of nothing":       func(_ *testing.T, _ *linked, s *ibverbs.SGE) { s.LKey ^= 0x5a5a5a00 },
		"of another PD":        func(_ *testing.T, c *linked, s *ibverbs.SGE) { s.Addr, s.LKey = c.serverMR.Addr(), c.serverMR.LKey() },
		"that is deregistered": func(t *testing.T, c *linked, _ *ibverbs.SGE) { testkit.OK(t, c.clientMR.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := timeout(t)
			c := link(t)
			sge := testkit.Must(c.clientMR.SGE(0, 8))(t)
			spoil(t, c, &sge)
			testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{}))
			err := c.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}})
			wc := make([]ibverbs.WC, 1)
			if err == nil {
				_, err = c.client.SendCQ().PollWait(ctx, wc)
				testkit.OK(t, err)
				err = wc[0].Err()
			}
			if err == nil || errors.Is(err, ibverbs.ErrFlushed) {
				t.Errorf("the Send ended with %v", err)
			}
			t.Log(err)
		})
	}
}

// Everything at once, with Close in the middle.
func TestBadTiming(t *testing.T) {
	for range 8 {
		c := link(t)
		qp, mr := c.client.QP(), c.clientMR
		sge := testkit.Must(mr.SGE(0, 8))(t)
		ctx, cancel := context.WithCancel(timeout(t))
		wc := make([]ibverbs.WC, 4)
		var wg sync.WaitGroup
		for _, f := range []func() error{
			func() error {
				return qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{sge}, RemoteAddr: c.serverMR.Addr(), RKey: c.serverMR.RKey()})
			},
			func() error { return qp.PostRecv(ibverbs.RecvWR{}) },
			func() error { _, err := c.client.SendCQ().Poll(make([]ibverbs.WC, 2)); return err },
			func() error { _, err := c.client.RecvCQ().Poll(make([]ibverbs.WC, 2)); return err },
			func() error { _, err := c.client.RecvCQ().PollWait(ctx, wc); return err },
			func() error { return c.client.SendCQ().ReqNotify(false) },
			func() error { _, _, err := qp.Query(); return err },
			func() error { return qp.Drain(ctx) },
			func() error { _, err := mr.SGE(1, 2); return err },
			func() error { return c.client.Disconnect() },
			func() error { return c.client.Wait(ctx) },
			func() error { _ = qp.Cause(); return qp.Close() },
		} {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := f(); errors.Is(err, os.ErrClosed) {
						return
					}
					time.Sleep(50 * time.Microsecond)
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		testkit.OK(t, c.client.Close())
		testkit.OK(t, mr.Close())
		cancel()
		wg.Wait()
		testkit.OK(t, c.server.Wait(timeout(t)))
	}
}

// TestBadErrnos compares the errnos of invalid calls on the engine and on siw through libibverbs. 0
// means that siw accepts the call. rxe has the engine's errnos, except for P_Keys, which RoCE has.
func TestBadErrnos(t *testing.T) {
	vctx, l := queueWorld(t)
	attr := testkit.Must(vctx.Query())(t)
	fresh, end := qpInState(t, vctx, l, []ibverbs.QPState{})
	defer end()
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4,
		MaxSendSGE: 1, MaxRecvSGE: 1}})
	defer j.close(t)
	sge := testkit.Must(j.mr.SGE(0, 8))(t)
	many := slices.Repeat([]ibverbs.SGE{sge}, attr.MaxSGE+1)
	gids := testkit.Must(vctx.QueryPort(1))(t).GIDTblLen
	pkey, noPort := syscall.ENOENT, syscall.ENOENT
	if onRxe() {
		pkey = 0
	}
	createCQ := func(cqe, vector int) error {
		cq, err := vctx.CreateCQ(cqe, &ibverbs.CQOptions{CompVector: vector})
		if err == nil {
			testkit.OK(t, cq.Close())
		}
		return err
	}
	const einval = syscall.EINVAL
	for _, c := range []struct {
		what        string
		err         error
		engine, siw syscall.Errno
	}{
		{"port 0", second(vctx.QueryPort(0)), einval, einval},
		{"port 2", second(vctx.QueryPort(2)), einval, einval},
		{"GID of port 0", second(vctx.QueryGID(0, 0)), einval, einval},
		{"GID of port 2", second(vctx.QueryGID(2, 0)), einval, einval},
		{"GID -1", second(vctx.QueryGID(1, -1)), einval, einval},
		{"GID behind the table", second(vctx.QueryGID(1, gids)), einval, einval},
		{"P_Key", second(vctx.QueryPkey(1, 0)), pkey, pkey},
		{"P_Key of port 2", second(vctx.QueryPkey(2, 0)), noPort, noPort},
		{"CQ of 0", createCQ(0, 0), einval, einval},
		{"CQ of -1", createCQ(-1, 0), einval, einval},
		{"CQ beyond MaxCQE", createCQ(attr.MaxCQE+1, 0), einval, einval},
		{"vector -1", createCQ(1, -1), einval, einval},
		{"vector behind the last", createCQ(1, attr.NumCompVectors), einval, einval},
		{"CQ resized to 0", j.client.SendCQ().Resize(0), einval, einval},
		{"Send without a connection", fresh.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}), einval, einval},
		{"to RTS without a connection", toState(fresh, ibverbs.QPRTS), einval, einval},
		{"to SQD without a connection", toState(fresh, ibverbs.QPSQD), einval, 0},
		{"to state 8", toState(fresh, 8), einval, einval},
		{"from a state that it isn't in", fresh.Modify(ibverbs.QPAttr{State: ibverbs.QPInit,
			CurState: ibverbs.QPRTS}, ibverbs.QPAttrState|ibverbs.QPAttrCurState), einval, 0},
		{"a read depth beyond the limit", fresh.Modify(ibverbs.QPAttr{
			MaxRdAtomic: attr.MaxQPInitRdAtom + 1}, ibverbs.QPAttrMaxRdAtomic), einval, 0},
		{"sizes of a QP that exists", fresh.Modify(ibverbs.QPAttr{}, ibverbs.QPAttrCap), einval, 0},
		{"back from RTS to INIT", toState(j.client.QP(), ibverbs.QPInit), einval, 0},
		{"Send of too many entries", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend,
			SGList: many}), einval, einval},
		{"unknown opcode", j.client.QP().PostSend(ibverbs.SendWR{Opcode: 77}), einval, einval},
		{"unknown flags", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend,
			Flags: 1 << 30}), einval, einval},
		{"inline Read", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
			Flags: ibverbs.SendInline}), einval, einval},
		{"receive of too many entries", j.client.QP().PostRecv(ibverbs.RecvWR{SGList: many}), einval, einval},
		{"receives beyond the queue", j.client.QP().PostRecv(make([]ibverbs.RecvWR, 300)...),
			syscall.ENOMEM, syscall.ENOMEM},
	} {
		want := c.engine
		if onSiw() {
			want = c.siw
		}
		var call *ibverbs.Error
		switch {
		case want == 0 && c.err != nil, want != 0 &&
			(!errors.As(c.err, &call) || call.Op == "" || provider.Errno(c.err) != want):
			t.Errorf("%s: %v, want %v", c.what, c.err, want)
		}
	}
	// The connection still works.
	testkit.OK(t, j.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(j.serverMR.SGE(0, 8))(t)}}))
	testkit.OK(t, j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}))
	if wc := take(t, j.server.RecvCQ(), 1); wc[0].Err() != nil {
		t.Errorf("in the end: %v", wc[0].Err())
	}
}
