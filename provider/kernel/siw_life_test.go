//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

func pollIn(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n == 1 && err == nil
}

func testDevice(t *testing.T) {
	infos, err := New().Devices()
	if err != nil || len(infos) == 0 {
		t.Fatalf("Devices: %v, %v", infos, err)
	}
	info := infos[0]
	if info.Provider != "kernel" || info.NodeType != provider.NodeRNIC || info.Transport != provider.TransportIWARP || info.NodeGUID == 0 || info.Netdev == "" {
		t.Errorf("Devices: %+v", info)
	}
	dev := testkit.Must(New().Open(info.Name))(t)
	defer closeAll(t, dev)
	attr, err := dev.Query()
	if err != nil || attr.NodeGUID != info.NodeGUID || attr.MaxQP == 0 || attr.MaxSGE < 4 || attr.MaxQPRdAtom == 0 || attr.PhysPortCnt != 1 || attr.MaxInline != siwMaxInline {
		t.Errorf("Query: %+v, %v", attr, err)
	}
	port, err := dev.QueryPort(1)
	if err != nil || port.State != provider.PortActive || port.GIDTblLen < 1 || port.ActiveMTU < 256 {
		t.Errorf("QueryPort: %+v, %v", port, err)
	}
	_, err = dev.QueryPort(9)
	wantErrno(t, "a port that does not exist", err, syscall.EINVAL)
	gid, err := dev.QueryGID(1, 0)
	if err != nil || gid == (provider.GID{}) {
		t.Errorf("QueryGID: %x, %v", gid, err)
	}
	if _, err = dev.QueryGID(1, 99); err == nil {
		t.Error("a GID that does not exist")
	}
	table, err := dev.QueryGIDTable()
	if err != nil || len(table) != 1 || table[0].GID != gid || table[0].Port != 1 || table[0].Index != 0 || table[0].Type != provider.GIDTypeIB {
		t.Errorf("QueryGIDTable: %+v, %v", table, err)
	}
	if attr.NumCompVectors < 1 || attr.DeviceCapFlags != provider.DeviceMemMgtExtensions || attr.AtomicCap != provider.AtomicNone {
		t.Errorf("Query: %d vectors, %s, %s", attr.NumCompVectors, attr.DeviceCapFlags, attr.AtomicCap)
	}
	for _, at := range [][2]int{{1, 0}, {1, 99}, {9, 0}} {
		_, err := dev.QueryPkey(uint8(at[0]), at[1])
		wantErrno(t, "a P_Key", err, syscall.ENOENT)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("P_Key %v: %v", at, err)
		}
	}
	_, err = New().Open("no-such-device")
	wantErrno(t, "an unknown name", err, syscall.ENODEV)
	_, err = dev.CreateCQ(provider.CQInitAttr{CQE: 0})
	wantErrno(t, "a CQ without entries", err, syscall.EINVAL)
	_, err = dev.CreateCQ(provider.CQInitAttr{CQE: 1 << 30})
	if err == nil {
		t.Error("a CQ of 2^30 entries")
	}
}

// Two devices of one RDMA device share what librdmacm opened, and each gets events only for its own
// objects.
func testAsyncEvents(t *testing.T) {
	a, p := connected(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type result struct {
		ev  provider.AsyncEvent
		err error
	}
	passive := make(chan result, 1)
	quiet, stop := context.WithCancel(context.Background())
	go func() {
		// Most likely this call is reading the descriptor when the event arrives.
		ev, err := p.dev.AsyncEvent(quiet)
		passive <- result{ev, err}
	}()
	time.Sleep(20 * time.Millisecond)
	bad := a.sge(0, 64)
	bad.LKey ^= 0x00ff0000
	_, _ = a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{bad}}})
	ev, err := a.dev.AsyncEvent(ctx)
	if err != nil || ev.QP != a.qp || ev.Type != provider.EventQPFatal {
		t.Errorf("the sender's event: %+v, %v", ev, err)
	}
	if q, ok := ev.QP.(*qp); !ok || q.Cookie() != a {
		t.Error("the event's QP has not its cookie")
	}
	stop()
	if r := <-passive; r.err != context.Canceled {
		t.Errorf("the other device: %+v", r)
	}
	a.want("after the failure", provider.CMDisconnected)
	p.want("after the failure", provider.CMDisconnected)
}

