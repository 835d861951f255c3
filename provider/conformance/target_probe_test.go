package conformance

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// answering listens, answers what comes first of each connection with some octets, and ends the
// connection if there are none.
func answering(t *testing.T, answer []byte) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1000)
			if n, _ := c.Read(buf); n > 0 && len(answer) > 0 {
				_, _ = c.Write(answer)
				_, _ = c.Read(buf)
			}
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestTargetProbe: what is no iWARP stack, and a program that does not accept what is expected of
// it, are found before the first scenario.
func TestTargetProbe(t *testing.T) {
	reject := rawpeer.Reply(true, 1, 1, nil)
	reject.Reject = true
	octets := func(f mpa.Frame) []byte { return f.AppendTo(nil) }
	closed := answering(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	at := func(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }
	for _, c := range []struct {
		name   string
		addr   netip.AddrPort
		offers Needs
		want   string
	}{
		{"accepts", answering(t, octets(rawpeer.Reply(true, 1, 1, nil))), NeedsReceive, ""},
		{"rejects", answering(t, octets(reject)), NeedsAccept,
			`rejects connections, and "accept" is expected`},
		{"rejects as it may", answering(t, octets(reject)), NeedsListener, ""},
		{"ends", closed, NeedsReceive, `without a Reply (EOF), and "receive" is expected`},
		{"ends as it may", closed, NeedsListener, ""},
		{"HTTP", answering(t, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")), NeedsListener,
			`does not speak iWARP: it has answered an MPA Request with "HTTP/1.1 400 Bad Request\r\n\r\n"`},
		{"echo", answering(t, octets(rawpeer.Request(true, 1, 1, nil))), NeedsListener,
			`does not speak iWARP: it has answered an MPA Request with "MPA ID Req Frame`},
		{"silence", at(silent), NeedsListener, "has not answered an MPA Request for 100ms"},
		{"nobody", at(gone), NeedsReceive, "connection refused: a program has to listen there"},
	} {
		err := (&Target{Addr: c.addr, Offers: c.offers}).Probe(t.Context(), 0.02)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), c.addr.String())) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestTargetGone: after a run that does not reach the target no other begins.
func TestTargetGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dials := func(r *RawRun) {
		r.Dial()
		r.Check(true, "it is there")
		if err := l.Close(); err != nil {
			t.Errorf("the listener has ended before: %v", err)
		}
	}
	var list []*Scenario
	for _, slug := range []string{"a/one", "a/two", "a/three"} {
		sc := raw(slug, RoleInitiator, dials)
		sc.Needs = NeedsAccept
		list = append(list, sc)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	out, err := Run(t.Context(), Config{Suite: suite(list...),
		Target:   &Target{Name: TargetName, Addr: at, Offers: NeedsAccept},
		Pairings: []Pairing{{Raw, TargetName}}})
	if err != nil || len(out) != 2 {
		t.Fatalf("%d outcomes, %v", len(out), err)
	}
	if out[0].Setup != "" || out[0].failed() || out[1].failed() ||
		!strings.Contains(out[1].Setup, "no TCP connection to the target: dial tcp "+at.String()) {
		t.Errorf("%+v\n%+v", out[0], out[1])
	}
}
