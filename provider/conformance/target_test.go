package conformance

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestTargetLacks: each target has what it offers, and what its offer includes.
func TestTargetLacks(t *testing.T) {
	all := []Needs{NeedsListener, NeedsAccept, NeedsReceive, NeedsProgram, NeedsConnect}
	for offer, has := range map[Needs]int{NeedsListener: 1, NeedsAccept: 2, NeedsReceive: 3} {
		target := &Target{Offers: offer}
		for i, n := range all {
			if why := target.lacks(&Scenario{Needs: n}); (why == "") != (i < has) {
				t.Errorf("%q of a target that offers %q: %q", n, offer, why)
			}
		}
	}
}

// TestTargetEntries: entries are about the target whose stack they describe, whatever its version,
// and need not show.
func TestTargetEntries(t *testing.T) {
	e := &ProfileEntry{ID: "x", Scenario: "a/*", Provider: "kernel", Key: "check:x",
		Fixed: []string{"6.1.5"}, Variants: []string{"crc"}}
	c := &Collection{KernelVersion: "6.1.9", Siw: "default"}
	for name, want := range map[string]bool{
		"kernel@target": true, "bridge@target": false, "target": false, "kernel": false,
	} {
		p := Pairing{Raw, name}
		if got := e.applies("a/b", p, c); got != want {
			t.Errorf("it applies to %s: %v", p, got)
		}
		if e.applies("a/b", p, c) && !e.open(p, c) {
			t.Errorf("with %s its absence is an XPASS", p)
		}
	}
}

// TestTargetReplay: the command that repeats a run names the target.
func TestTargetReplay(t *testing.T) {
	c := &Collection{Seed: 3, Target: "192.0.2.1:7"}
	for name, want := range map[string]string{
		"target": "govs-verbs-test run --only a/b --seed 3 --target 192.0.2.1:7",
		"kernel@target": "govs-verbs-test run --only a/b --seed 3 --target 192.0.2.1:7 " +
			"--target-stack kernel",
	} {
		for _, p := range []Pairing{{Raw, name}, {name, Raw}} {
			if got := replay(c, &Outcome{Scenario: "a/b", Pairing: p}); got != want {
				t.Errorf("%s: %s", p, got)
			}
		}
	}
}

// TestRunTarget: raw scenarios are played to the target one after another, at its port and without
// a provider. Scenarios that need more, and verbs scenarios, are not played.
func TestRunTarget(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:77")
	var under atomic.Int32
	plays := func(r *RawRun) {
		r.Check(under.Add(1) == 1, "it is alone")
		time.Sleep(5 * time.Millisecond) // for others to begin
		r.Check(r.Addr == at && !r.HasProgram(), "it has the target")
		under.Add(-1)
	}
	var list []*Scenario
	for _, slug := range []string{"a/one", "a/two", "a/three"} {
		sc := raw(slug, RoleInitiator, plays)
		sc.Needs, sc.Idle = NeedsAccept, true
		list = append(list, sc)
	}
	list = append(list, raw("a/program", RoleInitiator, plays), raw("a/connect", RoleResponder, plays),
		verbs("a/verbs", nothing))
	out, err := Run(t.Context(), Config{Suite: suite(list...),
		Target:   &Target{Name: TargetName, Addr: at, Offers: NeedsAccept},
		Pairings: []Pairing{{Raw, TargetName}}})
	if err != nil || len(out) != 5 {
		t.Fatalf("%d outcomes, %v", len(out), err)
	}
	for _, o := range out {
		lacks := o.Scenario == "a/program" || o.Scenario == "a/connect"
		if o.failed() || o.Setup != "" || o.Port != 77 ||
			lacks != strings.HasPrefix(o.Unsupported, "needs a program that") {
			t.Errorf("%+v", o)
		}
	}
}

// leaving returns a target that answers each connection with some octets, and ends it.
func leaving(t *testing.T, answer []byte) netip.AddrPort {
	t.Helper()
	return serving(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1000))
		_, _ = c.Write(answer)
	})
}

// flooding returns a target that answers each connection with some octets, and then with 0xff as
// long as its peer reads.
func flooding(t *testing.T, answer []byte) netip.AddrPort {
	t.Helper()
	return serving(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1000))
		_, err := c.Write(answer)
		for flood := bytes.Repeat([]byte{0xff}, 1<<16); err == nil; {
			_, err = c.Write(flood)
		}
	})
}

// answering listens, answers what comes first of each connection with some octets, and ends the
// connection if there are none.
func answering(t *testing.T, answer []byte) netip.AddrPort {
	t.Helper()
	return serving(t, func(c net.Conn) {
		buf := make([]byte, 1000)
		if n, _ := c.Read(buf); n > 0 && len(answer) > 0 {
			_, _ = c.Write(answer)
			_, _ = c.Read(buf)
		}
	})
}

