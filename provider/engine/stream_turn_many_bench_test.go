//go:build linux

package engine

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// BenchmarkWriteMany streams Writes over many connections of one device at once. It shows what
// short turns cost.
func BenchmarkWriteMany(b *testing.B) {
	for _, n := range []int{16, 64} {
		for _, size := range []int{1000, 1 << 20} {
			b.Run(fmt.Sprintf("qps=%d/size=%d", n, size), func(b *testing.B) {
				network := testkit.Must(tcpNetwork(Options{TCP: transport.TCPOptions{CongestionControl: "cubic"}}))(b)
				so := sideOptions{cqe: 1 << 14, cap: provider.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1}}
				x, y := newSide(b, Options{Network: network}, so), newSide(b, Options{Network: network}, so)
				src := x.reg(size, provider.AccessLocalWrite)
				dst := y.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
				var qps []*qp
				for range n {
					cx, cy := connectTransport(b, network, tcpAddr)
					qx, qy := x.newQP(so), y.newQP(so)
					testkit.OK(b, qx.start(cx, params(true), nil, func(error) {}))
					p := params(true)
					p.WaitFirstFPDU = true
					testkit.OK(b, qy.start(cy, p, nil, func(error) {}))
					qps = append(qps, qx)
					b.Cleanup(func() { qx.Close(); qy.Close() })
				}
				wr := []provider.SendWR{{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
					SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.stag}}
				b.SetBytes(int64(size))
				b.ResetTimer()
				const depth = 4
				for i := range b.N {
					if i >= depth*n {
						x.spin(1)
					}
					for {
						if k, err := qps[i%n].PostSend(wr); k == 1 {
							break
						} else if err != nil && qps[i%n].Cause() != nil {
							b.Fatal(err)
						}
						x.dev.poller.Poll()
					}
				}
				x.spin(min(depth*n, b.N))
			})
		}
	}
}
