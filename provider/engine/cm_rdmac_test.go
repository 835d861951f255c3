package engine

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestRDMACRefusal looks at the bytes of the refusals, and at how the connection ends:
// gracefully, so that the peer can read them.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
func TestRDMACRefusal(t *testing.T) {
	zero := func(f *mpa.Frame) { *f = mpa.Frame{Markers: true, CRC: true} }
	for name, tc := range map[string]struct {
		policy  mpa.RDMACPolicy
		request []byte
		want    *mpa.Frame // nil: no Reply
	}{
		"revision 0 refused":               {mpa.RDMACRefused, rawRequest(zero), &mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Revision: 1}},
		"revision 0 without M refused":     {mpa.RDMACRefused, rawRequest(func(f *mpa.Frame) { f.Revision = 0 }), &mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Revision: 1}},
		"revision 2 where only 0 is known": {mpa.RDMACOnly, rawRequest(nil), &mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Markers: true}},
		"revision 0 without M":             {mpa.RDMACPermitted, rawRequest(func(f *mpa.Frame) { f.Revision = 0 }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{Conformance: Conformance{RDMAC: tc.policy}}, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				p := w.dialRaw(l.LocalAddr())
				p.send(tc.request)
				if tc.want != nil {
					if f := p.wantFrame("a Reply says which revision there is", mpa.KindReply); fmt.Sprint(f) != fmt.Sprint(*tc.want) {
						t.Errorf("%+v, want %+v", f, *tc.want)
					}
				}
				if err := p.wantEnd("then it closes"); tc.want != nil && err != io.EOF {
					t.Errorf("with %v", err)
				}
				w.server.wantIdle("the program hears nothing")
			})
		})
	}
}

// TestRDMACRejects: the program's own reject has the revision of the connection.
//
//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
func TestRDMACRejects(t *testing.T) {
	onNetworks(t, Options{Conformance: Conformance{RDMAC: mpa.RDMACPermitted}}, func(t *testing.T, w *cmWorld) {
		rdmac := w.host(Options{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, Network: w.net})
		l := w.server.listen()
		client := rdmac.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ := w.server.wantRequest("revision 0", l)
		testkit.OK(t, server.Reject([]byte("not today")))
		e := rdmac.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		testkit.Equal(t, "private data", string(e.Param.PrivateData), "not today")

		// An enhanced Request is rejected unseen and made again in revision 1.
		old := rdmac.listen()
		client = w.active.connect(old.LocalAddr(), provider.ConnParam{})
		server, _ = rdmac.wantRequest("revision 1", old)
		testkit.OK(t, server.Reject([]byte("no")))
		e = w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		testkit.Equal(t, "private data", string(e.Param.PrivateData), "no")
	})
}

func TestRDMACOptions(t *testing.T) {
	for _, o := range []Options{
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly + 1}},
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, PeerToPeer: true},
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, Extensions: true},
	} {
		if _, err := New(&o).Open(""); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "RDMAC") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// rdmacParams returns the parameters of a connection of version 0.
func rdmacParams() mpa.Params {
	return mpa.Params{RDMAC: true, CRC: true, MarkersTx: true, MarkersRx: true, IRD: 4, ORD: 4}
}

// zero is a header in version 0.
func zero(h ddp.Header) ddp.Header { rdmap.SetRDMAC(&h); return h }

