package rsocket_test

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// carriers are the streams that are compared. Each end of an rsocket has a device of its own, as
// two processes have.
var carriers = []struct {
	name string
	pair func(b *testing.B) (c, s net.Conn)
}{
	{"tcp", func(b *testing.B) (c, s net.Conn) {
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(b)
		defer l.Close()
		c = testkit.Must(net.Dial("tcp", l.Addr().String()))(b)
		s = testkit.Must(l.Accept())(b)
		return c, s
	}},
	{"rsocket", func(b *testing.B) (c, s net.Conn) { return enginePair(b, nil) }},
	{"rsocket-nocrc", func(b *testing.B) (c, s net.Conn) { return enginePair(b, &engine.Options{CRC: engine.CRCOff}) }},
}

// enginePair connects two devices of the engine.
func enginePair(t testing.TB, opts *engine.Options) (c, s net.Conn) {
	open := func() *ibverbs.Context {
		vctx := testkit.Must(ibverbs.Open(engine.New(opts), ""))(t)
		t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
		return vctx
	}
	client, server := open(), open()
	ctx := timeout(t)
	l := testkit.Must(rsocket.Listen(ctx, server, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		s, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	}()
	c = testkit.Must(rsocket.Dial(ctx, client, l.Addr().(*net.TCPAddr).AddrPort()))(t)
	return c, <-accepted
}

// BenchmarkRoundTrip measures round trips of 64 octets, where each end blocks.
func BenchmarkRoundTrip(b *testing.B) {
	const size = 64
	for _, k := range carriers {
		b.Run(k.name, func(b *testing.B) {
			c, s := k.pair(b)
			done := make(chan error, 1)
			go func() { done <- echo(s, size) }()
			buf := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			if err := <-done; err != nil {
				b.Error(err)
			}
			s.Close()
		})
	}
}

// echo sends back what comes, size octets at a time.
func echo(c net.Conn, size int) error {
	buf := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// BenchmarkStream measures Writes of 1 MiB and 64 KiB in one direction.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		for _, k := range carriers {
			b.Run(k.name+"/"+map[int]string{64 << 10: "64KiB", 1 << 20: "1MiB"}[size], func(b *testing.B) {
				c, s := k.pair(b)
				done := make(chan int, 1)
				go func() {
					buf, n := make([]byte, size), 0
					for {
						m, err := s.Read(buf)
						n += m
						if err != nil {
							if err != io.EOF {
								b.Error(err)
							}
							break
						}
					}
					done <- n
				}()
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Write(buf); err != nil {
						b.Fatal(err)
					}
				}
				c.Close()
				<-done
				s.Close()
			})
		}
	}
}