func testCompChannel(t *testing.T) {
	a, p := connected(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// More events than one call acknowledges.
	for i := range ackBatch + 10 {
		if err := p.cq.ReqNotify(false); err != nil {
			t.Fatal(err)
		}
		p.recv(provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{p.sge(0, 8)}})
		a.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 8)}})
		cq, err := p.ch.Next(ctx)
		if err != nil || cq != p.cq || cq.Cookie() != p {
			t.Fatalf("event %d: %v, %v", i, cq, err)
		}
		if wc := p.poll(1)[0]; wc.WRID != uint64(i) || wc.Status != provider.WCSuccess {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	// Not armed: no event.
	p.recv(provider.RecvWR{SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 8)}})
	p.poll(1)
	short, cancelShort := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancelShort()
	if cq, err := p.ch.Next(short); err != context.DeadlineExceeded {
		t.Errorf("an event without having been armed: %v, %v", cq, err)
	}
	// The wait is cancelled before it begins, and the CQ is armed for an event that nobody fetches.
	// Closing the CQ does not wait for it.
	done, cancelDone := context.WithCancel(ctx)
	cancelDone()
	if _, err := p.ch.Next(done); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	if err := p.cq.ReqNotify(true); err != nil {
		t.Fatal(err)
	}
	if err := p.cq.ReqNotify(false); err != nil {
		t.Fatal(err)
	}
	p.recv(provider.RecvWR{SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 8)}})
	p.poll(1)
}

func testLifetimes(t *testing.T) {
	a, p := newSide(t), newSide(t)
	establish(t, a, p)
	busy := func(what string, o closer) {
		t.Helper()
		wantErrno(t, "Close of "+what, o.Close(), syscall.EBUSY)
	}
	busy("a device with objects", a.dev)
	busy("a PD with an MR and a QP", a.pd)
	busy("a CQ with a QP", a.cq)
	busy("a channel with a CQ", a.ch)
	busy("an event channel with an id", a.ec)
	busy("an id with a QP", a.id)
	// None of these refusals has changed anything.
	p.recv(provider.RecvWR{SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}})
	a.poll(1)
	p.poll(1)

	for range 2 { // Close is idempotent
		closeAll(t, a.qp, a.id, p.qp, p.id)
	}
	closed := func(what string, err error) {
		t.Helper()
		var e *provider.Error
		if !errors.As(err, &e) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	_, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend}})
	closed("PostSend", err)
	_, err = a.qp.PostRecv([]provider.RecvWR{{}})
	closed("PostRecv", err)
	_, _, err = a.qp.Query()
	closed("QP.Query", err)
	closed("QP.Modify", a.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
	closed("Connect", a.id.Connect(depth))
	closed("Disconnect", a.id.Disconnect())
	_, err = a.id.CreateQP(a.pd, a.qpInit())
	closed("ID.CreateQP", err)
	if a.id.LocalAddr().IsValid() || a.id.DeviceName() != "" {
		t.Error("a closed id has an address or a device")
	}

	s := newSide(t)
	closeAll(t, s.mr, s.cq, s.ch, s.pd, s.ec, s.dev)
	_, err = s.cq.Poll(make([]provider.WC, 1))
	closed("Poll", err)
	closed("ReqNotify", s.cq.ReqNotify(false))
	_, err = s.ch.Next(context.Background())
	closed("CompChannel.Next", err)
	_, err = s.ec.Next(context.Background())
	closed("EventChannel.Next", err)
	_, err = s.ec.CreateID(nil)
	closed("CreateID", err)
	_, err = s.pd.RegMR(s.buf, allRights)
	closed("RegMR", err)
	_, err = s.pd.CreateQP(a.qpInit())
	closed("PD.CreateQP", err)
	_, err = s.dev.Query()
	closed("Device.Query", err)
	_, err = s.dev.AllocPD()
	closed("AllocPD", err)
	_, err = s.dev.CreateCompChannel()
	closed("CreateCompChannel", err)
	_, err = s.dev.CreateEventChannel()
	closed("CreateEventChannel", err)
	_, err = s.dev.AsyncEvent(context.Background())
	closed("AsyncEvent", err)
}