// TestRDMACOnTheWire looks at the header of everything that a QP can send.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
func TestRDMACOnTheWire(t *testing.T) {
	story(t, extended(Options{}), rdmacParams(), func(s *side, r *raw) {
		m := s.reg(4096, everything)
		one := []provider.SGE{m.sge(0, 16)}
		s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{m.sge(2048, 100)}})
		s.send(
			provider.SendWR{WRID: 1, Opcode: provider.WRSend, SGList: one},
			provider.SendWR{WRID: 2, Opcode: provider.WRSendWithInv, InvalidateRKey: 77, Flags: provider.SendSolicited, SGList: one},
			provider.SendWR{WRID: 3, Opcode: provider.WRRDMAWrite, RKey: 9, RemoteAddr: 70, SGList: []provider.SGE{m.sge(0, 2000)}},
			provider.SendWR{WRID: 4, Opcode: provider.WRRDMARead, RKey: 9, RemoteAddr: 70, SGList: []provider.SGE{m.sge(3000, 8)}, Flags: provider.SendSignaled},
		)
		r.want("a Send", zero(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)))
		r.want("a Send with SE and Invalidate", zero(rdmap.SendHeader(rdmap.OpSendSEInvalidate, 77, 2, 0, true)))
		first := r.want("a Write", zero(rdmap.WriteHeader(9, 70, false)))
		r.want("its second segment", zero(rdmap.WriteHeader(9, 70+uint64(len(first)), true)))
		q := testkit.Must(rdmap.ParseReadRequest(r.want("a Read Request",
			zero(rdmap.ReadRequestHeader(1)))))(t)
		r.send(zero(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true)), make([]byte, 8))
		s.wantWC("the Read is answered", provider.WC{WRID: 4, Opcode: provider.WCRDMARead, ByteLen: 8})

		for _, op := range []provider.WROpcode{provider.WRSendWithImm, provider.WRRDMAWriteWithImm, provider.WRAtomicFetchAdd, provider.WRMaskedAtomicCmpAndSwp} {
			_, err := s.qp.PostSend([]provider.SendWR{{Opcode: op, SGList: one}})
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "RDMA Consortium") {
				t.Errorf("%s: %v", op, err)
			}
		}

		r.send(zero(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)), make([]byte, 10))
		s.wantWC("a Send of the peer", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 10})
		req := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: 12, SourceSTag: m.m.STag(), SourceTO: m.to(0)}
		r.send(zero(rdmap.ReadRequestHeader(1)), req.AppendTo(nil))
		r.want("a Read Response", zero(rdmap.ReadResponseHeader(5, 6, true)))

		// The version differs from the stream's.
		h := rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true)
		r.send(h, make([]byte, 4))
		want := rdmap.Terminate{Layer: iwarp.LayerDDP, EType: iwarp.DDPUntaggedBuffer, Code: iwarp.DDPUntaggedInvalidVersion, M: true, D: true, DDP: h, SegmentLength: 22}
		got := r.want("a Terminate, of version 0 itself", zero(rdmap.TerminateHeader()))
		testkit.EqualBytes(t, "the Terminate", got, want.AppendTo(nil))
		r.wantFIN("and FIN")
	})
}

// TestRDMACTerminates: whatever ends the stream, and whoever finds it, the Terminate
// has the stream's version, and so has a header that it shows.
func TestRDMACTerminates(t *testing.T) {
	terminate := zero(rdmap.TerminateHeader())
	for name, end := range map[string]func(s *side, r *raw){
		"RDMAP version": func(s *side, r *raw) {
			h := zero(rdmap.WriteHeader(1, 2, true))
			h.ULPCtl |= rdmap.Version << 6
			r.send(h, nil)
			got := testkit.Must(rdmap.ParseTerminate(r.want("DV 0 with RV 1", terminate),
				rdmap.PhaseAfterFirstFPDU))(t)
			if got.Layer != iwarp.LayerRDMAP || got.Code != iwarp.RDMAPInvalidVersion || got.DDP != h {
				t.Errorf("%+v", got)
			}
		},
		"local": func(s *side, r *raw) {
			s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{{Addr: 1, Length: 1, LKey: 1}}})
			r.want("a work request that can't be sent", terminate)
		},
		"SQE": func(s *side, r *raw) {
			testkit.OK(t, s.modify(provider.QPSQE))
			r.want("the program ends the stream", terminate)
		},
		"source of a Read": func(s *side, r *raw) {
			h := zero(rdmap.ReadRequestHeader(1))
			req := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: 12, SourceSTag: 0x1234500, SourceTO: 0}
			r.send(h, req.AppendTo(nil))
			got := testkit.Must(rdmap.ParseTerminate(r.want("no such region", terminate),
				rdmap.PhaseAfterFirstFPDU))(t)
			if !got.HaveDDP || got.DDP != h || !got.HaveRead || got.Read != req {
				t.Errorf("%+v", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, Options{}, rdmacParams(), func(s *side, r *raw) {
				end(s, r)
				r.wantFIN("and FIN")
			})
		})
	}
}
