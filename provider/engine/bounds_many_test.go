//go:build linux

package engine

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// In TestHalfOfThemAreHostile the peers are in another process, so that this one holds only what
// the device holds for them. That process runs this binary again, with the listener's address in
// manyPeers, which makes TestMain call runPeers.
const manyPeers = "GOVS_TEST_MANY_PEERS"

func init() { children[manyPeers] = runPeers }

// manyConns is how many connections there are, half of them hostile. There are fewer if
// RLIMIT_NOFILE, which is the same in both processes, does not permit that many.
func manyConns() int {
	n := 10_000
	if testkit.Race {
		n = 1000
	}
	if limit := maxDescriptors(2 * maxQP); limit < n*5/4 {
		n = limit * 4 / 5 &^ 7
	}
	return n
}

// Each honest connection sends manyRounds messages of manyOctets bytes, and gets each back.
const (
	manyRounds = 3
	manyOctets = 64
)

// slackDescriptors are for the other process (two pipes and a pidfd), and for connections that
// change from one state to another while they are counted.
const slackDescriptors = 16

// manyQP has two receives, so that the next message finds one while the last one is
// answered.
var manyQP = provider.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}

// manyEnd is one connection of the server or a client: its QP, and two buffers to receive
// into with one to send from.
type manyEnd struct {
	id   *cm.ID
	qp   *qp
	at   int // offset of its buffers
	next int // of messages to be received
}

// manyHost is an engine that has many connections.
type manyHost struct {
	t    testing.TB
	dev  *device
	pd   provider.PD
	cq   provider.CQ
	ch   *cm.EventChannel
	mr   provider.MR
	buf  []byte
	mu   sync.Mutex
	ends []*manyEnd
}

func newManyHost(t testing.TB, opts Options, n int) *manyHost {
	h := &manyHost{t: t, buf: make([]byte, 3*manyOctets*n)}
	h.dev = testkit.Must(New(&opts).Open(""))(t).(*device)
	h.pd = testkit.Must(h.dev.AllocPD())(t)
	h.cq = testkit.Must(h.dev.CreateCQ(provider.CQInitAttr{CQE: 4 * n}))(t)
	h.ch = testkit.Must(h.dev.CreateEventChannel())(t).(*cm.EventChannel)
	h.mr = testkit.Must(h.pd.RegMR(h.buf, provider.AccessLocalWrite))(t)
	return h
}

// end makes the QP of id, with a receive posted.
func (h *manyHost) end(id *cm.ID) (*manyEnd, error) {
	made, err := id.CreateQP(h.pd, provider.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: manyQP})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	e := &manyEnd{id: id, qp: made.(*qp), at: 3 * manyOctets * len(h.ends)}
	h.ends = append(h.ends, e)
	index := len(h.ends) - 1
	h.mu.Unlock()
	id.SetCookie(index)
	return e, h.recv(e, index)
}

func (h *manyHost) sge(off int) []provider.SGE {
	return []provider.SGE{{Addr: h.mr.Addr() + uint64(off), Length: manyOctets, LKey: h.mr.LKey()}}
}

// recv posts the receive of the next message.
func (h *manyHost) recv(e *manyEnd, index int) error {
	_, err := e.qp.PostRecv([]provider.RecvWR{{WRID: uint64(index), SGList: h.sge(e.at + e.next%2*manyOctets)}})
	e.next++
	return err
}

// send sends the third buffer.
func (h *manyHost) send(e *manyEnd, index int) error {
	_, err := e.qp.PostSend([]provider.SendWR{{
		WRID: uint64(index), Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: h.sge(e.at + 2*manyOctets),
	}})
	return err
}

// manyMessage fills b with what a client sends in a round.
func manyMessage(b []byte, client, round int) {
	pattern(b, client+round)
	binary.BigEndian.PutUint64(b, uint64(client)<<8|uint64(round))
}

