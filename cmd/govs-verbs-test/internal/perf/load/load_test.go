package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// open opens an engine.
func open(t testing.TB, opts engine.Options) *ibverbs.Context {
	t.Helper()
	opts.TCP.CongestionControl = "cubic"
	vctx, err := ibverbs.Open(engine.New(&opts), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vctx.Close(); err != nil {
			t.Error(err)
		}
	})
	return vctx
}

// pair connects a client to a server in the same process.
func pair(t testing.TB, opts engine.Options) *Client {
	t.Helper()
	ctx := t.Context()
	s, err := Listen(ctx, open(t, opts), netip.MustParseAddrPort("127.0.0.1:0"), End{Provider: "engine", CPU: "server"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.WithoutCancel(ctx), 1) }()
	c, err := Dial(ctx, open(t, opts), s.Addr(), End{Provider: "engine"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// run does one run, and checks what every result has to have.
func run(t testing.TB, c *Client, s Spec) Result {
	t.Helper()
	r, err := c.Run(t.Context(), s)
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	want := uint64(s.Iters) * uint64(max(s.QPs, 1))
	if s.Bidirectional {
		want *= 2
	}
	if s.Iters > 0 && r.Ops != want || r.Ops == 0 || r.Octets != r.Ops*uint64(s.Size) || r.Elapsed <= 0 || r.GBps() <= 0 || r.Mops() <= 0 {
		t.Errorf("%+v: %+v, want %d messages", s, r, want)
	}
	if (r.Lat != nil) != s.Op.Latency() {
		t.Errorf("%+v: latency %+v", s, r.Lat)
	}
	if l := r.Lat; l != nil && (l.Min <= 0 || l.Min > l.Median || l.Median > l.P99 || l.P99 > l.P999 || l.P999 > l.Max || l.Mean < l.Min || l.Mean > l.Max) {
		t.Errorf("%+v: latency %+v", s, l)
	}
	return r
}

// Runs of the tests are short: where CPUs are few and busy, ends that spin wait
// for each other's time slices.
func TestEachOp(t *testing.T) {
	for _, op := range Ops() {
		for _, poll := range []Poll{Spin, Block} {
			if op == WriteLat && poll == Block {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", op, poll), func(t *testing.T) {
				c := pair(t, engine.Options{})
				if c.Peer().CPU != "server" {
					t.Errorf("peer %+v", c.Peer())
				}
				for _, s := range []Spec{
					{Size: 1, Iters: 1, Warmup: 1},
					{Size: 1, Iters: 30, Warmup: -1}, // on the same connections
					{Size: 64, Duration: 2 * time.Millisecond, Warmup: 30},
					{Size: 64, Iters: 10, Warmup: 5},
					{Size: 100_001, Iters: 10, Warmup: 2, TxDepth: 1},
				} {
					s.Op, s.Poll = op, poll
					run(t, c, s)
				}
			})
		}
	}
}

// TestShapes changes one thing at a time from a plain run, whose ends sleep: TestEachOp has ends
// that spin.
func TestShapes(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"plain":    func(*Spec) {},
		"many QPs": func(s *Spec) { s.QPs = 20 },
		"QPs share memory": func(s *Spec) {
			s.QPs, s.Size, s.TxDepth, s.Iters = 3, 700_000, 4, 12
		},
		"one at a time":     func(s *Spec) { s.TxDepth = 1 },
		"one in each post":  func(s *Spec) { s.PostList = 1 },
		"as long as it can": func(s *Spec) { s.PostList = s.TxDepth },
		"scattered":         func(s *Spec) { s.SGEs = 7 },
		"many regions":      func(s *Spec) { s.MRs, s.SGEs = 100, 3 },
		"both ways":         func(s *Spec) { s.Bidirectional, s.QPs = true, 2 },
		"both ways, by time": func(s *Spec) {
			s.Bidirectional, s.Iters, s.Duration = true, 0, 3*time.Millisecond
		},
		"both ways, bytes":    func(s *Spec) { s.Bidirectional, s.Size = true, 1 },
		"both ways, spinning": func(s *Spec) { s.Bidirectional, s.Poll = true, Spin },
		"one Read":            func(s *Spec) { s.Outstanding = 1 },
		"many Reads":          func(s *Spec) { s.Outstanding = MaxOutstanding },
		"inline":              func(s *Spec) { s.Size, s.Inline = 64, 64 },
		"too long to be inline": func(s *Spec) {
			s.Inline = s.Size - 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := pair(t, engine.Options{})
			for _, op := range []Op{WriteBW, ReadBW, SendBW} {
				// The queue, three times.
				s := Spec{Op: op, Poll: Block, Size: 3000, Iters: 111, Warmup: 10, TxDepth: 32}
				if change(&s); s.Inline > 0 && op == ReadBW {
					continue
				}
				run(t, c, s)
			}
		})
	}
}

