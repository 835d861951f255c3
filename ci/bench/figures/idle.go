package figures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/govs-rdma/govs/ci/bench/worker"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	govs "github.com/govs-rdma/govs/provider/engine"
)

// memory is the memory of a process.
type memory struct {
	Resident uint64 // RssAnon: bytes of its own that are resident
}

// memoryNow returns all unused memory to the system, and counts the rest.
func memoryNow() (*memory, error) {
	runtime.GC()
	debug.FreeOSMemory()
	m := new(memory)
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

// The idle QPs share a PD and a CQ, and nothing is posted.
var idleCap = ibverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}

const (
	idleCQ    = 4096 // entries
	idleReads = 1    // IRD and ORD
)

// idle are connections without any traffic.
type idle struct {
	cfg      rdmacm.ConnConfig
	listener *rdmacm.Listener
	over     chan struct{} // closed when no more connections are accepted

	mu    sync.Mutex
	conns []*rdmacm.Conn
}

// idleOrder is an order to an end of idle connections. One field is set; Addr is set with Idle.
type idleOrder struct {
	Idle   *int           `json:",omitempty"` // client: have so many to Addr; server: 0, listen there
	Memory bool           `json:",omitempty"` // report the memory of the process
	Addr   netip.AddrPort `json:",omitzero"`
}

type idleAnswer struct {
	Addr   netip.AddrPort `json:",omitzero"`
	Memory *memory        `json:",omitempty"`
}

// ServeIdle is an end of idle connections over the engine: it takes orders from in until in ends.
func ServeIdle(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	vctx, err := ibverbs.Open(govs.New(nil), "")
	if err != nil {
		return err
	}
	i, err := newIdle(vctx)
	if err != nil {
		return errors.Join(err, vctx.Close())
	}
	err = worker.Serve(in, out, func(o idleOrder) (idleAnswer, error) { return i.do(ctx, vctx, o) })
	stop()
	i.close()
	return errors.Join(err, vctx.Close())
}

func (i *idle) do(ctx context.Context, vctx *ibverbs.Context, o idleOrder) (a idleAnswer, err error) {
	switch {
	case o.Idle != nil && *o.Idle == 0:
		a.Addr, err = i.listen(ctx, vctx, o.Addr)
	case o.Idle != nil:
		err = i.grow(ctx, vctx, o.Addr, *o.Idle)
	case o.Memory:
		a.Memory, err = memoryNow()
	default:
		err = errors.New("an order to do nothing")
	}
	return a, err
}

func newIdle(vctx *ibverbs.Context) (*idle, error) {
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