// poll calls each with every receive that was completed, until done.
func (h *manyHost) poll(done *atomic.Bool, each func(e *manyEnd, index int, got []byte)) {
	var wcs [256]provider.WC
	for !done.Load() {
		n, err := h.cq.Poll(wcs[:])
		if err != nil {
			h.t.Error(err)
			return
		}
		if n == 0 {
			time.Sleep(200 * time.Microsecond)
		}
		for _, wc := range wcs[:n] {
			if wc.Opcode != provider.WCRecv || wc.Status != provider.WCSuccess {
				continue
			}
			h.mu.Lock()
			e := h.ends[wc.WRID]
			h.mu.Unlock()
			got := h.buf[e.at+(e.next-1)%2*manyOctets:][:wc.ByteLen]
			each(e, int(wc.WRID), got)
		}
	}
}

// close ends the program and its tasks: the ids first, so that the channel can be closed, which
// ends the goroutine that waits for events.
func (h *manyHost) close(tasks *sync.WaitGroup) {
	h.mu.Lock()
	ends := h.ends
	h.mu.Unlock()
	for _, e := range ends {
		testkit.OK(h.t, e.qp.Close())
		testkit.OK(h.t, e.id.Close())
	}
	testkit.OK(h.t, h.ch.Close())
	tasks.Wait()
	testkit.OK(h.t, h.mr.Close())
	testkit.OK(h.t, h.cq.Close())
	testkit.OK(h.t, h.pd.Close())
	testkit.OK(h.t, h.dev.Close())
}

// TestHalfOfThemAreHostile: 5,000 connections do their work while as many others are
// silent, stop in their Request, have a revision that is refused, dribble, reset at once,
// or read nothing. The work is right and complete, and what the device holds is within the
// bounds that docs/bounds.md gives for the sum of these states.
//
//rfc:5042 SEC-3-02 No implied partial mutual trust between streams
func TestHalfOfThemAreHostile(t *testing.T) {
	n := manyConns()
	t.Logf("%d connections, RLIMIT_NOFILE is %d", n, maxDescriptors(2*maxQP))
	h := newManyHost(t, Options{StartupTimeout: 2 * time.Second}, n)
	l := testkit.Must(h.ch.CreateID(nil))(t).(*cm.ID)
	testkit.OK(t, l.BindAddr(netip.AddrPortFrom(ownAddr(), 0)))
	testkit.OK(t, l.Listen(4096))
	before := holding(t)

	var done atomic.Bool
	var tasks sync.WaitGroup
	tasks.Go(func() {
		h.poll(&done, func(e *manyEnd, index int, got []byte) {
			copy(h.buf[e.at+2*manyOctets:], got)
			if h.recv(e, index) == nil {
				_ = h.send(e, index) // either fails if the peer has left
			}
		})
	})
	tasks.Go(func() {
		for {
			e, err := h.ch.Next(t.Context())
			if err != nil {
				return
			}
			if e.Type != provider.CMConnectRequest {
				continue
			}
			if _, err := h.end(e.ID.(*cm.ID)); err != nil {
				t.Error(err)
			}
			_ = e.ID.Accept(provider.ConnParam{}) // fails if the peer has left
		}
	})
	peers := startPeers(t, l.LocalAddr())
	peers.wantLine("complete")
	h.wantWithin(before, n, l)
	peers.finish()
	testkit.OK(t, l.Close())
	done.Store(true)
	for cm.Events(h.ch) > 0 {
		time.Sleep(time.Millisecond)
	}
	h.close(&tasks)
}

// manyCount is what a device has at a time.
type manyCount struct{ ids, open, pending, closing int }

// count counts ids that the program has not closed, RDMA streams, connections of l that are
// pending, and connections that wait for the peer's end.
func (h *manyHost) count(l *cm.ID) manyCount {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := manyCount{ids: len(h.ends), pending: cm.Pending(l), closing: h.dev.closing.len()}
	for _, e := range h.ends {
		if e.qp.stream.Load() != nil {
			c.open++
		}
	}
	return c
}