// serving listens, makes a function serve one connection after another, and closes each.
func serving(t *testing.T, serve func(net.Conn)) netip.AddrPort {
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
			serve(c)
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestTargetProbe finds, before the first scenario, a target that is no iWARP stack, and a program
// that does not accept what it is expected to accept.
func TestTargetProbe(t *testing.T) {
	reject := rawpeer.Reply(true, 1, 1, nil)
	reject.Reject = true
	whole := rawpeer.Reply(true, 1, 1, nil).AppendTo(nil)
	octets := func(f mpa.Frame) []byte { return f.AppendTo(nil) }
	closed := answering(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.2:0") // an address of its own: others get ports now
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
		{"silence", at(silent), NeedsListener,
			"has not answered an MPA Request within 100ms (nothing came)"},
		{"half a Reply, silence", answering(t, whole[:11]), NeedsListener,
			"within 100ms (11 octets of an unfinished frame (4d 50 41 20 49 44 20 52 65 70 20), then: " +
				"nothing came)"},
		{"half a Reply, end", leaving(t, whole[:11]), NeedsAccept,
			"without a Reply (11 octets of an unfinished frame (4d 50 41 20 49 44 20 52 65 70 20), " +
				"then: EOF)"},
		{"garbage", answering(t, bytes.Repeat([]byte{0xa5}, 300)), NeedsListener, `with "\xa5\xa5`},
		{"garbage without end", flooding(t, []byte{0xff}), NeedsListener, `with "\xff\xff`},
		{"a Reply, then octets without end", flooding(t, whole), NeedsReceive, ""},
		{"nobody", at(gone), NeedsReceive,
			"no TCP connection to the target; a program has to listen there during the whole run"},
	} {
		var err error
		for range 100 { // on a busy machine 100 ms may pass before anything happens
			err = (&Target{Addr: c.addr, Offers: c.offers}).Probe(t.Context(), 0.02)
			if err == nil || strings.Contains(c.want, "100ms") || !strings.Contains(err.Error(), "i/o timeout") &&
				!strings.Contains(err.Error(), "within 100ms") {
				break
			}
		}
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
		!strings.Contains(out[1].Setup, "such as rping -s -P: dial tcp "+at.String()) {
		t.Errorf("%+v\n%+v", out[0], out[1])
	}
}

// TestTargetHangs: if a target does not answer after a scenario that failed, a Request before the
// next scenario finds it, and the others are left out. A target that goes on answering is tried in
// all of them.
func TestTargetHangs(t *testing.T) {
	for _, c := range []struct {
		serves int // connections that it answers
		ran    int // runs that there are
	}{{1, 2}, {100, 3}} {
		served := 0
		at := serving(t, func(conn net.Conn) {
			if served++; served > c.serves {
				_, _ = conn.Read(make([]byte, 1000))
			} else {
				_, _ = conn.Write(rawpeer.Reply(true, 1, 1, nil).AppendTo(nil))
			}
			for {
				if _, err := conn.Read(make([]byte, 1000)); err != nil {
					return
				}
			}
		})
		fails := func(r *RawRun) {
			r.Dial()
			r.Start(rawpeer.Request(true, 1, 1, nil))
			r.WantReply("it answers")
			_ = r.Peer.Close()
			r.Check(false, "it does something else")
		}
		var list []*Scenario
		for _, slug := range []string{"a/one", "a/program", "a/two", "a/three"} {
			sc := raw(slug, RoleInitiator, fails)
			if sc.Needs = NeedsAccept; slug == "a/program" {
				sc.Needs = NeedsProgram
			}
			list = append(list, sc)
		}
		out, err := Run(t.Context(), Config{Suite: suite(list...), Scale: 0.05,
			Target:   &Target{Name: TargetName, Addr: at, Offers: NeedsAccept},
			Pairings: []Pairing{{Raw, TargetName}}})
		if err != nil || len(out) != c.ran+1 || !out[0].failed() || out[1].Unsupported == "" {
			t.Fatalf("%+v, %v", out, err)
		}
		hangs := c.ran == 2
		if got := out[2]; hangs != strings.Contains(got.Setup, "after a/one, which failed, the target "+
			"no longer answers") || hangs == got.failed() {
			t.Errorf("a target that answers %d: %+v", c.serves, got)
		}
	}
}

// TestProbeInterrupted: an interrupt ends the wait for a target's answer, and neither the answer
// nor the next outcome of the run blames the target.
func TestProbeInterrupted(t *testing.T) {
	silent := make(chan struct{}, 1)
	at := serving(t, func(conn net.Conn) {
		silent <- struct{}{}
		for {
			if _, err := conn.Read(make([]byte, 1000)); err != nil {
				return
			}
		}
	})
	target := &Target{Name: TargetName, Addr: at, Offers: NeedsAccept}
	sc := raw("a/one", RoleInitiator, func(r *RawRun) { r.Check(true, "it is there") })
	sc.Needs = NeedsAccept
	r := &runner{Config: &Config{Target: target, Scale: 24}, outcomes: make([]*Outcome, 1),
		doubt: "a/zero"}
	for what, probe := range map[string]func(context.Context){
		"Probe": func(ctx context.Context) {
			if err := target.Probe(ctx, 24); !errors.Is(err, context.Canceled) {
				t.Errorf("Probe: %v", err)
			}
		},
		"a run": func(ctx context.Context) {
			if r.run(ctx, job{scenario: sc, pairing: Pairing{Raw, TargetName}}); r.outcomes[0] != nil {
				t.Errorf("a run that was interrupted before it began: %+v", r.outcomes[0])
			}
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-silent
			cancel()
		}()
		began := time.Now()
		probe(ctx)
		if took := time.Since(began); took > time.Minute { // of two
			t.Errorf("%s goes on for %v after the interrupt", what, took)
		}
		cancel()
	}
}
