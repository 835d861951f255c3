package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// connections are about making and ending them.
func connections() []*conformance.Scenario {
	out := []*conformance.Scenario{
		{
			Slug: "conn/reject", Level: conformance.Must,
			Title:        "a rejected initiator gets an error with the responder's private data",
			Requirements: []string{"MPA-7.1.1-11"},
			Verbs:        reject, Wire: legal,
		},
		{
			Slug: "conn/no-listener", Level: conformance.Must, Title: "connecting where nobody listens fails, and says that it was refused",
			Verbs: noListener,
		},
		{
			Slug: "conn/disconnect-initiator", Level: conformance.Must,
			Title: "when the initiator disconnects, both sides get the event, and " +
				"receives that are posted are flushed",
			Requirements: []string{"MPA-7.2-02", "DDP-3-07"},
			Verbs:        func(r *conformance.VerbsRun) { disconnect(r, conformance.RoleInitiator) }, Wire: legal,
		},
		{
			Slug: "conn/disconnect-responder", Level: conformance.Must,
			Title: "when the responder disconnects, both sides get the event, and receives that " +
				"are posted are flushed",
			Verbs: func(r *conformance.VerbsRun) { disconnect(r, conformance.RoleResponder) }, Wire: legal,
		},
		{
			Slug: "conn/shutdown", Level: conformance.Must, Title: "an orderly shutdown loses nothing that was posted before it, and ends with a FIN on either side",
			Verbs: shutdown, Wire: orderly, Options: patient,
		},
		{
			Slug: "conn/many-in-turn", Level: conformance.Must, Title: "twenty connections one after another all work", Timeout: 20 * time.Second,
			Verbs: manyInTurn, Wire: legal,
		},
		{
			Slug: "conn/many-at-once", Level: conformance.Must,
			Title: "twenty connections at once all work and don't mix", Timeout: 20 * time.Second,
			Verbs: manyAtOnce, Wire: legal, Concurrent: true,
			// The last connection waits until the others have been accepted. With an agent,
			// each verb of these takes a round trip.
			Options: []string{"startup=60s"},
		},
	}
	out = append(out, &conformance.Scenario{
		Slug: "conn/read-depths", Level: conformance.Must,
		Title:        "each side's IRD bounds the other's ORD, and the programs learn them",
		Requirements: []string{"MPA2-9.1-02", "MPA2-9.1-03"},
		Verbs:        readDepths, Wire: depthsAgreed,
	}, &conformance.Scenario{
		Slug: "mpa/crc-default", Level: conformance.Must,
		Title:        "a connection that is left to the defaults has CRC: the Request asks for it",
		Requirements: []string{"MPA-4.4-02"},
		Verbs: func(r *conformance.VerbsRun) {
			i, p := r.Connect(nil, nil)
			end(i, p)
		},
		Wire: crcAsked,
	})
	for _, rtr := range []string{"write", "read", "send"} {
		out = append(out, &conformance.Scenario{
			Slug: "conn/responder-first-" + rtr, Level: conformance.Must,
			Title:        "a responder to which the connection was opened with a " + rtr + " may send before the initiator's program does",
			Requirements: []string{"MPA2-5-02", "MPA2-9.2-08"}, Options: []string{"rtr=" + rtr},
			Verbs: func(r *conformance.VerbsRun) { responderFirst(r, rtr) }, Wire: legal,
		})
	}
	for _, n := range []int{0, 1, 56, 251} {
		out = append(out, &conformance.Scenario{
			Slug: fmt.Sprintf("conn/private-data-%d", n), Level: conformance.Must,
			Title:        fmt.Sprintf("private data of %s arrives on both sides as it was sent", octets(n)),
			Requirements: []string{"MPA-7.1.1-17", "MPA-7.1.1-20"},
			Verbs:        func(r *conformance.VerbsRun) { privateData(r, n) }, Wire: legal,
		})
	}
	return out
}

