package rawtcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// pair connects a client to a server in the same process.
func pair(t testing.TB, network Network) *Client {
	t.Helper()
	s, err := Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), network)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ctx := t.Context()
	go func() { served <- s.Serve(ctx, 1) }()
	c, err := Dial(t.Context(), s.Addr(), network)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return c
}

// device opens a device of the engine.
func device(t *testing.T) *ibverbs.Context {
	t.Helper()
	vctx, err := ibverbs.Open(engine.New(nil), "")
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

// streams is a network of rsockets, whose calls always wait.
func streams(t *testing.T) Network {
	vctx := device(t)
	return Network{
		Listen: func(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
			return rsocket.Listen(ctx, vctx, "tcp", addr.String())
		},
		Dial: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return rsocket.Dial(ctx, vctx, "tcp", addr.String())
		},
	}
}

func TestOps(t *testing.T) {
	for _, op := range []load.Op{BW, Lat} {
		for _, over := range []string{"spin", "block", "streams"} {
			poll := load.Poll(over)
			t.Run(fmt.Sprintf("%s, %s", op, over), func(t *testing.T) {
				network := TCP("cubic")
				if over == "streams" {
					network, poll = streams(t), load.Block
				}
				c := pair(t, network)
				for _, s := range []load.Spec{
					{Size: 1, Iters: 1, Warmup: 1}, {Size: 64, Iters: 200, Warmup: -1},
					{Size: 4096, Duration: 20 * time.Millisecond}, // with a thousand messages before
					{Size: 1 << 20, Iters: 3, Warmup: 1}, {Size: 10_000, QPs: 5, Iters: 20, Warmup: 10},
					{Size: 10_000, QPs: 5, Duration: 20 * time.Millisecond, Warmup: 10},
					{Size: 1 << 20, QPs: 5, Duration: 1, Warmup: -1}, // over before all have sent
				} {
					if s.Op, s.Poll = op, poll; op.Latency() {
						s.QPs = 0
					}
					r, err := c.Run(t.Context(), s)
					if err != nil {
						t.Fatalf("%+v: %v", s, err)
					}
					t.Logf("size %d: %d messages in %v: %.3f GB/s %.3f M/s %+v %v", s.Size, r.Ops, r.Elapsed, r.GBps(), r.Mops(), r.Lat, r.Client.AllocsPerOp)
					if s.Iters > 0 && r.Ops != uint64(s.Iters*max(s.QPs, 1)) || r.Ops == 0 || r.Octets != r.Ops*uint64(s.Size) || r.Elapsed <= 0 {
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

// TestStreamsDoNotSpin: a run that asks for it is an error at both ends.
func TestStreamsDoNotSpin(t *testing.T) {
	c := pair(t, streams(t))
	if _, err := c.Run(t.Context(), load.Spec{Op: BW, Size: 64, Iters: 1, Poll: load.Spin}); err == nil {
		t.Error("a stream spins")
	}
}

// TestServerIsNotHeldUp: who connects and says nothing, leaves between its order and its
// connections, or sends a message without end, does not keep the server from others.
func TestServerIsNotHeldUp(t *testing.T) {
	for name, stranger := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"left after its order": func(c net.Conn) {
			_ = binary.Write(c, binary.BigEndian, control)
			_ = json.NewEncoder(c).Encode(load.Spec{Op: BW, Size: 64, Iters: 1, Poll: load.Block})
			_ = c.Close()
		},
		"endless": func(c net.Conn) {
			_ = binary.Write(c, binary.BigEndian, control)
			_, err := c.Write(bytes.Repeat([]byte("a"), 16<<20))
			if err == nil {
				t.Error("16 MiB of one message were taken")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testkit.Must(Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), TCP("cubic")))(t)
			ctx, stop := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- s.Serve(ctx, 0) }()
			defer func() {
				stop()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Errorf("Serve returned %v", err)
				}
				testkit.OK(t, s.Close())
			}()
			x := testkit.Must(net.Dial("tcp", s.Addr().String()))(t)
			defer x.Close()
			stranger(x)
			spec := load.Spec{Op: BW, Size: 64, Iters: 1, Poll: load.Block}
			for deadline := time.Now().Add(time.Minute); ; { // the server may be busy with the stranger
				c := testkit.Must(Dial(t.Context(), s.Addr(), TCP("cubic")))(t)
				_, err := c.Run(t.Context(), spec)
				testkit.OK(t, c.Close())
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestServeCountsClients: a connection that asks for nothing is not one.
func TestServeCountsClients(t *testing.T) {
	s := testkit.Must(Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), TCP("cubic")))(t)
	defer func() { testkit.OK(t, s.Close()) }()
	testkit.OK(t, testkit.Must(net.Dial("tcp", s.Addr().String()))(t).Close())
	over := make(chan error, 1)
	go func() { over <- s.Serve(t.Context(), 1) }()
	c := testkit.Must(Dial(t.Context(), s.Addr(), TCP("cubic")))(t)
	_, err := c.Run(t.Context(), load.Spec{Op: BW, Size: 64, Iters: 1, Poll: load.Block})
	testkit.OK(t, err)
	testkit.OK(t, c.Close())
	testkit.OK(t, <-over)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
