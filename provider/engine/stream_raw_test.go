package engine

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// raw is a scripted peer: it sends whatever the test says, and says in English
// what it expects.
type raw struct {
	t      testing.TB
	c      transport.Conn
	framer mpa.Framer
	d      mpa.Receiver
	in     []byte
	buf    []byte // of reads
	eof    bool
	err    error

	sendMSN, readMSN uint32
}

// story plays a scenario between a QP and a scripted peer, in a bubble of its
// own, where waiting costs nothing. p is the QP's parameters.
func story(t *testing.T, opts Options, p mpa.Params, script func(s *side, r *raw)) {
	t.Helper()
	storyOn(t, memnet.Options{}, opts, p, sideOptions{}, script)
}

func storyOn(t *testing.T, net memnet.Options, opts Options, p mpa.Params, so sideOptions, script func(s *side, r *raw)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Network = memnet.New(&net)
		s := newSide(t, opts, so)
		r := newRaw(t, s.qp, opts.Network, memAddr, p, s.ended)
		defer r.c.Close()
		script(s, r)
	})
}

// newRaw connects q, whose parameters are p, to a scripted peer, which is closed with the test.
func newRaw(t testing.TB, q *qp, network transport.Network, addr string, p mpa.Params, onDown func(error)) *raw {
	t.Helper()
	mine, theirs := connectTransport(t, network, addr)
	t.Cleanup(func() { theirs.Close() })
	testkit.OK(t, q.start(mine, p, onDown))
	return rawOn(t, theirs, p)
}

// rawOn is the peer of a QP with parameters p, on the other end of its connection.
func rawOn(t testing.TB, c transport.Conn, p mpa.Params) *raw {
	return &raw{t: t, c: c, framer: mpa.NewFramer(p.MarkersRx, p.CRC),
		d: mpa.NewReceiver(p.MarkersTx, p.CRC), sendMSN: 1, readMSN: 1}
}

// connectRaw connects the side's QP to a scripted peer.
func (s *side) connectRaw(network transport.Network) *raw {
	s.t.Helper()
	return newRaw(s.t, s.qp, network, memAddr, params(true), s.ended)
}

// write sends bytes as they are.
func (r *raw) write(b []byte) {
	r.t.Helper()
	for end := time.Now().Add(patience); len(b) > 0; {
		n, err := r.c.Writev([][]byte{b})
		b = b[n:]
		switch {
		case errors.Is(err, transport.ErrWouldBlock) && time.Now().Before(end):
			time.Sleep(time.Millisecond)
		case err != nil:
			r.t.Fatalf("the peer's write: %v", err)
		}
	}
}

// fpdu frames a segment.
func (r *raw) fpdu(h ddp.Header, payload []byte) []byte {
	r.t.Helper()
	return testkit.Must(r.framer.AppendFPDU(nil, h.AppendTo(nil), payload))(r.t)
}

// send sends a segment.
func (r *raw) send(h ddp.Header, payload []byte) {
	r.t.Helper()
	r.write(r.fpdu(h, payload))
}

// read waits for more bytes. It reports false at the end of the stream.
func (r *raw) read(wait time.Duration) bool {
	r.t.Helper()
	buf := r.buffer()[:64<<10]
	for end := time.Now().Add(wait); ; {
		n, err := r.c.Readv([][]byte{buf})
		switch {
		case n > 0:
			r.in = append(r.in, buf[:n]...)
			return true
		case errors.Is(err, io.EOF):
			r.eof = true
			return false
		case !errors.Is(err, transport.ErrWouldBlock):
			r.err = err
			return false
		case time.Now().After(end):
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// buffer is what reads read into: 1 MiB, which takes long to make under the race detector.
func (r *raw) buffer() []byte {
	if r.buf == nil {
		r.buf = make([]byte, 1<<20)
	}
	return r.buf
}

// next waits for a segment.
func (r *raw) next(what string) (ddp.Header, []byte) {
	r.t.Helper()
	for {
		span, need, err := r.d.Next(r.in, nil)
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
		if need == 0 {
			r.in = bytes.Clone(r.in[span.Len:])
			h, payload, err := ddp.Parse(bytes.Clone(span.ULPDU))
			testkit.OK(r.t, err)
			return h, payload
		}
		if !r.read(patience) {
			r.t.Fatalf("%s: got %d bytes of an FPDU, end of stream %v, error %v", what, len(r.in), r.eof, r.err)
		}
	}
}

// want waits for a segment with a certain header.
func (r *raw) want(what string, want ddp.Header) []byte {
	r.t.Helper()
	h, payload := r.next(what)
	if h != want {
		r.t.Fatalf("%s: header\n%+v, want\n%+v", what, h, want)
	}
	return payload
}

// wantIdle checks that the QP sends nothing for a while.
func (r *raw) wantIdle(what string) {
	r.t.Helper()
	if len(r.in) > 0 || r.read(100*time.Millisecond) {
		r.t.Fatalf("%s: % x", what, r.in)
	}
	if r.eof || r.err != nil {
		r.t.Fatalf("%s: end of stream %v, error %v", what, r.eof, r.err)
	}
}

// wantFIN waits for the end of the stream, in order and with nothing before it.
func (r *raw) wantFIN(what string) {
	r.t.Helper()
	if !r.eof && (len(r.in) > 0 || r.read(patience)) {
		r.t.Fatalf("%s: % x", what, r.in)
	}
	if !r.eof {
		r.t.Fatalf("%s: no end of stream, error %v", what, r.err)
	}
}

// wantReset waits for a connection reset.
func (r *raw) wantReset(what string) {
	r.t.Helper()
	if len(r.in) > 0 || r.read(patience) || r.err == nil {
		r.t.Fatalf("%s: no reset but % x, end of stream %v", what, r.in, r.eof)
	}
}

// fault is what a Terminate reports.
type fault struct {
	layer iwarp.Layer
	etype iwarp.EType
	code  iwarp.Code
}

// wantTerminate waits for a Terminate. With a nil header it must have none
// attached, with a nil Read Request none of that.
func (r *raw) wantTerminate(what string, f fault, h *ddp.Header, payloadLen int, read *rdmap.ReadRequest) {
	r.t.Helper()
	payload := r.want(what, rdmap.TerminateHeader())
	want := rdmap.Terminate{Layer: f.layer, EType: f.etype, Code: f.code}
	if h != nil {
		want.M, want.D, want.DDP = true, true, *h
		want.SegmentLength = uint16(h.Len() + payloadLen)
	}
	if read != nil {
		want.R, want.Read = true, *read
	}
	got := testkit.Must(rdmap.ParseTerminate(payload, rdmap.PhaseAfterFirstFPDU))(r.t)
	if got.Terminate != want || !bytes.Equal(payload, want.AppendTo(nil)) {
		r.t.Fatalf("%s: Terminate\n%+v, want\n%+v", what, got.Terminate, want)
	}
}

// sendMsg sends a Send message of one segment.
func (r *raw) sendMsg(payload []byte) {
	r.t.Helper()
	r.send(rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, 0, true), payload)
	r.sendMSN++
}

// readReq sends a Read Request.
func (r *raw) readReq(q rdmap.ReadRequest) ddp.Header {
	r.t.Helper()
	h := rdmap.ReadRequestHeader(r.readMSN)
	r.send(h, q.AppendTo(nil))
	r.readMSN++
	return h
}