// pattern is n octets that are not all the same.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(k)*7 + seed
	}
	return b
}

// startsWith compares private data with what was sent. The kernel's CM may add
// zeros to it: its events have room for a fixed number of octets.
func startsWith(got, want []byte) bool {
	return bytes.HasPrefix(got, want) && len(bytes.Trim(got[len(want):], "\x00")) == 0
}

func privateData(r *conformance.VerbsRun, n int) {
	ask, answer := pattern(n, 1), pattern(n, 2)
	i, p := r.Connect(
		&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{PrivateData: ask}},
		&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{PrivateData: answer}})
	p.Check(startsWith(p.Conn.PrivateData(), ask), "the responder has the initiator's private data", "%x", p.Conn.PrivateData())
	i.Check(startsWith(i.Conn.PrivateData(), answer), "the initiator has the responder's private data", "%x", i.Conn.PrivateData())
	p.Observe("responder.private-data.octets", "%d", len(p.Conn.PrivateData()))
	i.Observe("initiator.private-data.octets", "%d", len(i.Conn.PrivateData()))
	end(i, p)
}

func reject(r *conformance.VerbsRun) {
	why := []byte("not today")
	l := r.Listen(r.Responder)
	result := make(chan error, 1)
	go func() {
		conn, err := rdmacm.Dial(r.Context(), r.Initiator.Context, l.Addr(), nil)
		if err == nil {
			_ = conn.Close()
		}
		result <- err
	}()
	req, err := l.Accept(r.Context())
	r.NoError(err, "the request arrives")
	r.NoError(req.Reject(why), "it can be rejected")
	err = <-result
	var rej *rdmacm.RejectedError
	r.Require(errors.As(err, &rej), "the initiator learns that it was rejected", "%v", err)
	r.Check(startsWith(rej.PrivateData, why), "and has the responder's private data", "%q", rej.PrivateData)
	conformance.Equal(r.T, rej.Status, peerRefused, "the status is that of a peer's program")
}

// peerRefused is the status of a rejection by the peer's program. rdma_is_consumer_reject
// looks for it.
const peerRefused = -int(syscall.ECONNREFUSED)

func noListener(r *conformance.VerbsRun) {
	conn, err := rdmacm.Dial(r.Context(), r.Initiator.Context, r.Addr, nil)
	if err == nil {
		_ = conn.Close()
	}
	r.Require(err != nil, "connecting fails")
	r.Observe("connect.errno", "%v", ibverbs.Errno(err))
	conformance.Equal(r.T, ibverbs.Errno(err), syscall.ECONNREFUSED, "the error says that it was refused")
	r.Log("connect: %v", err)
}

func disconnect(r *conformance.VerbsRun, who conformance.Role) {
	const posted = 3
	before := func(s *conformance.Side) {
		b := s.Buffer("the receive buffer", 8, local)
		for k := range posted {
			s.PostRecv(recv(uint64(k), b))
		}
	}
	i, p := r.Connect(&conformance.SideConfig{Before: before}, &conformance.SideConfig{Before: before})
	ender := i
	if who == conformance.RoleResponder {
		// The responder may send only after the initiator has sent. One message each way
		// takes both beyond start-up.
		i.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled})
		i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Write of the initiator completes")
		ender = p
	}
	r.NoError(ender.Conn.Disconnect(), "the "+string(who)+" can disconnect")
	for _, s := range []*conformance.Side{i, p} {
		s.WaitEnd()
		got := s.RecvWCs(posted)
		for k := range got {
			s.WantWC(got, k, uint64(k), ibverbs.WCWRFlushErr, fmt.Sprintf("receive %d is flushed", k+1))
		}
	}
}

