package conformance

import "time"

// ReportSchema is the version of the Report's JSON form. Fields are added within
// a version; a change of meaning or a removal makes a new one. docs: see
// provider/conformance/SCHEMA.md.
const ReportSchema = "govs-report/1"

// A Report is a judged collection: report.json.
type Report struct {
	Schema      string          `json:"schema"` // ReportSchema
	Started     time.Time       `json:"started"`
	Version     string          `json:"version"`
	Kernel      string          `json:"kernel"`
	CPUs        int             `json:"cpus"`
	Siw         string          `json:"siw,omitempty"`
	Seed        uint64          `json:"seed"`
	Tshark      string          `json:"tshark"` // version of the witness, or why there is none
	Passed      bool            `json:"passed"`
	Counts      map[Verdict]int `json:"counts"`
	Results     []Result        `json:"results"`
	Requirement []Coverage      `json:"requirements"`
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
	Why          string   `json:"why,omitempty"` // one line: what decided, unless PASS

	DurationMillis int64         `json:"duration_ms"`
	Checks         []Check       `json:"checks"`
	Observations   []Observation `json:"observations"`
	Divergences    []Divergence  `json:"divergences,omitempty"`
	Log            []string      `json:"log,omitempty"`
	Ladder         []string      `json:"ladder,omitempty"` // the wire, decoded by us, one line a frame
	Witness        Witness       `json:"witness"`
	Capture        string        `json:"capture,omitempty"` // file beside report.json
	CaptureSource  string        `json:"capture_source,omitempty"`
	Replay         string        `json:"replay"` // the command that runs just this
}

// A Divergence is a way in which a run differs from what was expected, or from
// the reference pairing.
type Divergence struct {
	// Key is "check:" and the expectation, "observe:" and the key, or
	// "wire:to-responder" and "wire:to-initiator".
	Key       string `json:"key"`
	Reference string `json:"reference"`          // what was expected, or the reference pairing had
	Got       string `json:"got"`                // what this run had
	Ledger    string `json:"ledger,omitempty"`   // id of the entry that explains it
	Reason    string `json:"reason,omitempty"`   // the entry's
	Evidence  string `json:"evidence,omitempty"` // the entry's
	Kernels   string `json:"kernels,omitempty"`  // the entry's
	Against   string `json:"against,omitempty"`  // the reference pairing, empty for a check
}

// Witness is what tshark, which nobody here wrote, says of the capture.
type Witness struct {
	Asked  bool   `json:"asked"`
	Agrees bool   `json:"agrees"`
	Frames int    `json:"frames"` // FPDUs and start-up frames that it decoded
	Why    string `json:"why,omitempty"`
}

// Coverage says where a requirement of the catalogue stands.
type Coverage struct {
	ID      string   `json:"id"`
	Section string   `json:"section"`
	Level   string   `json:"level"`
	Text    string   `json:"text"`
	Shown   []string `json:"shown,omitempty"`      // provider: scenario, where it passed
	Excepts []string `json:"exceptions,omitempty"` // ledger ids
}
