package ibverbs_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

var (
	busyOnly = flag.String("busy.only", "",
		"BenchmarkBusyConnections: one combination only, like spin-1, block-2 or tcp")
	busyConns    = flag.Int("busy.conns", 100, "BenchmarkBusyConnections: how many connections")
	busyProgress = flag.String("busy.progress", "1,2",
		"BenchmarkBusyConnections: how many progress goroutines a device has, in a list")
	busyCQs = flag.Int("busy.cqs", 1, "BenchmarkBusyConnections: how many CQs the connections of a "+
		"process share, each with a goroutine")
	busyTime = flag.Duration("busy.time", 200*time.Millisecond,
		"BenchmarkBusyConnections: how long each way to wait is measured in an iteration")
)

const busyOctets = 64 // of a message

func init() { processes["busy server"] = serveBusy }

// BenchmarkBusyConnections runs two processes with many connections between them. Each connection
// always has a Send of 64 bytes under way, in one direction or the other. It measures each number
// of progress goroutines, with ends that spin or block, and for comparison as many TCP connections
// with a goroutine each. The metrics are thousands of round trips per second of all connections
// together, the median of the connections' 50th percentiles, and the smallest, median and largest
// of their 99th percentiles, in us. They are medians of the iterations, each of which runs all
// combinations.
//
//	go test -run '^$' -bench BusyConnections -benchtime 5x ./ibverbs -busy.conns 1000 -busy.time 1s
func BenchmarkBusyConnections(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	server := exec.Command(testkit.Must(os.Executable())(b))
	server.Env = append(os.Environ(), "GOVS_TEST_PROCESS=busy server",
		fmt.Sprintf("GOVS_BUSY=%d %d %s", *busyConns, *busyCQs, *busyProgress))
	server.Stderr = os.Stderr
	orders := testkit.Must(server.StdinPipe())(b)
	stdout := bufio.NewReader(testkit.Must(server.StdoutPipe())(b))
	testkit.OK(b, server.Start())
	b.Cleanup(func() {
		testkit.OK(b, orders.Close())
		testkit.OK(b, server.Wait())
	})
	var sets []*busySet
	for _, n := range strings.Split(*busyProgress, ",") {
		s := testkit.Must(openBusy(n, *busyConns, *busyCQs))(b)
		b.Cleanup(func() { testkit.OK(b, s.vctx.Close()) })
		line := testkit.Must(stdout.ReadString('\n'))(b)
		addr := testkit.Must(netip.ParseAddrPort(strings.TrimSpace(line)))(b)
		for i := range *busyConns {
			var private [4]byte
			binary.BigEndian.PutUint32(private[:], uint32(i))
			cfg := s.config(i)
			cfg.PrivateData = private[:]
			c := testkit.Must(rdmacm.Dial(ctx, s.vctx, addr, cfg))(b)
			s.conns[i].Conn = c
		}
		b.Cleanup(func() { testkit.OK(b, s.close()) })
		sets = append(sets, s)
	}
	line := testkit.Must(stdout.ReadString('\n'))(b)
	beside := testkit.Must(dialBusyTCP(strings.TrimSpace(line), *busyConns))(b)
	b.Cleanup(func() { testkit.OK(b, beside.close()) })
	type combination struct {
		name string
		set  int // index in sets; unused for beside
		spin bool
	}
	all := []combination{{"tcp", len(sets), false}}
	for i, s := range sets {
		all = append(all,
			combination{"spin-" + s.progress, i, true}, combination{"block-" + s.progress, i, false})
	}
	if *busyOnly != "" {
		all = slices.DeleteFunc(all, func(c combination) bool { return c.name != *busyOnly })
	}
	if len(all) == 0 {
		b.Fatalf("-busy.only %s: there is no such combination; see -busy.progress", *busyOnly)
	}
	metrics := make(map[string][]float64)
	for i := range b.N {
		for j := range all {
			c := all[(i+j)%len(all)]
			testkit.Must(fmt.Fprintf(orders, "%d %v\n", c.set, c.spin))(b)
			testkit.Must(stdout.ReadString('\n'))(b)
			var measured map[string]float64
			if c.set < len(sets) {
				s := sets[c.set]
				s.spin.Store(c.spin)
				testkit.OK(b, s.exchange(ctx, *busyTime))
				measured = s.measured(*busyTime)
			} else {
				testkit.OK(b, beside.exchange(*busyTime))
				measured = busyMetrics(beside.took, *busyTime)
			}
			for metric, v := range measured {
				metrics[c.name+metric] = append(metrics[c.name+metric], v)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, values := range metrics {
		b.ReportMetric(median(values), name)
	}
}

// busySet is a device of one process with its connections.
type busySet struct {
	vctx     *ibverbs.Context
	progress string
	pd       *ibverbs.PD
	mr       *ibverbs.MR
	chs      []*ibverbs.CompChannel
	cqs      []*ibverbs.CQ
	conns    []busyConn
	spin     atomic.Bool
}

type busyConn struct {
	*rdmacm.Conn
	in   []ibverbs.RecvWR
	out  []ibverbs.SendWR
	sent time.Time
	took []time.Duration
}

func openBusy(progress string, conns, cqs int) (*busySet, error) {
	s := &busySet{progress: progress, conns: make([]busyConn, conns)}
	n, err := strconv.Atoi(progress)
	if err != nil {
		return nil, err
	}
	o := engine.Options{ProgressGoroutines: n}
	o.TCP.CongestionControl = "cubic"
	if s.vctx, err = ibverbs.Open(engine.New(&o), ""); err != nil {
		return nil, err
	}
	if s.pd, err = s.vctx.AllocPD(); err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.AllocMR(2*busyOctets*conns, ibverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	for range cqs {
		ch, err := s.vctx.CreateCompChannel()
		if err != nil {
			return nil, err
		}
		cq, err := s.vctx.CreateCQ(4*conns, &ibverbs.CQOptions{Channel: ch})
		if err != nil {
			return nil, err
		}
		s.chs, s.cqs = append(s.chs, ch), append(s.cqs, cq)
	}
	return s, nil
}

// config returns the configuration of connection i, which posts a receive before it begins.
func (s *busySet) config(i int) *rdmacm.ConnConfig {
	cq := s.cqs[i%len(s.cqs)]
	return &rdmacm.ConnConfig{PD: s.pd, SendCQ: cq, RecvCQ: cq,
		Cap: ibverbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2},
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			in, err := s.mr.SGE(2*i*busyOctets, busyOctets)
			if err != nil {
				return err
			}
			out, err := s.mr.SGE((2*i+1)*busyOctets, busyOctets)
			if err != nil {
				return err
			}
			s.conns[i].in = []ibverbs.RecvWR{{WRID: uint64(i), SGList: []ibverbs.SGE{in}}}
			s.conns[i].out = []ibverbs.SendWR{{WRID: uint64(i), Opcode: ibverbs.WRSend,
				Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{out}}}
			return c.QP().PostRecv(s.conns[i].in...)
		}}
}

func (s *busySet) close() (err error) {
	for _, c := range s.conns {
		if c.Conn != nil {
			err = errors.Join(err, c.Close())
		}
	}
	for i := range s.cqs {
		err = errors.Join(err, s.cqs[i].Close(), s.chs[i].Close())
	}
	return errors.Join(err, s.mr.Close(), s.pd.Close())
}

// serve calls received with each message that comes to a CQ, until that returns false.
func (s *busySet) serve(ctx context.Context, cq *ibverbs.CQ,
	received func(c *busyConn) (bool, error)) error {
	var wc [64]ibverbs.WC
	for {
		n, err := 0, error(nil)
		if s.spin.Load() {
			n, err = cq.Poll(wc[:])
		} else {
			n, err = cq.PollWait(ctx, wc[:])
		}
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			if err := wc[i].Err(); err != nil {
				return err
			}
			if wc[i].Opcode != ibverbs.WCRecv {
				continue
			}
			if on, err := received(&s.conns[wc[i].WRID]); err != nil || !on {
				return err
			}
		}
	}
}

// answer posts the next receive and a Send.
func (c *busyConn) answer() error {
	if err := c.QP().PostRecv(c.in...); err != nil {
		return err
	}
	return c.QP().PostSend(c.out...)
}

// exchange makes all connections send and receive for the given time.
func (s *busySet) exchange(ctx context.Context, long time.Duration) error {
	done := make(chan error)
	end := time.Now().Add(long)
	for k, cq := range s.cqs {
		go func() {
			left := 0
			var err error
			for i := k; i < len(s.conns); i += len(s.cqs) {
				c := &s.conns[i]
				c.took = c.took[:0]
				c.sent = time.Now()
				err = errors.Join(err, c.QP().PostSend(c.out...))
				left++
			}
			if err == nil {
				err = s.serve(ctx, cq, func(c *busyConn) (bool, error) {
					now := time.Now()
					c.took = append(c.took, now.Sub(c.sent))
					if now.Before(end) {
						c.sent = now
						return true, c.answer()
					}
					left--
					return left > 0, c.QP().PostRecv(c.in...)
				})
			}
			done <- err
		}()
	}
	var err error
	for range s.cqs {
		err = errors.Join(err, <-done)
	}
	return err
}

// measured returns the metrics of the last exchange.
func (s *busySet) measured(long time.Duration) map[string]float64 {
	var all [][]time.Duration
	for i := range s.conns {
		all = append(all, s.conns[i].took)
	}
	return busyMetrics(all, long)
}

// busyMetrics computes the metrics from the times of each connection's round trips.
func busyMetrics(all [][]time.Duration, long time.Duration) map[string]float64 {
	var p50, p99 []float64
	total := 0
	for _, took := range all {
		slices.Sort(took)
		total += len(took)
		p50 = append(p50, float64(took[len(took)/2].Nanoseconds())/1e3)
		p99 = append(p99, float64(took[len(took)*99/100].Nanoseconds())/1e3)
	}
	return map[string]float64{
		"-krtt/s": float64(total) / long.Seconds() / 1e3, "-p50-us": median(p50), "-p99-us": median(p99),
		"-p99-least-us": slices.Min(p99), "-p99-most-us": slices.Max(p99),
	}
}

// serveBusy is the answering process, which runs until its standard input ends.
func serveBusy() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var conns, cqs int
	var list string
	if _, err := fmt.Sscan(os.Getenv("GOVS_BUSY"), &conns, &cqs, &list); err != nil {
		return err
	}
	var sets []*busySet
	for _, n := range strings.Split(list, ",") {
		s, err := openBusy(n, conns, cqs)
		if err != nil {
			return err
		}
		if err := s.accept(ctx); err != nil {
			return err
		}
		for _, cq := range s.cqs {
			go func() {
				err := s.serve(ctx, cq, func(c *busyConn) (bool, error) { return true, c.answer() })
				if err != nil && ctx.Err() == nil && !errors.Is(err, ibverbs.ErrFlushed) {
					fmt.Fprintln(os.Stderr, "busy server:", err)
				}
			}()
		}
		sets = append(sets, s)
	}
	if err := serveBusyTCP(conns); err != nil {
		return err
	}
	for {
		var set int
		var spin bool
		if _, err := fmt.Scanln(&set, &spin); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for i, s := range sets {
			s.spin.Store(spin && i == set)
		}
		fmt.Println("ready")
	}
}