// responderFirst makes the initiator's program wait for a message of the responder's program.
//
// siw as the responder crashes its kernel if the initiator's first FPDU comes before siw
// expects it, or is of another kind than siw wants. So responderFirst is not tried with the
// engine as initiator, unless siw is mended (ci/vm/mended); the raw scenarios mpa/peer-to-peer-*
// wait long enough before they send.
func responderFirst(r *conformance.VerbsRun, rtr string) {
	if rtr == "send" { // siw never begins with a Send
		r.NeedsOptions("connection that is opened with a Send")
	}
	mended := strings.HasPrefix(os.Getenv("VM_SIW"), "mended")
	if !r.Initiator.Fixed && r.Responder.Name == "kernel" && !mended {
		r.Unsupported("%s may stop its kernel here (kernel-notes/siw-crash-peer-to-peer.md)", r.Responder.Name)
	}
	var first, second *conformance.Buffer
	i, p := r.Connect(
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			first = s.Buffer("the initiator's receive buffer", 64, local)
			s.PostRecv(recv(1, first))
		}},
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			second = s.Buffer("the responder's receive buffer", 64, local)
			s.PostRecv(recv(2, second))
		}})
	hello := p.Buffer("the responder's source", 64, local).Fill(r.Seed)
	p.PostSend(send(3, hello))
	i.WantWC(i.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "the responder's Send arrives first")
	first.Holds(hello.Data, "with all its octets")
	answer := i.Buffer("the initiator's source", 64, local).Fill(r.Seed + 1)
	i.PostSend(send(4, answer))
	p.WantWC(p.RecvWCs(1), 0, 2, ibverbs.WCSuccess, "the initiator's answer arrives")
	second.Holds(answer.Data, "with all its octets")
	p.WantWC(p.SendWCs(1), 0, 3, ibverbs.WCSuccess, "the responder's Send completes")
	i.WantWC(i.SendWCs(1), 0, 4, ibverbs.WCSuccess, "the initiator's Send completes")
	end(i, p)
}

func shutdown(r *conformance.VerbsRun) {
	const count, size = 8, 100_000
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffers", count*size, local)
		for k := range count {
			s.PostRecv(ibverbs.RecvWR{WRID: uint64(k), SGList: []ibverbs.SGE{dst.SGE(k*size, size)}})
		}
	}})
	src := i.Buffer("the source", count*size, local).Fill(r.Seed)
	for k := range count {
		wr := send(uint64(k), src)
		wr.SGList = []ibverbs.SGE{src.SGE(k*size, size)}
		i.PostSend(wr)
	}
	err := i.Conn.Shutdown(r.Context())
	i.Check(err == nil, "the initiator can shut down", "%v", err)
	got := p.RecvWCs(count)
	for k := range got {
		p.WantWC(got, k, uint64(k), ibverbs.WCSuccess, fmt.Sprintf("Send %d arrived", k+1))
	}
	dst.Holds(src.Data, "with all its octets")
	p.WaitEnd()
}

// orderly checks that either side ended its direction with a FIN.
func orderly(w *conformance.WireRun) {
	conn := only(w)
	for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
		conformance.Equal(w.T, conn.End(dir), wire.EndFIN, "the octets "+dir.String()+" end with a FIN")
	}
	legal(w)
}

func readDepths(r *conformance.VerbsRun) {
	i, p := r.Connect(
		&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{ResponderResources: 2, InitiatorDepth: 8}},
		&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{ResponderResources: 8, InitiatorDepth: 2}})
	end(i, p)
}

// depthsAgreed checks RFC 6581 section 9.1: the reply grants what the request asked
// for, and asks for no more than the responder granted.
func depthsAgreed(w *conformance.WireRun) {
	conn := only(w)
	w.Require(conn.Request != nil && conn.Reply != nil, "both start-up frames are on the wire")
	ask, _, err := conn.Request.SplitPrivateData()
	w.NoError(err, "the request has its depths")
	answer, _, err := conn.Reply.SplitPrivateData()
	w.NoError(err, "the reply has its depths")
	conformance.Equal(w.T, ask.IRD, 2, "the request offers the IRD of the program")
	conformance.Equal(w.T, ask.ORD, 8, "and asks for its ORD")
	w.Check(answer.IRD >= ask.ORD, "the reply's IRD serves the initiator's ORD", "%d for %d", answer.IRD, ask.ORD)
	w.Check(answer.ORD <= ask.IRD, "the reply's ORD is within the initiator's IRD", "%d of %d", answer.ORD, ask.IRD)
	legal(w)
}

