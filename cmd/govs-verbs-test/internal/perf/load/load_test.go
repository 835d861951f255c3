package load

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// open opens an engine.
func open(t testing.TB, opts engine.Options) *ibverbs.Context {
	t.Helper()
	opts.CongestionControl = "cubic"
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
					{Size: 1, Iters: 1}, {Size: 1, Iters: 500, Warmup: -1}, {Size: 64, Iters: 300}, {Size: 4096, Duration: 20 * time.Millisecond},
					{Size: 4096, Duration: 20 * time.Millisecond}, {Size: 100_001, Iters: 20, SGEs: 3},
				} {
					s.Op, s.Poll = op, poll
					if s.SGEs > 1 && op == SendBW {
						s.TxDepth = 8
					}
					began := time.Now()
					r, err := c.Run(t.Context(), s)
					if err != nil {
						t.Fatalf("%+v: %v", s, err)
					}
					t.Logf("size %d: %d messages in %v (%v all): %.3f GB/s %.3f M/s %+v %v", s.Size, r.Ops, r.Elapsed, time.Since(began), r.GBps(), r.Mops(), r.Lat, r.Client.AllocsPerOp)
					if s.Iters > 0 && r.Ops != uint64(s.Iters) || r.Ops == 0 || r.Octets != r.Ops*uint64(s.Size) || r.Elapsed <= 0 {
						t.Errorf("%+v: %+v", s, r)
					}
					if (r.Lat != nil) != op.Latency() {
						t.Errorf("%+v: latency %+v", s, r.Lat)
					}
				}
			})
		}
	}
}
