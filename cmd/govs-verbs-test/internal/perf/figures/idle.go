package figures

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// memory is the memory of a process.
type memory struct {
	Resident uint64 // RssAnon: octets of its own that are resident
	Go       uint64 // octets that the Go runtime has in use: heap spans and stacks
}

// memoryNow gives everything back to the system that can be, and counts the rest.
func memoryNow() (*memory, error) {
	runtime.GC()
	debug.FreeOSMemory()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m := &memory{Go: s.HeapInuse + s.StackInuse}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "RssAnon:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		m.Resident = kb << 10
		return m, err
	}
	return nil, errors.New("/proc/self/status has no RssAnon")
}

// The QPs that are idle. All of them share a PD and a CQ, and nothing is posted.
var idleCap = ibverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}

const (
	idleCQ    = 4096 // entries
	idleReads = 1    // IRD and ORD
)

// idle are connections on which nothing happens.
type idle struct {
	cfg      rdmacm.ConnConfig
	listener *rdmacm.Listener
	over     chan struct{} // closed when no more connections are accepted

	mu    sync.Mutex
	conns []*rdmacm.Conn
}

// idling has a server listen, or a client have n connections; the time is that of making
// the missing ones.
func (x *executor) idling(d Device, addr netip.AddrPort, n int) (netip.AddrPort, time.Duration, error) {
	vctx, err := x.open(d)
	if err != nil {
		return addr, 0, err
	}
	if x.idle == nil {
		if x.idle, err = newIdle(vctx); err != nil {
			return addr, 0, err
		}
	}
	if n == 0 {
		addr, err = x.idle.listen(x.ctx, vctx, addr)
		return addr, 0, err
	}
	began := time.Now()
	err = x.idle.grow(x.ctx, vctx, addr, n)
	return addr, time.Since(began), err
}

func newIdle(vctx *ibverbs.Context) (*idle, error) {
	if err := mayOpen(files); err != nil {
		return nil, err
	}
	pd, err := vctx.AllocPD()
	if err != nil {
		return nil, err
	}
	cq, err := vctx.CreateCQ(idleCQ, nil)
	if err != nil {
		return nil, errors.Join(err, pd.Close())
	}
	return &idle{cfg: rdmacm.ConnConfig{
		PD: pd, SendCQ: cq, RecvCQ: cq, Cap: idleCap, InitiatorDepth: idleReads, ResponderResources: idleReads,
		NoOpeningWrite: true,
	}}, nil
}

// files is how many descriptors the most idle QPs need, with some for the rest of
// the process.
const files = idleMost + 200

// mayOpen raises the limit of open files to n where it is below.
func mayOpen(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Cur >= n {
		return nil
	}
	wanted := unix.Rlimit{Cur: n, Max: max(l.Max, n)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted); err != nil {
		return fmt.Errorf("%d files have to be open at a time, and the limit is %d (RLIMIT_NOFILE): %w", n, l.Max, err)
	}
	return nil
}

func (i *idle) listen(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort) (netip.AddrPort, error) {
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	if err != nil {
		return addr, err
	}
	i.listener, i.over = l, make(chan struct{})
	go func() {
		defer close(i.over)
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return // closed, or the client gets the error
			}
			conn, err := req.Accept(ctx, &i.cfg)
			if err == nil {
				i.add(conn)
			}
		}
	}()
	return l.Addr(), nil
}

func (i *idle) grow(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, n int) error {
	for len(i.conns) < n {
		conn, err := rdmacm.Dial(ctx, vctx, addr, &i.cfg)
		if err != nil {
			return fmt.Errorf("connection %d: %w", len(i.conns)+1, err)
		}
		i.add(conn)
	}
	return nil
}

func (i *idle) add(conn *rdmacm.Conn) {
	i.mu.Lock()
	i.conns = append(i.conns, conn)
	i.mu.Unlock()
}

// use posts a receive and a Write without octets to each, which the queues of a QP
// that was idle ever since may not have memory for.
func (i *idle) use() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.conns {
		if err := c.QP().PostRecv(ibverbs.RecvWR{}); err != nil {
			return err
		}
		if err := c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}); err != nil {
			return err
		}
	}
	return nil
}

func (i *idle) close() {
	if i.listener != nil {
		_ = i.listener.Close()
		<-i.over
	}
	for _, c := range i.conns {
		_ = c.Close()
	}
	_ = i.cfg.SendCQ.Close()
	_ = i.cfg.PD.Close()
}
