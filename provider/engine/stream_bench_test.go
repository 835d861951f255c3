package engine

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// tcpPair connects two sides over TCP on loopback.
func tcpPair(t testing.TB, opts Options, crc bool, so sideOptions) (a, b *side) {
	t.Helper()
	cubic := Options{TCP: transport.TCPOptions{CongestionControl: "cubic"}}
	return pair(t, testkit.Must(tcpNetwork(cubic))(t), tcpAddr, opts, so, params(crc))
}

// spin polls until n completions have come, all of them successes.
func (s *side) spin(n int) {
	wc := &s.wc
	for n > 0 {
		k, err := s.cq.Poll(wc[:min(n, len(wc))])
		if err != nil {
			s.t.Fatal(err)
		}
		for i := range wc[:k] {
			if wc[i].Status != provider.WCSuccess {
				s.t.Fatalf("completion %+v, the connection: %v", wc[i], s.qp.Cause())
			}
		}
		n -= k
	}
}

// BenchmarkPingPong is the round trip of a Send and its answer. Both ends spin.
func BenchmarkPingPong(b *testing.B) {
	for _, crc := range []bool{false, true} {
		for _, size := range []int{64, 4096} {
			b.Run(fmt.Sprintf("crc=%v/size=%d", crc, size), func(b *testing.B) {
				x, y := tcpPair(b, Options{}, crc, sideOptions{})
				stop := make(chan struct{})
				bounce := func(s *side, n int, first bool) {
					m := s.reg(size, provider.AccessLocalWrite)
					sge := []provider.SGE{m.sge(0, size)}
					recv := []provider.RecvWR{{SGList: sge}}
					send := []provider.SendWR{{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sge}}
					s.recv(recv...)
					s.recv(recv...)
					if !first {
						close(stop)
					} else {
						<-stop
						b.ResetTimer()
					}
					for range n {
						if first {
							s.send(send...)
							s.spin(2)
						} else {
							s.spin(1)
							s.send(send...)
							s.spin(1)
						}
						s.recv(recv...)
					}
				}
				done := make(chan struct{})
				go func() { defer close(done); runtime.LockOSThread(); bounce(y, b.N, false) }()
				bounce(x, b.N, true)
				b.StopTimer()
				<-done
			})
		}
	}
}

// BenchmarkWrite streams RDMA Writes, several outstanding. The initiator spins;
// the target's application does nothing. With crc-exposed, peers may write to the source,
// so that a copy of it is sent.
func BenchmarkWrite(b *testing.B) {
	for _, mode := range []struct {
		name   string
		opts   Options
		crc    bool
		access provider.Access
	}{{"crc", Options{}, true, 0}, {"crc-exposed", Options{}, true, provider.AccessRemoteWrite},
		{"nocrc", Options{}, false, 0}} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/size=%d", mode.name, size), func(b *testing.B) {
				x, y := tcpPair(b, mode.opts, mode.crc, sideOptions{})
				src := x.reg(size, provider.AccessLocalWrite|mode.access)
				dst := y.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
				wr := []provider.SendWR{{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
					SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.stag}}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				const depth = 32
				for i := range b.N {
					if i >= depth {
						x.spin(1)
					}
					x.send(wr...)
				}
				x.spin(min(depth, b.N))
			})
		}
	}
}

// BenchmarkSend streams small Sends, posted in lists, both ends spinning. The
// receiver's progress is the sender's credit: iWARP has no flow control of its
// own for Sends.
func BenchmarkSend(b *testing.B) {
	for _, list := range []int{1, 16} {
		b.Run(fmt.Sprintf("size=64/list=%d", list), func(b *testing.B) {
			const receives, depth = 4096, 32
			x, y := tcpPair(b, Options{}, true, sideOptions{
				cap: provider.QPCap{MaxSendWR: depth * 16, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 2 * receives})
			src := x.reg(64, provider.AccessLocalWrite)
			dst := y.reg(64, provider.AccessLocalWrite)
			wrs := make([]provider.SendWR, list)
			for i := range wrs {
				wrs[i] = provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 64)}}
			}
			wrs[list-1].Flags = provider.SendSignaled
			recv := make([]provider.RecvWR, list)
			for i := range recv {
				recv[i].SGList = []provider.SGE{dst.sge(0, 64)}
			}
			for range receives / list {
				y.recv(recv...)
			}
			n := (b.N + list - 1) / list
			b.ReportAllocs()
			b.ResetTimer()
			var taken atomic.Int64
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range n {
					y.spin(list)
					y.recv(recv...)
					taken.Add(int64(list))
				}
			}()
			for i := range n {
				if i >= depth {
					x.spin(1)
				}
				for int64(i*list)-taken.Load() > receives/2 {
					select {
					case <-done:
						b.FailNow() // the receiver has failed, and said why
					default:
						runtime.Gosched()
					}
				}
				x.send(wrs...)
			}
			x.spin(min(depth, n))
			<-done
		})
	}
}
