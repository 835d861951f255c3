package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

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