func crcAsked(w *conformance.WireRun) {
	conn := only(w)
	w.Require(conn.Request != nil, "the request is on the wire")
	w.Check(conn.Request.CRC, "the Request has C set")
}

// exchange has both sides of a connection send each other a number.
func exchange(i, p *conformance.Side, in *conformance.Buffer, number byte) {
	src := i.Buffer("the source", 1, local)
	src.Data[0] = number
	i.PostSend(send(1, src))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the Send completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "it arrives")
	in.Holds(src.Data, "on its own connection")
}

func manyInTurn(r *conformance.VerbsRun) {
	l := r.Listen(r.Responder)
	for k := range 20 {
		var in *conformance.Buffer
		i, p := r.ConnectTo(l, nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
			in = s.Buffer("the receive buffer", 1, local)
			s.PostRecv(recv(7, in))
		}})
		exchange(i, p, in, byte(k))
		end(i, p)
	}
}

func manyAtOnce(r *conformance.VerbsRun) {
	const count = 20
	l := r.Listen(r.Responder)
	ctx, giveUp := context.WithCancel(r.Context())
	var calls sync.WaitGroup
	// However the run ends, this cleanup leaves no call under way. Adopted connections
	// have cleanups of their own, which close them then.
	r.Cleanup(func() {
		giveUp()
		calls.Wait()
	})
	adopt := func(conn *rdmacm.Conn, what string) {
		r.Cleanup(func() { r.Check(conn.Close() == nil, what+" can be closed") })
	}
	type result struct {
		conn *rdmacm.Conn
		err  error
	}
	results := make(chan result, count)
	for k := range count {
		calls.Go(func() {
			conn, err := rdmacm.Dial(ctx, r.Initiator.Context, l.Addr(), &rdmacm.ConnConfig{
				PrivateData: []byte{byte(k + 1)}, NoOpeningWrite: true,
			})
			if err == nil {
				adopt(conn, "every connection")
			}
			results <- result{conn, err}
		})
	}
	accepted := make(map[netip.AddrPort]byte) // the number of each initiator, by its address
	var mu sync.Mutex
	var accepts sync.WaitGroup
	for range count {
		req, err := l.Accept(ctx)
		r.NoError(err, "every request arrives")
		accepts.Add(1)
		calls.Go(func() {
			defer accepts.Done()
			said := req.PrivateData()
			conn, err := req.Accept(ctx, &rdmacm.ConnConfig{PrivateData: said[:min(1, len(said))]})
			if err == nil {
				adopt(conn, "every accepted connection")
			}
			if !r.Check(err == nil && len(said) > 0, "every request can be accepted", "%v", err) {
				return
			}
			mu.Lock()
			accepted[conn.RemoteAddr()] = said[0]
			mu.Unlock()
		})
	}
	accepts.Wait()
	seen := make(map[byte]bool)
	for range count {
		res := <-results
		if !r.Check(res.err == nil, "every connect succeeds", "%v", res.err) {
			continue
		}
		answer := res.conn.PrivateData()
		if !r.Check(len(answer) > 0, "every initiator has an answer") {
			continue
		}
		r.Check(accepted[res.conn.LocalAddr()] == answer[0], "the answer is that to its own request")
		r.Check(!seen[answer[0]], "no answer comes twice")
		seen[answer[0]] = true
	}
}

// ended waits until a context's time is up or the connection has ended.
func ended(r *conformance.VerbsRun, s *conformance.Side) bool {
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(2*time.Second))
	defer cancel()
	return s.Conn.Wait(ctx) == nil
}
