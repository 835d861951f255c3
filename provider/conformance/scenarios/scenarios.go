// Package scenarios holds the scenarios of the conformance suite. What is known of the stacks that
// they are run on is in package profile.
package scenarios

import (
	"context"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// Suite returns all scenarios, each call a new suite of the same.
func Suite() *conformance.Suite {
	s := &conformance.Suite{}
	s.Add(sizes()...)
	s.Add(sends()...)
	s.Add(reads()...)
	s.Add(order()...)
	s.Add(connections()...)
	s.Add(protection()...)
	s.Add(queues()...)
	s.Add(sharedQueues()...)
	s.Add(windows()...)
	s.Add(memories()...)
	s.Add(states()...)
	s.Add(objects()...)
	s.Add(rdmac()...)
	s.Add(extensions()...)
	s.Add(products()...)
	s.Add(raw()...)
	for _, slug := range idle {
		s.Find(slug).Idle = true
	}
	return s
}

// idle names the scenarios that wait for half a second or more with siw: for its time limits, or
// for an answer or event that it does not give.
var idle = []string{
	"conn/responder-first-read", "conn/responder-first-write",
	"states/sqd-event", "send/solicited", "send/solicited-with-invalidate", "srq/solicited",
	"mpa/reply-cut-silence", "mpa/reply-silence", "mpa/request-cut-silence", "mpa/request-silence",
	"mpa/request-revision-0", "mpa/ulpdu-length-0", "mpa/ulpdu-length-1", "mpa/fallback",
	"rdmap/invalidate-no-right", "rdmap/invalidate-other-pd",
	"rdmap/invalidate-refused-then-send", "rdmap/invalidate-unknown", "rdmap/invalidate-wrong-key",
	"rdmap/read-mo-not-zero", "rdmap/read-no-right", "rdmap/read-not-last", "rdmap/read-private",
	"rdmap/read-queue-0", "rdmap/response-second-stag", "rdmap/response-second-to",
	"rdmap/solicited-event",
}

// Rights that regions are registered with.
const (
	local       = ibverbs.AccessLocalWrite
	remoteWrite = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	remoteRead  = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead
)

// patient makes the engine wait for a peer's end as long as a loaded machine may need. It is
// for scenarios in which the end has to be orderly, and something else may come before it.
var patient = []string{"close=30s"}

// send is a signalled Send of a whole buffer.
func send(wrid uint64, b *conformance.Buffer) ibverbs.SendWR {
	return ibverbs.SendWR{WRID: wrid, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: b.All()}
}

// write is a signalled RDMA Write of a whole buffer to the start of another.
func write(wrid uint64, from, to *conformance.Buffer) ibverbs.SendWR {
	return ibverbs.SendWR{
		WRID: wrid, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, SGList: from.All(),
		RemoteAddr: to.MR.Addr(), RKey: to.MR.RKey(),
	}
}

// read is a signalled RDMA Read of the start of a buffer into the whole of
// another.
func read(wrid uint64, into, from *conformance.Buffer) ibverbs.SendWR {
	wr := write(wrid, into, from)
	wr.Opcode = ibverbs.WRRDMARead
	return wr
}

// recv is a receive into a whole buffer.
func recv(wrid uint64, b *conformance.Buffer) ibverbs.RecvWR {
	return ibverbs.RecvWR{WRID: wrid, SGList: b.All()}
}

// octets returns a number of octets in words, for use inside a title.
func octets(n int) string {
	if n == 1 {
		return "1 octet"
	}
	return fmt.Sprintf("%d octets", n)
}

// end makes the initiator end the connection, and checks that both sides get the event.
func end(i, p *conformance.Side) {
	i.NoError(i.Conn.Disconnect(), "the initiator can disconnect")
	i.WaitEnd()
	p.WaitEnd()
}

// asyncEvent waits for the next asynchronous event of a side's device: long if due says that there
// has to be one, and only a moment otherwise.
func asyncEvent(r *conformance.VerbsRun, ep *conformance.Endpoint, due bool) (ibverbs.AsyncEvent, error) {
	wait := 20 * time.Millisecond
	if due {
		wait = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(wait))
	defer cancel()
	return ep.Context.AsyncEvent(ctx)
}

// isFPDU reports whether a frame is an FPDU of the opcode that RFC 5040 gives
// this name.
func isFPDU(f *wire.Frame, name string) bool {
	return f.Kind == wire.KindFPDU && f.Opcode().String() == name
}

// isLast reports whether a frame is the last segment of a message with this opcode.
func isLast(f *wire.Frame, name string) bool { return isFPDU(f, name) && f.Header.Last }