// wantWithin checks that the device holds no more than docs/bounds.md permits for its present
// connections.
func (h *manyHost) wantWithin(before held, n int, l *cm.ID) {
	h.t.Helper()
	first := h.count(l)
	got := holding(h.t).minus(before)
	then := h.count(l)
	c := manyCount{max(first.ids, then.ids), max(first.open, then.open),
		max(first.pending, then.pending), max(first.closing, then.closing)}
	contexts := h.dev.prog.contexts.Made()
	o := &h.dev.opts
	if c.pending > o.MaxPending || c.closing > o.MaxClosing {
		h.t.Errorf("%+v, MaxPending is %d, MaxClosing %d", c, o.MaxPending, o.MaxClosing)
	}
	limit := held{
		goroutines:  c.pending + slackGoroutines,
		descriptors: c.open + c.pending + c.closing + slackDescriptors,
		octets: int64(c.open*4+(c.ids-c.open)*3+c.pending*3+c.closing*3)<<10 +
			int64(contexts*contextOctets) + 1<<20,
		// The runtime keeps stacks that were in use.
		stacks: int64(min(n, o.MaxPending)*boundsStack) + 1<<20,
	}
	h.t.Logf("%+v; held: %d goroutines with %d KiB of stacks, %d descriptors, %d KiB of which %d "+
		"receive contexts of 512 KiB; bounds %d with %d, %d, %d",
		c, got.goroutines, got.stacks>>10, got.descriptors, got.octets>>10, contexts,
		limit.goroutines, limit.stacks>>10, limit.descriptors, limit.octets>>10)
	got.wantAtMost(h.t, limit)
}

// peerProcess is the process of the peers.
type peerProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin interface{ Close() error }
	lines *bufio.Scanner
}