// testMemlock runs itself in a process without CAP_IPC_LOCK, with which siw of Linux 6.12 ignores
// the limit (6.1 does not). A thread of this process cannot drop the capability, because the
// connection manager takes calls only from threads with the credentials with which its channel was
// opened (testCredentials).
func testMemlock(t *testing.T) {
	if os.Getenv("GOVS_MEMLOCK_CHILD") == "1" {
		testMemlockLimit(t)
		return
	}
	exe := testkit.Must(os.Executable())(t)
	cmd := exec.Command(exe, "-test.v", "-test.run=^TestSiw$/^memory_lock_limit$")
	cmd.Env = append(os.Environ(), "GOVS_MEMLOCK_CHILD=1")
	var out []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The goroutine ends locked, so its thread ends with it.
		runtime.LockOSThread()
		if err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err == nil {
			out, err = cmd.CombinedOutput()
		}
	}()
	<-done
	if err != nil || !strings.Contains(string(out), "--- PASS: TestSiw/memory_lock_limit") {
		t.Errorf("%v\n%s", err, out)
	}
}

func testMemlockLimit(t *testing.T) {
	s := newSide(t)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 2 << 20, Max: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	_, err := s.pd.RegMR(make([]byte, 4<<20), allRights)
	wantErrno(t, "more than may be locked", err, syscall.ENOMEM)
	if err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") || !strings.Contains(err.Error(), "2097152 bytes") {
		t.Errorf("the limit is not named: %v", err)
	}
}

// A thread with its own credentials can neither post nor call the connection manager, even if it
// has lost no right that these need: the kernel compares pointers. Commands that are ioctls do not
// check this.
func testCredentials(t *testing.T) {
	a, _ := connected(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The goroutine ends locked, so its thread ends with it.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_TIME, 0, 0, 0); err != nil {
			t.Error(err)
			return
		}
		_, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRRDMAWrite,
			Flags: provider.SendSignaled}})
		wantErrno(t, "PostSend", err, syscall.EACCES)
		_, err = a.ec.CreateID(nil)
		wantErrno(t, "CreateID", err, syscall.EACCES)
		wantErrno(t, "Disconnect", a.id.Disconnect(), syscall.EACCES)
		closeAll(t, testkit.Must(a.dev.AllocPD())(t))
	}()
	<-done
	if err := a.id.Disconnect(); err != nil {
		t.Errorf("on another thread: %v", err)
	}
}

