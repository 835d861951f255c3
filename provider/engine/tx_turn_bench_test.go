package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// BenchmarkReceived measures what it takes to receive an FPDU, without the system call.
// policy.FPDUCost is derived from it.
func BenchmarkReceived(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int
		mix  bool // no two neighbours have the same length, so that none are taken as a run
	}{
		{"empty", 0, false}, {"empty-one-by-one", 0, true}, {"64", 64, false},
		{"64-one-by-one", 64, true},
		{"1384", 1384, false}, {"60000", 60000, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			x, y := tcpPair(b, Options{}, true, sideOptions{})
			_ = x
			in := y.replaceConn()
			dst := y.reg(1<<16, provider.AccessLocalWrite|provider.AccessRemoteWrite)
			framer := mpa.NewFramer(false, true)
			var octets []byte
			fpdus := 0
			for ; len(octets) < 200<<10; fpdus++ {
				n := c.n
				if c.mix && fpdus%2 == 1 {
					n += 4
				}
				var h ddp.Header
				if n == 0 {
					h = rdmap.WriteHeader(0xdead, 0, true)
				} else {
					h = rdmap.WriteHeader(dst.m.STag(), dst.to(0), true)
				}
				octets = testkit.Must(framer.AppendFPDU(octets, h.AppendTo(nil), dst.b[:n]))(b)
			}
			b.ResetTimer()
			for i := 0; i < b.N; i += fpdus {
				in.in = octets
				for len(in.in) > 0 {
					y.qp.stream.Load().rx.poll(policy.BudgetMost)
				}
			}
			b.StopTimer()
			if y.qp.Cause() != nil {
				b.Fatal(y.qp.Cause())
			}
			per := float64(b.Elapsed().Nanoseconds()) / float64((b.N+fpdus-1)/fpdus*fpdus)
			b.ReportMetric(per, "ns/FPDU")
			b.ReportMetric(per*float64(fpdus)/float64(len(octets)), "ns/octet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// readUntil reads what comes until stop is closed.
func readUntil(c transport.Conn, stop <-chan struct{}) {
	drop := make([]byte, 1<<20)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if _, err := c.Readv([][]byte{drop}); err != nil {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// BenchmarkSent measures what it takes to send an FPDU over loopback, with the system calls.
// policy.FPDUCost and policy.RecordCost are derived from it.
func BenchmarkSent(b *testing.B) {
	for _, mss := range []int{88, 90, 536, 1448, 65483} {
		for _, crc := range []bool{true, false} {
			b.Run(fmt.Sprintf("mss=%d/crc=%v", mss, crc), func(b *testing.B) {
				const size = 256 << 10
				x := newSide(b, Options{}, sideOptions{})
				network := testkit.Must(tcpNetwork(Options{TCP: transport.TCPOptions{CongestionControl: "cubic"}}))(b)
				mine, theirs := connectTransport(b, network, tcpAddr)
				x.start(mine, params(crc))
				st := x.qp.stream.Load()
				src := x.reg(size, provider.AccessLocalWrite)
				wr := []provider.SendWR{{
					Opcode: provider.WRRDMAWrite, Flags: signaled,
					SGList: []provider.SGE{src.sge(0, size)},
				}}
				// The peer reads all the time: of short records the engine leaves only so many
				// not sent (limitNotSent), and a peer with a full buffer would take seconds.
				stop, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					readUntil(theirs, stop)
				}()
				var took time.Duration
				b.ResetTimer()
				for range b.N {
					st.tx.mu.Lock() // as if the path had such segments
					st.tx.format.SetEMSS(mss)
					st.tx.mssAge = 1
					st.tx.mu.Unlock()
					began := time.Now()
					x.send(wr...)
					x.spin(1)
					took += time.Since(began)
				}
				b.StopTimer()
				close(stop)
				<-ended
				fpdus := float64((size + mpa.MULPDU(mss, false) - 15) / (mpa.MULPDU(mss, false) - 14))
				per := float64(took.Nanoseconds()) / float64(b.N)
				b.ReportMetric(per/fpdus, "ns/FPDU")
				b.ReportMetric(per/size, "ns/octet")
			})
		}
	}
}

// nowhere is a stream whose bytes cost nothing: it drops written bytes, or keeps them in out, and
// in can be read once.
type nowhere struct {
	transport.Conn // what it is in the place of
	keep           bool
	mss            int // 0: that of Conn
	out, in        []byte
}

func (c *nowhere) MSS() int {
	if c.mss != 0 {
		return c.mss
	}
	return c.Conn.MSS()
}

func (c *nowhere) Writev(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
		if c.keep {
			c.out = append(c.out, b...)
		}
	}
	return n, nil
}

func (c *nowhere) Readv(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		k := copy(b, c.in)
		c.in = c.in[k:]
		n += k
	}
	if n == 0 {
		return 0, transport.ErrWouldBlock
	}
	return n, nil
}

// replaceConn gives s a stream to nowhere.
func (s *side) replaceConn() *nowhere {
	st := s.qp.stream.Load()
	var c *nowhere
	st.replaceConn(func(own transport.Conn) transport.Conn {
		c = &nowhere{Conn: own}
		return c
	})
	s.t.Cleanup(func() {
		st.alone(func() {
			st.closer.mu.Lock() // a stream that has ended belongs to its lingering
			defer st.closer.mu.Unlock()
			st.conn = c.Conn
		})
	})
	return c
}

// BenchmarkPath is what the engine itself takes for one operation of a list of
// 32, the last one signalled, without any system call: from post to completion
// (tx), and from the bytes to the region (rx).
func BenchmarkPath(b *testing.B) {
	const list = 32
	for _, op := range []struct {
		name string
		op   provider.WROpcode
	}{{"write", provider.WRRDMAWrite}, {"send", provider.WRSend}} {
		for _, size := range []int{64, 1024, 4096} {
			for _, dir := range []string{"tx", "rx"} {
				b.Run(fmt.Sprintf("%s/size=%d/%s", op.name, size, dir), func(b *testing.B) {
					x, y := tcpPair(b, Options{}, true, sideOptions{
						cap: provider.QPCap{MaxSendWR: 128, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}})
					out, in := x.replaceConn(), y.replaceConn()
					src := x.reg(list*size, provider.AccessLocalWrite)
					dst := y.reg(list*size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
					wrs := make([]provider.SendWR, list)
					recvs := make([]provider.RecvWR, list)
					for i := range wrs {
						wrs[i] = provider.SendWR{Opcode: op.op, SGList: []provider.SGE{src.sge(i*size, size)},
							RemoteAddr: dst.to(i * size), RKey: dst.m.STag()}
						recvs[i].SGList = []provider.SGE{dst.sge(i*size, size)}
					}
					wrs[list-1].Flags = provider.SendSignaled
					out.keep = dir == "rx"
					b.ReportAllocs()
					b.ResetTimer()
					var tx, rx time.Duration
					for n := 0; n < b.N; n += list {
						out.out = out.out[:0]
						began := time.Now()
						x.send(wrs...)
						x.spin(1)
						tx += time.Since(began)
						if !out.keep {
							continue
						}
						in.in = out.out
						began = time.Now()
						if op.op == provider.WRSend {
							y.recv(recvs...)
							y.spin(list)
						} else {
							y.qp.stream.Load().rx.poll(policy.BudgetMost)
						}
						rx += time.Since(began)
					}
					if out.keep {
						tx = rx
					}
					b.ReportMetric(float64(tx.Nanoseconds())/float64((b.N+list-1)/list*list), "ns/op")
				})
			}
		}
	}
}
