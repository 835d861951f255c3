package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestWindowGoesInflight: a Read of the peer that is being answered ends with a Terminate
// when its window goes, at the segment that can't be read any more.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
func TestWindowGoesInflight(t *testing.T) {
	for _, how := range []string{"invalidation", "Close", "zero length"} {
		t.Run(how, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				const size = 8 << 20
				m := s.reg(size, bindable)
				typ := provider.MWType2
				if how == "zero length" {
					typ = provider.MWType1
				}
				w := testMW(s.t, s.pd, typ)
				if typ == provider.MWType1 {
					testkit.OK(t, s.qp.BindMW(w, 1, signaled,
						provider.MWBindInfo{LKey: m.m.STag(), Addr: m.to(0), Length: size,
							Access: provider.AccessRemoteRead}))
				} else {
					s.send(bindWR(1, w, m.m, 0, size, provider.AccessRemoteRead))
				}
				s.wantWC("the bind", provider.WC{WRID: 1, Opcode: provider.WCBindMW})
				req := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: size, SourceSTag: w.RKey(), SourceTO: m.to(0)}
				header := r.readReq(req)
				s.noWC("the request arrives, and the socket fills up")
				switch how {
				case "invalidation":
					s.send(invWR(2, w.RKey()))
				case "Close":
					testkit.OK(t, w.Close())
				default:
					testkit.OK(t, s.qp.BindMW(w, 2, 0, provider.MWBindInfo{}))
				}
				done := uint32(0)
				for {
					h, payload := r.next("a segment of the response, or the Terminate")
					if h.Tagged {
						done += uint32(len(payload))
						continue
					}
					if done == 0 || done >= size {
						t.Fatalf("%d bytes of %d were sent", done, size)
					}
					term := testkit.Must(rdmap.ParseTerminate(payload, rdmap.PhaseAfterFirstFPDU))(t)
					if term.EType != 1 || term.Code != 0 || term.DDP != header || term.Read != req.Advance(done) {
						t.Fatalf("Terminate %+v after %d bytes", term, done)
					}
					break
				}
				s.wantTerm("the QP ends", false, 0, 1, 0)
			})
		})
	}
}

// TestMemoryWorkAllocs: giving and taking back a window or region allocates nothing.
func TestMemoryWorkAllocs(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return w.name == "TCP" }, func(t *testing.T, w e2eWire) {
		a, _ := newE2EPair(t, w, e2eSetup{})
		m := a.region(4096, bindable)
		one, two, fast := testMW(t, a.pd, provider.MWType1), testMW(t, a.pd, provider.MWType2), testFast(t, a.pd, 64)
		testkit.OK(t, fast.Map(make([]byte, 64)))
		bind, reg := bindWR(1, two, m, 0, 64, provider.AccessRemoteWrite), regWR(2, fast, allRights)
		wrs := []provider.SendWR{bind, reg, invWR(3, 0), invWR(4, 0)}
		var wc [8]provider.WC
		round := func() {
			wrs[0].RKey, wrs[1].RKey = incRKey(two.RKey()), incRKey(fast.RKey())
			wrs[2].InvalidateRKey, wrs[3].InvalidateRKey = wrs[0].RKey, wrs[1].RKey
			if _, err := a.q.PostSend(wrs); err != nil {
				t.Fatal(err)
			}
			if err := a.q.BindMW(one, 5, signaled, *bind.Bind); err != nil {
				t.Fatal(err)
			}
			n, err := a.scq.Poll(wc[:])
			if n != 5 || err != nil {
				t.Fatalf("%d completions: %v", n, err)
			}
			for _, c := range wc[:n] {
				if c.Status != provider.WCSuccess {
					t.Fatalf("%+v", c)
				}
			}
		}
		wantNoAllocs(t, round)
	})
}

// TestResponderBinds: a responder that must not send yet can give and take windows.
//
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
func TestResponderBinds(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		m := s.reg(10, bindable)
		w := testMW(s.t, s.pd, provider.MWType2)
		bind := bindWR(1, w, m.m, 0, 10, provider.AccessRemoteWrite)
		s.send(bind, provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: signaled}, invWR(3, bind.RKey))
		s.wantWC("the bind is done", provider.WC{WRID: 1, Opcode: provider.WCBindMW})
		r.wantIdle("nothing before the first FPDU")
		r.send(rdmap.WriteHeader(bind.RKey, m.to(0), true), []byte("0123456789"))
		r.want("the Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		s.wantWC("the Send", provider.WC{WRID: 2, Opcode: provider.WCSend})
		s.wantWC("the invalidation after it", provider.WC{WRID: 3, Opcode: provider.WCLocalInv})
		testkit.Equal(t, "the region", string(m.b), "0123456789")
	})
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		s.send(invWR(1, 0))
		s.wantWC("what can't be done fails", provider.WC{WRID: 1, Status: provider.WCMWBindErr})
		r.wantFIN("without a Terminate, which would be an FPDU")
		s.wantTerm("the QP ends", false, 0, 0, 0xff)
	})
}