// accept prints an address, and accepts all connections of the set there.
func (s *busySet) accept(ctx context.Context) error {
	l, err := rdmacm.Listen(ctx, s.vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for range s.conns {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		i := binary.BigEndian.Uint32(req.PrivateData())
		if s.conns[i].Conn, err = req.Accept(ctx, s.config(int(i))); err != nil {
			return err
		}
	}
	return nil
}

// busyTCP is the comparison of BenchmarkBusyConnections: TCP connections that do the same, each
// with a goroutine at either end, as usual in Go programs.
type busyTCP struct {
	conns []*net.TCPConn
	took  [][]time.Duration
}

func dialBusyTCP(addr string, conns int) (*busyTCP, error) {
	t := &busyTCP{took: make([][]time.Duration, conns)}
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		t.conns = append(t.conns, c.(*net.TCPConn))
		if err := busyCubic(c.(*net.TCPConn)); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// busyCubic gives a connection the congestion control that the devices use.
func busyCubic(c *net.TCPConn) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) {
		failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return errors.Join(err, failed)
}

func (t *busyTCP) close() (err error) {
	for _, c := range t.conns {
		err = errors.Join(err, c.Close())
	}
	return err
}

// exchange makes all connections send and receive for the given time.
func (t *busyTCP) exchange(long time.Duration) (err error) {
	done := make(chan error)
	end := time.Now().Add(long)
	for i, c := range t.conns {
		go func() {
			took := t.took[i][:0]
			var message [busyOctets]byte
			for sent := time.Now(); ; {
				_, err := c.Write(message[:])
				if err == nil {
					_, err = io.ReadFull(c, message[:])
				}
				now := time.Now()
				took = append(took, now.Sub(sent))
				if err != nil || !now.Before(end) {
					t.took[i] = took
					done <- err
					return
				}
				sent = now
			}
		}()
	}
	for range t.conns {
		err = errors.Join(err, <-done)
	}
	return err
}

// serveBusyTCP prints an address, accepts all connections there, and starts their answering.
func serveBusyTCP(conns int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr())
	for range conns {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if err := busyCubic(c.(*net.TCPConn)); err != nil {
			return err
		}
		go func() {
			defer c.Close()
			var message [busyOctets]byte
			for {
				if _, err := io.ReadFull(c, message[:]); err != nil {
					return // the other process has closed it
				}
				if _, err := c.Write(message[:]); err != nil {
					return
				}
			}
		}()
	}
	return nil
}