// TestNoAllocations: neither end allocates anything for an operation while it
// spins. What the runtime itself does meanwhile is far below one for each.
func TestNoAllocations(t *testing.T) {
	if testkit.Race {
		t.Log("the race detector allocates; the test is for a build without it")
		return
	}
	for _, op := range Ops() {
		for _, size := range []int{64, 4096, 200_000} {
			t.Run(fmt.Sprintf("%s, %d bytes", op, size), func(t *testing.T) {
				c := pair(t, engine.Options{})
				s := Spec{Op: op, Size: size, Iters: 4000}
				if op.Latency() {
					s.Iters = 500
				}
				r := run(t, c, s)
				if r.Client.AllocsPerOp > 0.1 || r.Server.AllocsPerOp > 0.1 {
					t.Errorf("%v allocations for an operation at the client, %v at the server", r.Client.AllocsPerOp, r.Server.AllocsPerOp)
				}
			})
		}
	}
}

func TestClientsOneAfterAnother(t *testing.T) {
	ctx := t.Context()
	s, err := Listen(ctx, open(t, engine.Options{}), netip.MustParseAddrPort("[::1]:0"), End{})
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, 0) }()
	vctx := open(t, engine.Options{})
	for n := range 3 {
		c, err := Dial(ctx, vctx, s.Addr(), End{})
		if err != nil {
			t.Fatal(err)
		}
		run(t, c, Spec{Op: WriteBW, Size: 100, Iters: 10})
		if n > 0 {
			// Clients one after another need no pause between them.
		} else if _, err := Dial(ctx, vctx, s.Addr(), End{}); err == nil || !strings.Contains(err.Error(), "busy with another client") {
			t.Errorf("a second client at the same time: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(ctx, vctx, s.Addr(), End{}); err == nil || !strings.Contains(err.Error(),
		"start the server first") {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestServerOfStrangers connects programs that are not clients of package load.
func TestServerOfStrangers(t *testing.T) {
	ctx := t.Context()
	s, err := Listen(ctx, open(t, engine.Options{}), netip.MustParseAddrPort("127.0.0.1:0"), End{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.WithoutCancel(ctx), 2) }()
	vctx := open(t, engine.Options{})
	for _, private := range []string{"", "hello", string(dataPrivate(1, 0)), controlHello + "x"} {
		_, err := rdmacm.Dial(ctx, vctx, s.Addr(), &rdmacm.ConnConfig{PrivateData: []byte(private)})
		var rejected *rdmacm.RejectedError
		if !errors.As(err, &rejected) || string(rejected.PrivateData) != "not a client of "+controlHello {
			t.Errorf("%q: %v", private, err)
		}
	}
	// One that keeps silent about the protocol, and one that doesn't keep to it.
	conn, err := rdmacm.Dial(ctx, vctx, s.Addr(), &rdmacm.ConnConfig{PrivateData: []byte(controlHello)})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	c, err := Dial(ctx, vctx, s.Addr(), End{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ctl.tell(ctx, message{Run: &order{Spec: Spec{Op: WriteBW, Size: MaxSize + 1, Iters: 1}}}); err != nil {
		t.Error(err)
	}
	if _, err := c.ctl.hear(ctx); err == nil || !strings.Contains(err.Error(), "the server: size") {
		t.Errorf("a message that is too large: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "size 1073741825: has to be 1 to 1073741824") {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRunEndsWithContext: neither a spinning nor a sleeping run outlives it.
func TestRunEndsWithContext(t *testing.T) {
	for _, s := range []Spec{
		{Op: WriteBW}, {Op: SendBW, Poll: Block}, {Op: SendLat}, {Op: ReadLat, Poll: Block}, {Op: WriteLat},
	} {
		t.Run(fmt.Sprintf("%s %s", s.Op, s.Poll), func(t *testing.T) {
			srv, err := Listen(t.Context(), open(t, engine.Options{}), netip.MustParseAddrPort("127.0.0.1:0"), End{})
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(context.WithoutCancel(t.Context()), 1) }()
			c, err := Dial(t.Context(), open(t, engine.Options{}), srv.Addr(), End{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			s.Size, s.Duration = 64, time.Hour
			if _, err := c.Run(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Run: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := <-served; err == nil {
				t.Error("the server takes it for an orderly end")
			}
			if err := srv.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDefaultDepth: many QPs have fewer operations outstanding on each.
func TestDefaultDepth(t *testing.T) {
	for _, tc := range []struct{ qps, list, depth, lists int }{
		{1, 0, 128, 32}, {8, 0, 128, 32}, {64, 0, 16, 4}, {1000, 0, 4, 1}, {1000, 16, 16, 16},
	} {
		s := Spec{Op: WriteBW, Size: 1, Iters: 1, QPs: tc.qps, PostList: tc.list}
		if err := s.Complete(); err != nil || s.TxDepth != tc.depth || s.PostList != tc.lists {
			t.Errorf("%+v: %d outstanding in lists of %d, %v", tc, s.TxDepth, s.PostList, err)
		}
	}
}

func TestImpossibleSpecs(t *testing.T) {
	for want, s := range map[string]Spec{
		"there is no workload":          {Op: "write", Size: 1, Iters: 1},
		"poll \"sleep\"":                {Op: WriteBW, Size: 1, Iters: 1, Poll: "sleep"},
		"either a number":               {Op: WriteBW, Size: 1},
		"or a duration":                 {Op: WriteBW, Size: 1, Iters: 1, Duration: 1},
		"have to be at least 0":         {Op: WriteBW, Size: 1, Iters: -1},
		"one message under way":         {Op: SendLat, Size: 1, Iters: 1, QPs: 2},
		"a post list of 2":              {Op: WriteBW, Size: 1, Iters: 1, TxDepth: 1, PostList: 2},
		"2 scatter/gather entries need": {Op: WriteBW, Size: 1, Iters: 1, SGEs: 2},
		"can't be inline":               {Op: ReadBW, Size: 1, Iters: 1, Inline: 1},
		"use --poll spin":               {Op: WriteLat, Size: 1, Iters: 1, Poll: Block},
		"size 0":                        {Op: WriteBW, SGEs: -1, Iters: 1},
		"QPs -1":                        {Op: WriteBW, Size: 1, Iters: 1, QPs: -1},
		"MRs 65537":                     {Op: WriteBW, Size: 1, Iters: 1, MRs: MaxMRs + 1},
		"outstanding Reads 129":         {Op: ReadBW, Size: 1, Iters: 1, Outstanding: MaxOutstanding + 1},
	} {
		if err := s.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// BenchmarkEngine has client and server in one process, which says less of the
// engine than the command's processes with a CPU each do; it is for profiles.
func BenchmarkEngine(b *testing.B) {
	for _, op := range Ops() {
		for _, size := range []int{64, 65536, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op, size), func(b *testing.B) {
				c := pair(b, engine.Options{})
				s := Spec{Op: op, Size: size, Iters: 1, TxDepth: 32}
				if op.Latency() {
					s.TxDepth = 1
				}
				run(b, c, s) // connects
				b.SetBytes(int64(size))
				s.Iters = b.N
				b.ResetTimer()
				r := run(b, c, s)
				b.StopTimer()
				b.ReportMetric(r.Client.AllocsPerOp, "allocs/message")
			})
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