func testRegistration(t *testing.T) {
	s := newSide(t)
	_, err := s.pd.RegMR(nil, allRights)
	wantErrno(t, "no memory", err, syscall.EINVAL)
	_, err = s.pd.RegMR(make([]byte, 8), provider.AccessRemoteWrite)
	wantErrno(t, "remote write without local write", err, syscall.EINVAL)

	// Off the Go heap.
	mem := testkit.Must(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	mr := testkit.Must(s.pd.RegMR(mem, allRights|provider.AccessRemoteInvalidate))(t)
	if mr.Len() != 8192 || mr.LKey() == 0 || mr.RKey() == 0 || mr.Access() != allRights|provider.AccessRemoteInvalidate {
		t.Errorf("%d bytes, lkey %#x, rkey %#x, access %s", mr.Len(), mr.LKey(), mr.RKey(), mr.Access())
	}
	closeAll(t, mr, mr)
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}

// A region that the program has dropped keeps its memory, because the kernel continues to write to
// it. The region may also be part of an object with pointers.
func testForgottenRegion(t *testing.T) {
	s := newSide(t)
	known := make(map[uintptr]bool)
	for token := range mrs.m {
		known[token] = true
	}
	func() {
		v := &struct {
			p *int
			b [4096]byte
		}{p: new(int)}
		v.b[0] = 42
		testkit.Must(s.pd.RegMR(v.b[:], allRights))(t)
	}()
	for range 3 {
		runtime.GC() // garbage-collecting a runtime.Pinner that still pins ends the process
	}
	for token, m := range mrs.m {
		if known[token] {
			continue
		}
		if m.buf[0] != 42 || m.Addr() != uint64(uintptr(unsafe.Pointer(&m.buf[0]))) {
			t.Errorf("the region of %d bytes is not what it was", m.Len())
		}
		wantErrno(t, "Close of its PD", s.pd.Close(), syscall.EBUSY)
		closeAll(t, m)
	}
	if len(mrs.m) != len(known) {
		t.Errorf("%d regions left, want %d", len(mrs.m), len(known))
	}
}

func testManyConnections(t *testing.T) {
	a, p := newSide(t), newSide(t)
	for i := range 20 {
		establish(t, a, p)
		p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 100)}})
		text := fmt.Sprintf("message %d", i)
		n := copy(a.buf, text)
		a.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, n)}})
		if wc := p.poll(1)[0]; wc.Status != provider.WCSuccess || !bytes.Equal(p.buf[:n], []byte(text)) {
			t.Fatalf("connection %d: %+v, %q", i, wc, p.buf[:n])
		}
		a.poll(1)
		// Without Disconnect: the connection ends when its QP is closed.
		closeAll(t, a.qp, a.id)
		p.want("after the peer's QP was closed", provider.CMDisconnected)
		closeAll(t, p.qp, p.id)
	}
}

// Many goroutines wait on the same objects, are cancelled, and are woken by Close, while post, poll
// and Close race.
func testWaiters(t *testing.T) {
	a, p := newSide(t), newSide(t)
	establish(t, a, p)
	var wg sync.WaitGroup
	results := make(chan error, 30)
	ctx, cancel := context.WithCancel(context.Background())
	for range 5 {
		wg.Go(func() { _, err := p.ch.Next(ctx); results <- err })
		wg.Go(func() { _, err := p.ec.Next(ctx); results <- err })
		wg.Go(func() { _, err := p.dev.AsyncEvent(ctx); results <- err })
	}
	time.Sleep(20 * time.Millisecond)
	cancel()
	wg.Wait()
	for range 15 {
		if err := <-results; err != context.Canceled {
			t.Errorf("a cancelled waiter: %v", err)
		}
	}

	for range 3 {
		wg.Go(func() {
			for {
				if _, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{a.sge(0, 8)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}}); errors.Is(err, os.ErrClosed) {
					return
				}
			}
		})
		wg.Go(func() {
			wc := make([]provider.WC, 8)
			for {
				if _, err := a.cq.Poll(wc); errors.Is(err, os.ErrClosed) {
					return
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	closeAll(t, a.qp, a.id, a.cq, p.qp, p.id)
	wg.Wait()

	for range 5 {
		wg.Go(func() { _, err := p.ch.Next(context.Background()); results <- err })
		wg.Go(func() { _, err := p.ec.Next(context.Background()); results <- err })
		wg.Go(func() { _, err := p.dev.AsyncEvent(context.Background()); results <- err })
	}
	time.Sleep(20 * time.Millisecond)
	closeAll(t, p.mr, p.cq, p.ch, p.pd, p.ec, p.dev)
	wg.Wait()
	for range 15 {
		if err := <-results; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a waiter on a closed object: %v", err)
		}
	}
}
