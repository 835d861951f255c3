package conformance

import (
	"fmt"
	"slices"
	"time"
)

// ReportSchema is the version of the Report's JSON form. Fields are added within
// a version; a change of meaning or a removal makes a new one. SCHEMA.md beside
// this file describes them all.
const ReportSchema = "govs-report/2"

// A Report is a judged collection: report.json.
type Report struct {
	Schema        string          `json:"schema"` // ReportSchema
	Started       time.Time       `json:"started"`
	Version       string          `json:"version"`
	Kernel        string          `json:"kernel"`
	KernelVersion string          `json:"kernel_version,omitempty"` // of the sources: "6.1.176"
	CPUs          int             `json:"cpus"`
	Siw           string          `json:"siw,omitempty"`
	Seed          uint64          `json:"seed"`
	Reference     string          `json:"reference,omitempty"` // the provider that the others are compared with
	Profiles      []string        `json:"profiles,omitempty"`  // of stacks: names of built-in ones, and files
	Tshark        string          `json:"tshark"`              // version of the witness, or why there is none
	Peer          *PeerHost       `json:"peer,omitempty"`      // of a run between two hosts
	Target        string          `json:"target,omitempty"`    // address of the target of raw scenarios
	Passed        bool            `json:"passed"`
	Counts        map[Verdict]int `json:"counts"`
	Results       []Result        `json:"results"`
	Requirements  []Coverage      `json:"requirements"` // all of the catalogue, in its order
	Unshown       []Unshown       `json:"unshown,omitempty"`
}

// A Result is one run, judged.
type Result struct {
	Scenario     string   `json:"scenario"`
	Title        string   `json:"title"`
	Kind         string   `json:"kind"` // "verbs" or "raw"
	Level        Level    `json:"level"`
	Requirements []string `json:"requirements,omitempty"`
	Initiator    string   `json:"initiator"`
	Responder    string   `json:"responder"`
	Verdict      Verdict  `json:"verdict"`
	Why          string   `json:"why,omitempty"` // one line: the reason of the verdict, unless PASS

	DurationMillis int64         `json:"duration_ms"`
	Checks         []Check       `json:"checks"`
	Observations   []Observation `json:"observations"`
	Divergences    []Divergence  `json:"divergences,omitempty"`
	Log            []string      `json:"log,omitempty"`
	Ladder         []string      `json:"ladder,omitempty"`  // the wire, decoded by us, one line a frame
	Aligned        []Alignment   `json:"aligned,omitempty"` // the ladder beside the reference's; nil without a reference
	Messages       []Message     `json:"messages,omitempty"`
	Witness        Witness       `json:"witness"`
	Port           uint16        `json:"port"`                // the run's packets in the capture are those to and from it
	Capture        string        `json:"capture,omitempty"`   // file beside report.json; all runs of a scenario share one
	Interface      string        `json:"interface,omitempty"` // name of the run's interface in the capture file
	CaptureSource  string        `json:"capture_source,omitempty"`
	CaptureAtPeer  string        `json:"capture_at_peer,omitempty"` // file of the other host's capture, with its clock's times
	Replay         string        `json:"replay"`                    // the command that runs just this
}

// mostLines is how many lines of its ladder a result has. Runs have some hundreds; a stack that
// sends frames without end would make a report that no program can open.
const mostLines = 2000

// shorten leaves the first mostLines of the ladder, and the messages and alignments that begin
// there. The divergences, which were found before, stay.
func (res *Result) shorten() {
	n := len(res.Ladder)
	if n <= mostLines {
		return
	}
	res.Ladder = append(slices.Clone(res.Ladder[:mostLines]),
		fmt.Sprintf("%d more lines are left out here; the capture has them", n-mostLines))
	beyond := func(lines []int) bool { return len(lines) > 0 && lines[0] >= mostLines }
	res.Messages = slices.DeleteFunc(res.Messages, func(m Message) bool { return beyond(m.Lines) })
	res.Messages = slices.Clip(slices.Clone(res.Messages))
	res.Aligned = slices.DeleteFunc(res.Aligned,
		func(a Alignment) bool { return beyond(a.Got) || beyond(a.Reference) })
}

// A Divergence is a way in which a run differs from what was expected, or from
// the reference pairing.
type Divergence struct {
	// Key is "check:" and the expectation, "observe:" and the key, "wire:" and
	// the key of a wire.Difference, or "witness:tshark".
	Key       string `json:"key"`
	Reference string `json:"reference"`          // what was expected, or the reference pairing had
	Got       string `json:"got"`                // what this run had
	Entry     string `json:"entry,omitempty"`    // id of the entry that explains it
	Reason    string `json:"reason,omitempty"`   // the entry's
	Evidence  string `json:"evidence,omitempty"` // the entry's
	Kernels   string `json:"kernels,omitempty"`  // the entry's
	Provider  string `json:"provider,omitempty"` // the entry's: which side diverges, without its host

	Requirements []string `json:"requirements,omitempty"` // the entry's
	Against      string   `json:"against,omitempty"`      // the reference pairing; empty for a check and for the witness
}

