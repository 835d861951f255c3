package report

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// nasty is text that must not become markup.
const nasty = `<script>alert("1")</script> & 'quotes'`

// record writes the capture of a run that sends n Sends and is answered by a
// Terminate in one of the two layouts.
func record(t *testing.T, file string, port uint16, n int, siw bool) *wire.Trace {
	t.Helper()
	tap := &capture.Tap{}
	c, err := tap.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, int(port)*1000, time.UTC)
	tell := func(sent bool, event transport.TapEvent, octets []byte) {
		at = at.Add(50 * time.Microsecond)
		tap.Tap(transport.TapRecord{
			Time: at, Conn: uint64(port), Local: netip.MustParseAddrPort("192.0.2.1:40000"),
			Remote: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port), Dialed: true, Event: event, Sent: sent, Data: octets,
		})
	}
	startup := func(k mpa.Kind) []byte {
		return mpa.Frame{Kind: k, Revision: 2, Enhanced: true, CRC: true, PrivateData: mpa.Enhanced{IRD: 4, ORD: 4}.AppendTo(nil)}.AppendTo(nil)
	}
	framer := mpa.NewFramer(false, true)
	fpdu := func(h ddp.Header, payload []byte) []byte {
		b, err := framer.AppendFPDU(nil, append(h.AppendTo(nil), payload...))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tell(true, transport.TapOpen, nil)
	tell(true, transport.TapData, startup(mpa.KindRequest))
	tell(false, transport.TapData, startup(mpa.KindReply))
	h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	for i := range n {
		h.MSN = uint32(i + 1)
		tell(true, transport.TapData, fpdu(h, []byte("hello")))
	}
	term := rdmap.NewTerminate(ddp.ErrNoBuffer, &h, 23, nil)
	payload := term.AppendTo(nil)
	if siw {
		payload = term.AppendSIW(nil)
	}
	tell(false, transport.TapData, fpdu(rdmap.TerminateHeader(), payload))
	tell(false, transport.TapFIN, nil)
	tell(true, transport.TapFIN, nil)
	if err := c.Stop(file); err != nil {
		t.Fatal(err)
	}
	trace, err := wire.ReadFile(file, port)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// synthetic makes a report with every verdict, of runs whose captures it writes
// to dir.
func synthetic(t *testing.T, dir string) *conformance.Report {
	t.Helper()
	rep := &conformance.Report{
		Schema: conformance.ReportSchema, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v0.1.0 0123456789ab",
		Kernel: "6.1.0-50-amd64", CPUs: 2, Siw: "default", Seed: 7, Reference: "engine", Tshark: "TShark 4.0.17",
		Counts: make(map[conformance.Verdict]int),
	}
	type run struct {
		slug, title          string
		kind                 string
		initiator, responder string
		verdict              conformance.Verdict
		why                  string
		sends                int
		siw                  bool
		requirements         []string
	}
	const noBuffer = "a Send for which no receive is posted is refused with a Terminate"
	runs := []run{
		{"queue/receive-empty", noBuffer, "verbs", "engine", "engine", conformance.Pass, "", 2, false, []string{"DDP-7.1u2-01", "RDMAP-5.3-01"}},
		{"queue/receive-empty", noBuffer, "verbs", "engine", "kernel", conformance.XFail, "siw packs the Terminate's control word the other way round", 2, true, []string{"DDP-7.1u2-01", "RDMAP-5.3-01"}},
		{"queue/receive-empty", noBuffer, "verbs", "kernel", "engine", conformance.Pass, "", 2, false, []string{"DDP-7.1u2-01", "RDMAP-5.3-01"}},
		{"queue/receive-empty", noBuffer, "verbs", "kernel", "kernel", conformance.XPass,
			"the profile's siw-terminate-layout did not show", 2, false, []string{"DDP-7.1u2-01", "RDMAP-5.3-01"}},
		{"send/one", "a Send of one message arrives " + nasty, "verbs", "engine", "engine", conformance.Pass, "", 1, false, []string{"RDMAP-5.3-01", "X-1-01"}},
		{"send/one", "a Send of one message arrives " + nasty, "verbs", "engine", "kernel", conformance.Fail, "not so: the receive completes: it did not, " + nasty, 3, false, []string{"RDMAP-5.3-01", "X-1-01"}},
		{"send/one", "a Send of one message arrives " + nasty, "verbs", "kernel", "engine", conformance.Setup, "provider \"kernel\" cannot be opened: no siw0", 0, false, nil},
		{"srq/limit", "a shared receive queue tells when it runs low", "verbs", "engine", "engine",
			conformance.Unsupported, "the engine has no shared receive queues (docs/support.md)", 0, false, nil},
		{"mpa/crc-wrong", "a wrong CRC is refused", "raw", "raw", "engine", conformance.Pass, "", 1, false, []string{"MPA-4.4-07"}},
		{"mpa/crc-wrong", "a wrong CRC is refused", "raw", "raw", "kernel", conformance.XFail, "siw packs the Terminate's control word the other way round", 1, true, []string{"MPA-4.4-07"}},
		{"mpa/reply-cut", "a Reply cut short is no Reply", "raw", "engine", "raw", conformance.Pass, "", 1, false, nil},
	}
	traces := make(map[string]*wire.Trace)
	for i, r := range runs {
		res := conformance.Result{
			Scenario: r.slug, Title: r.title, Kind: r.kind, Level: conformance.Must, Requirements: r.requirements,
			Initiator: r.initiator, Responder: r.responder, Verdict: r.verdict, Why: r.why, DurationMillis: int64(17 * i), Port: uint16(20000 + i),
			Replay: "govs-verbs-test run --only " + r.slug + " --seed 7",
		}
		if r.sends > 0 {
			pairing := r.initiator + "-" + r.responder
			res.Capture, res.CaptureSource = strings.ReplaceAll(r.slug, "/", "-")+"."+pairing+".pcapng", "tap"
			trace := record(t, filepath.Join(dir, res.Capture), res.Port, r.sends, r.siw)
			traces[r.slug+" "+pairing] = trace
			res.Messages = decoded(trace)
			res.Ladder, res.Witness = trace.Ladder(), conformance.Witness{Asked: true, Agrees: true, Frames: trace.Count()}
			res.Checks = []conformance.Check{{What: "the Send completes", OK: true}, {What: "a Terminate comes", OK: true}}
			res.Observations = []conformance.Observation{{Key: "initiator.send.wc", Value: "1 IBV_WC_SUCCESS"}, {Key: "initiator.event", Value: "DISCONNECTED"}}
			res.Log = []string{"   0.012 ms  connected"}
			if ref := traces[r.slug+" "+strings.ReplaceAll(pairing, "kernel", "engine")]; ref != trace {
				compared(&res, ref, trace)
			}
		}
		switch r.verdict {
		case conformance.Fail:
			res.Checks = append(res.Checks, conformance.Check{What: "the receive completes", Got: "it did not, " + nasty})
			res.Divergences = append(res.Divergences, conformance.Divergence{Key: "check:the receive completes", Reference: "the receive completes", Got: "it did not, " + nasty})
		case conformance.XFail:
			for k := range res.Divergences {
				d := &res.Divergences[k]
				d.Entry, d.Reason, d.Evidence = "siw-terminate-layout", r.why, "kernel-notes/siw-terminate-layout.md"
				d.Kernels, d.Provider, d.Requirements = "6.1 to 6.12", "kernel", []string{"RDMAP-4.8-01"}
			}
		}
		rep.Counts[r.verdict]++
		rep.Results = append(rep.Results, res)
	}
	rep.Passed = conformance.Passed(rep.Counts)
	rep.Requirements = someCoverage(t)
	return rep
}

// decoded is the messages of a trace.
func decoded(trace *wire.Trace) []conformance.Message {
	var out []conformance.Message
	for _, d := range trace.Decode() {
		m := conformance.Message{Lines: d.Lines, Direction: d.Dir.String(), Kind: d.Kind}
		for _, f := range d.Fields {
			m.Fields = append(m.Fields, f.Name+"="+f.Value)
		}
		out = append(out, m)
	}
	return out
}

// compared sets a result beside its reference.
func compared(res *conformance.Result, ref, got *wire.Trace) {
	for _, row := range wire.Align(ref, got) {
		a := conformance.Alignment{Reference: row.Reference, Got: row.Got}
		for _, d := range row.Differences {
			a.Keys = append(a.Keys, "wire:"+d.Key)
			res.Divergences = append(res.Divergences, conformance.Divergence{Key: "wire:" + d.Key, Reference: d.Reference, Got: d.Got, Against: "engine->engine"})
		}
		res.Aligned = append(res.Aligned, a)
	}
}

// someCoverage is the catalogue with a few requirements in each state.
func someCoverage(t *testing.T) []conformance.Coverage {
	t.Helper()
	c, err := catalogue.Load()
	if err != nil {
		t.Fatal(err)
	}
	var out []conformance.Coverage
	for i, r := range c.All() {
		cov := conformance.Coverage{ID: r.ID, Document: r.Document, Section: r.Section,
			Level: string(r.Level), Side: r.Side, Text: r.Text, Tests: r.Tests, Reason: r.Reason}
		if i%2 == 0 {
			cov.Scenarios = []string{"srq/limit", "order/not-run"}
		}
		if i%3 == 0 {
			cov.Providers = map[string]*conformance.Standing{"engine": {State: conformance.Shown, Scenarios: []string{"send/one"}}}
		}
		if i%6 == 0 {
			s := &conformance.Standing{State: conformance.Excepted,
				Scenarios: []string{"queue/receive-empty"}, Entries: []string{"siw-terminate-layout"}}
			if i%12 == 0 {
				s = &conformance.Standing{State: conformance.Failed, Scenarios: []string{"send/one"}}
			}
			cov.Providers["kernel"] = s
		}
		out = append(out, cov)
	}
	return out
}
