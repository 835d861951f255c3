package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestSinkThatIsClosed: the sink of a work request is closed while the peer answers it. Nothing is
// placed, and the cause of the end names the work request and the region.
func TestSinkThatIsClosed(t *testing.T) {
	for _, op := range []provider.WROpcode{provider.WRRDMARead, provider.WRAtomicFetchAdd} {
		story(t, extended(Options{}), params(true), func(s *side, r *raw) {
			sink := s.reg(8, provider.AccessLocalWrite)
			s.send(provider.SendWR{WRID: 0x21, Opcode: op, SGList: []provider.SGE{sink.sge(0, 8)}})
			lkey := sink.m.LKey()
			if op == provider.WRRDMARead {
				_, payload := r.next("the request")
				q := testkit.Must(rdmap.ParseReadRequest(payload))(t)
				testkit.OK(t, sink.m.Close())
				r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), make([]byte, 8))
			} else {
				q := r.wantAtomic("the request", 1)
				testkit.OK(t, sink.m.Close())
				r.old(1, rdmap.AtomicResponse{ID: q.ID})
			}
			r.wantTerminate("a local catastrophe", fault{iwarp.LayerDDP, 0, 0}, nil, 0, nil)
			s.wantWC("it has nowhere to go", provider.WC{WRID: 0x21, Status: provider.WCLocProtErr})
			sink.untouched(0, 0)
			want := fmt.Sprintf("work request 0x21 (%s), SGE 0: the region with lkey %#x is closed; ", op, lkey)
			if got := s.qp.Cause(); got == nil || !strings.Contains(got.Error(), want) {
				t.Errorf("cause %v, want %q in it", got, want)
			}
		})
	}
}

// TestTerminateAbout: what a peer's Terminate is about, where its code and headers say so.
func TestTerminateAbout(t *testing.T) {
	tagged := ddp.Header{Tagged: true, STag: 0x101, TO: 0x20}
	for _, c := range []struct {
		layer   iwarp.Layer
		etype   iwarp.EType
		code    iwarp.Code
		haveDDP bool
		h       ddp.Header
		want    string
	}{
		{1, 1, 0, true, tagged, ", about a Write to rkey 0x101, address 0x20; the key is wrong or closed, " +
			"or its region lacks AccessRemoteWrite"},
		{1, 1, 1, true, tagged, ", about a Write to rkey 0x101, address 0x20"},
		{1, 0, 0, true, ddp.Header{}, ", about memory of the peer's own: "},
		{0, 0, 0, false, ddp.Header{}, ", about memory of the peer's own: "},
		{0, 2, 7, true, ddp.Header{QN: rdmap.QNReadRequest}, ", about a Read or an atomic operation"},
		{1, 2, 2, true, ddp.Header{}, ", about a Send for which there was no receive"},
		{1, 2, 5, true, ddp.Header{}, ", about a Send that is longer than the receive for it"},
		{2, 0, 0, false, ddp.Header{}, ""},
	} {
		got := terminateAbout(&rdmap.ReceivedTerminate{
			Terminate: rdmap.Terminate{Layer: c.layer, EType: c.etype, Code: c.code, DDP: c.h}, HaveDDP: c.haveDDP,
		})
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%d/%d/%#02x: %q, want %q", c.layer, c.etype, c.code, got, c.want)
		}
	}
}

// TestTerminateAboutAtBothEnds: both ends name what a Terminate is about, in the same words.
func TestTerminateAboutAtBothEnds(t *testing.T) {
	write := rdmap.WriteHeader(0x101, 0x20, true)
	answer := rdmap.ReadResponseHeader(0x102, 0x30, true)
	request := rdmap.ReadRequestHeader(1)
	read := rdmap.ReadRequest{Size: 8, SourceSTag: 0x103, SourceTO: 0x40}
	send := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	invalidate := rdmap.SendHeader(rdmap.OpSendInvalidate, 0x104, 1, 0, true)
	atomic := rdmap.AtomicRequestHeader(1)
	for _, c := range []struct {
		err  error
		h    ddp.Header
		read *rdmap.ReadRequest
		want string
	}{
		{ddp.ErrSTagNotAssociated, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{ddp.ErrTaggedAccess, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{ddp.ErrTOWrap, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{rdmap.ErrResponseLong, answer, nil, ", about a Read Response to STag 0x102, address 0x30"},
		{rdmap.ErrReadNotAssociated, request, &read, ", about a Read of 8 bytes from rkey 0x103, address 0x40"},
		{ddp.ErrNoBuffer, request, nil, ", about a Read"},
		{ddp.ErrNoBuffer, send, nil, ", about a Send for which there was no receive"},
		{rdmap.ErrCannotInvalidate, invalidate, nil, ", about a Send that invalidates rkey 0x104"},
		{rdmap.ErrMayNotInvalidate, invalidate, nil, ", about a Send that invalidates rkey 0x104"},
		{rdmap.ErrAtomicAccess, atomic, nil, ", about an atomic operation"},
	} {
		e := endTerminate(c.err, &c.h, 40, c.read)
		if got := e.cause.Error(); !strings.HasSuffix(got, c.want) {
			t.Errorf("%v, sent: %q does not end with %q", c.err, got, c.want)
		}
		received := testkit.Must(rdmap.ParseTerminate(e.terminate, rdmap.PhaseAfterFirstFPDU))(t)
		if got := terminateText(&received); !strings.Contains(got, c.want) {
			t.Errorf("%v, received: %q does not say %q", c.err, got, c.want)
		}
	}
}
