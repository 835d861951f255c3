package conformance

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestWantEndAfterTooMuch: if a stack has sent more than is read, and then a Terminate, it is not
// known whether it ends the connection.
func TestWantEndAfterTooMuch(t *testing.T) {
	l, err := rawpeer.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	stack, err := rawpeer.Dial(t.Context(), l.Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stack.Reset() }()
	p, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Reset() }()
	answer := rawpeer.FPDU{Header: rdmap.ReadResponseHeader(1, 0, true), Payload: make([]byte, 32<<10)}
	octets := answer.Octets(false)
	sent := make(chan error, 1)
	go func() {
		n := rawpeer.MostReceived/len(octets) + 1
		sent <- stack.Send(slices.Repeat(octets, n))
	}()
	for {
		if _, err := p.ReadFPDU(time.Minute); err != nil {
			break // all of it is taken
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	o := &Outcome{}
	r := &RawRun{T: &T{ctx: t.Context(), scale: 1, outcome: o, started: time.Now()}, Peer: p}
	r.WantEnd("the connection ends", time.Millisecond)
	if !o.failed() {
		t.Errorf("the connection, which goes on, has ended: %+v, %+v", o.Checks, o.Observations)
	}
}