func startPeers(t *testing.T, addr netip.AddrPort) *peerProcess {
	t.Helper()
	p := &peerProcess{t: t}
	p.cmd = exec.Command(os.Args[0], "-test.timeout="+(2*patience).String())
	p.cmd.Env = append(os.Environ(), manyPeers+"="+addr.String())
	p.cmd.Stderr = os.Stderr
	stdin := testkit.Must(p.cmd.StdinPipe())(t)
	stdout := testkit.Must(p.cmd.StdoutPipe())(t)
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	testkit.OK(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// wantLine waits for a line, and logs those that come before it.
func (p *peerProcess) wantLine(want string) {
	p.t.Helper()
	for p.lines.Scan() {
		if p.lines.Text() == want {
			return
		}
		p.t.Log(p.lines.Text())
	}
	p.t.Fatalf("the peers ended without %q", want)
}

func (p *peerProcess) finish() {
	p.t.Helper()
	_ = p.stdin.Close()
	for p.lines.Scan() {
		if line := p.lines.Text(); line != "PASS" {
			p.t.Log(line)
		}
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the peers: %v", err)
	}
}

// runPeers is what the process of the peers does, with the listener at that address.
func runPeers(t *testing.T, listener string) {
	dst := netip.MustParseAddrPort(listener)
	n := manyConns() / 2
	bad := &hostilePeers{t: t, dst: dst}
	var tasks sync.WaitGroup
	tasks.Go(func() { bad.come(n) })
	h := newManyHost(t, Options{StartupTimeout: time.Minute}, n)
	h.work(dst, n)
	tasks.Wait()
	fmt.Println("complete")
	_, _ = os.Stdin.Read(make([]byte, 1)) // returns when the server's process has counted
	bad.end()
	h.close(&tasks)
}

// work makes n connections, at most 128 at a time in the start-up, waits until each has got its
// messages back, and keeps them.
func (h *manyHost) work(dst netip.AddrPort, n int) {
	var done atomic.Bool
	var complete atomic.Int64
	starting := make(chan struct{}, 128)
	var tasks sync.WaitGroup
	begin := func(index int, e *manyEnd, round int) {
		manyMessage(h.buf[e.at+2*manyOctets:][:manyOctets], index, round)
		if err := h.send(e, index); err != nil {
			h.t.Errorf("client %d, round %d: %v", index, round, err)
		}
	}
	tasks.Go(func() {
		h.poll(&done, func(e *manyEnd, index int, got []byte) {
			round := e.next - 1
			want := make([]byte, manyOctets)
			manyMessage(want, index, round)
			testkit.Equal(h.t, fmt.Sprintf("client %d, round %d: received", index, round),
				string(got), string(want))
			if round == manyRounds-1 {
				complete.Add(1)
				return
			}
			testkit.OK(h.t, h.recv(e, index))
			begin(index, e, round+1)
		})
	})
	tasks.Go(func() {
		for range n {
			e, err := h.ch.Next(h.t.Context())
			if err != nil || e.Type != provider.CMEstablished {
				h.t.Errorf("event %s, status %d, %v; want ESTABLISHED: %v", e.Type, e.Status, e.Cause, err)
				continue
			}
			index := e.ID.Cookie().(int)
			h.mu.Lock()
			end := h.ends[index]
			h.mu.Unlock()
			begin(index, end, 0)
			<-starting
		}
	})
	src := netip.AddrPortFrom(dst.Addr().Next(), 0)
	for range n {
		starting <- struct{}{}
		id := testkit.Must(h.ch.CreateID(nil))(h.t).(*cm.ID)
		cm.SetRoute(id, src, dst)
		testkit.Must(h.end(id))(h.t)
		testkit.OK(h.t, id.Connect(provider.ConnParam{}))
	}
	waitFor(h.t, "all connections have all their messages back", func() bool { return complete.Load() == int64(n) })
	done.Store(true)
	tasks.Wait()
}

// hostilePeers are sockets with addresses of their own.
type hostilePeers struct {
	t        *testing.T
	dst      netip.AddrPort
	fds      []int
	dribbles []int
	stop     chan struct{}
	tasks    sync.WaitGroup
}

// come makes n connections, of each kind in turn.
func (p *hostilePeers) come(n int) {
	request := rawRequest(nil)
	framer := mpa.NewFramer(false, true)
	var deaf []int
	header := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	send := testkit.Must(framer.AppendFPDU(nil, header.AppendTo(nil), octets(manyOctets)))(p.t)
	kinds := []func(fd int){
		func(int) {}, // silent
		func(fd int) { p.send(fd, request[:mpa.KeyLen+2]) },
		func(fd int) { p.send(fd, rawRequest(func(f *mpa.Frame) { f.Revision = 0 })) },
		func(fd int) { p.dribbles = append(p.dribbles, fd) },
		func(fd int) {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
		},
		func(fd int) { // reads neither the Reply nor the answer to its message
			p.send(fd, request)
			deaf = append(deaf, fd)
		},
	}
	for i := range n {
		fd, err := p.dial(i % len(kinds))
		if err != nil {
			p.t.Errorf("hostile connection %d: %v", i, err)
			return
		}
		kinds[i%len(kinds)](fd)
		if i%len(kinds) != 4 {
			p.fds = append(p.fds, fd)
		}
	}
	for _, fd := range deaf {
		// This returns when the connection is accepted or refused.
		recvAll(fd, make([]byte, 1), patience, unix.MSG_PEEK)
		p.send(fd, send)
	}
	p.stop = make(chan struct{})
	p.tasks.Go(func() {
		for i := 0; ; i++ {
			for _, fd := range p.dribbles {
				p.send(fd, request[i%len(request):][:1])
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-p.stop:
				return
			}
		}
	})
}

// dial connects from the address of a kind. Each kind has an address of its own, and so is a
// peer of its own: if one kind reaches a limit per peer, the others are not kept out.
func (p *hostilePeers) dial(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	src := p.dst.Addr().Prev()
	for range kind {
		src = src.Prev()
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: src.As4()})
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: p.dst.Addr().As4(), Port: int(p.dst.Port())})
	}
	return fd, err
}

func (p *hostilePeers) send(fd int, b []byte) {
	_ = unix.Send(fd, b, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

func (p *hostilePeers) end() {
	close(p.stop)
	p.tasks.Wait()
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
}
