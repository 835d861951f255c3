package engine

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// besides connects one more QP of s's device and CQ, to a scripted peer. It is
// closed when the test ends.
func (s *side) besides(network *memnet.Network) (*qp, *raw) {
	s.t.Helper()
	return s.besidesAt(network, memAddr)
}

// besidesAt is besides with a peer that has another address.
func (s *side) besidesAt(network *memnet.Network, addr string) (*qp, *raw) {
	s.t.Helper()
	q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}})
	r := newRaw(s.t, q, network, addr, params(true), func(error) {})
	s.t.Cleanup(func() { testkit.OK(s.t, q.Close()) })
	return q, r
}

// hostile plays a script with a QP that bad peers share a device and a CQ with.
func hostile(t *testing.T, script func(s *side, good *raw, network *memnet.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network, SendTimeout: -1}, sideOptions{cqe: 8192})
		script(s, s.connectRaw(network), network)
	})
}

// wantServed checks that the good peer's connection works, both ways.
func (s *side) wantServed(what string, good *raw) {
	s.t.Helper()
	msn := good.sendMSN
	s.recv(provider.RecvWR{WRID: 1})
	good.sendMsg(nil)
	s.wantWC(what, provider.WC{WRID: 1, Opcode: provider.WCRecv})
	s.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled})
	good.want(what, rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true))
	s.wantWC(what, provider.WC{WRID: 2, Opcode: provider.WCSend})
}

// TestPeersThatDoNotRead: a peer that takes nothing gets its own connection stuck.
// Others with the same CQ go on, the region that is being sent can be closed, and
// closing the QP flushes at once.
func TestPeersThatDoNotRead(t *testing.T) {
	hostile(t, func(s *side, good *raw, network *memnet.Network) {
		const n, wrs = 1 << 20, 4
		m := testkit.Must(s.pd.RegMR(make([]byte, n), provider.AccessLocalWrite))(t).(*memory.Region)
		var stuck []*qp
		for i := range 10 {
			q, _ := s.besides(network)
			for j := range wrs {
				testkit.Must(q.PostSend([]provider.SendWR{{WRID: uint64(10*i + j),
					Opcode: provider.WRSend, Flags: provider.SendSignaled,
					SGList: []provider.SGE{{Addr: m.Addr(), Length: n, LKey: m.STag()}}}}))(t)
			}
			stuck = append(stuck, q)
		}
		time.Sleep(time.Hour)
		s.wantServed("others are served", good)
		testkit.OK(t, m.Close())
		for _, q := range stuck {
			begin := time.Now()
			testkit.OK(t, q.Close())
			if took := time.Since(begin); took > 0 {
				t.Errorf("Close took %v", took)
			}
		}
		for range len(stuck) * wrs {
			testkit.Equal(t, "the status", s.poll().Status, provider.WCWRFlushErr)
		}
		s.wantServed("others are served afterwards", good)
	})
}

// TestFloods: messages without bytes are cheap to send. They reach nothing, and
// do not keep others from being served; those that need a receive or a place among
// the Reads end the connection when there is none.
//
//rfc:5040 RDMAP-5.1-06 Zero-length Write allowed, not STag-checked
//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
func TestFloods(t *testing.T) {
	for _, tc := range []struct {
		name string
		msg  func(r *raw) []byte
		ends bool
	}{
		{"Writes to nowhere", func(r *raw) []byte { return r.fpdu(rdmap.WriteHeader(0xdead, 0, true), nil) }, false},
		{"Sends without an end", func(r *raw) []byte { return r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), nil) }, false},
		{"Sends", func(r *raw) []byte {
			r.sendMSN++
			return r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN-1, 0, true), nil)
		}, true},
		{"Reads of nothing", func(r *raw) []byte {
			r.readMSN++
			return r.fpdu(rdmap.ReadRequestHeader(r.readMSN-1), (&rdmap.ReadRequest{}).AppendTo(nil))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hostile(t, func(s *side, good *raw, network *memnet.Network) {
				q, bad := s.besides(network)
				testkit.Must(q.PostRecv([]provider.RecvWR{{WRID: 50}}))(t)
				for i := range 20 {
					var flood []byte
					for range 1000 {
						flood = append(flood, tc.msg(bad)...)
					}
					for len(flood) > 0 {
						n, err := bad.c.Writev([][]byte{flood})
						if flood = flood[n:]; err != nil {
							break
						}
						synctest.Wait()
					}
					if i%5 == 0 && !tc.ends {
						s.wantServed(fmt.Sprintf("others are served after %d000 messages", i+1), good)
					}
				}
				time.Sleep(time.Hour)
				testkit.Equal(t, "the connection has ended", q.getState() == provider.QPErr,
					tc.ends)
				for n := 0; ; { // of the flooded QP
					var wc [16]provider.WC
					if n = testkit.Must(s.cq.Poll(wc[:]))(t); n == 0 {
						break
					}
				}
				s.wantServed("others are served in the end", good)
			})
		})
	}
}