// An Alignment is a message of the reference pairing's ladder and the one of
// this ladder that corresponds to it, or one that has no counterpart.
type Alignment struct {
	Reference []int    `json:"reference,omitempty"` // lines of the reference's Ladder, counted from 0
	Got       []int    `json:"got,omitempty"`       // lines of this Ladder
	Keys      []string `json:"keys,omitempty"`      // of the divergences between the two; none if they are the same
}

// A Message is a message on the wire with its fields in the form in which they are compared
// with those of the reference: where segments were cut, and the values of STags and tagged
// offsets, do not show.
type Message struct {
	Lines     []int    `json:"lines,omitempty"` // of the Ladder, counted from 0
	Direction string   `json:"direction"`       // "to-responder" or "to-initiator"
	Kind      string   `json:"kind"`            // as in the key of a Divergence
	Fields    []string `json:"fields"`          // "name=value"; no name has a "=" in it
}

// Unshown is an entry of a profile that explained nothing, although scenarios that it names were
// run with the provider that it is about. It may depend on timing (Sometimes), or be stale.
type Unshown struct {
	Entry     string `json:"entry"` // the entry's id
	Scenario  string `json:"scenario"`
	Key       string `json:"key"`
	Sometimes bool   `json:"sometimes,omitempty"` // the entry says that it depends on timing

	// Unknown says that none of the runs made a check or an observation that the key matches.
	Unknown bool `json:"unknown,omitempty"`
}

// Witness is the decoding of the capture by tshark, a program that is independent of govs.
type Witness struct {
	Asked  bool   `json:"asked"`
	Agrees bool   `json:"agrees"`
	Frames int    `json:"frames"` // FPDUs and start-up frames that it decoded
	Why    string `json:"why,omitempty"`
}

// Coverage is the state of a requirement of the catalogue.
type Coverage struct {
	ID       string `json:"id"`
	Document string `json:"document"` // "RFC 5044"
	Section  string `json:"section"`  // "4.1"
	Level    string `json:"level"`    // in the words of RFC 2119
	Side     string `json:"side"`     // "tx", "rx" or "both"
	Text     string `json:"text"`

	// Scenarios are those of the suite that name it, whether they were run or not.
	Scenarios []string `json:"scenarios,omitempty"`

	// Tests are the tests of govs that show it, and Reason says why neither a test nor a scenario
	// does, as in the catalogue.
	Tests  []string `json:"tests,omitempty"`
	Reason string   `json:"reason,omitempty"`

	// Providers has, by name, the state of each provider on which a scenario about the
	// requirement was tried. For other providers the requirement is open.
	Providers map[string]*Standing `json:"providers,omitempty"`
}

// State is the state of a requirement for one provider.
type State string

// The states. If runs of a requirement differ, the later state here counts.
const (
	Shown    State = "shown"     // every run that was tried passed
	Excepted State = "exception" // the profile explains what a run found
	Failed   State = "failed"    // a run failed
)

// Standing is the state of one requirement for one provider, and why.
type Standing struct {
	State     State    `json:"state"`
	Scenarios []string `json:"scenarios"`         // that were tried, each once
	Entries   []string `json:"entries,omitempty"` // ids of the entries that explain
}

// Verdict is how a run is judged.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"

	// XFail: the run fails or differs, and the profile has an entry for it with reason and
	// evidence.
	XFail Verdict = "XFAIL"

	// XPass: the profile says that the run differs, and it does not. The profile is wrong,
	// which is a failure.
	XPass Verdict = "XPASS"

	// Unsupported: a provider lacks something that the run needs; Result.Why names it.
	Unsupported Verdict = "UNSUPPORTED"

	// Setup: the run could not be tried; Result.Why says why.
	Setup Verdict = "SETUP"
)

// Good reports whether the verdict lets a suite pass.
func (v Verdict) Good() bool { return v == Pass || v == XFail || v == Unsupported }

// Passed reports whether a suite with these verdicts has passed: nothing failed,
// nothing could not be tried, and something passed.
func Passed(counts map[Verdict]int) bool {
	for v, n := range counts {
		if n > 0 && !v.Good() {
			return false
		}
	}
	return counts[Pass] > 0
}
