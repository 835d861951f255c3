package conformance

import "time"

// An Outcome is what happened in one run of a scenario, before it is judged. It
// goes through JSON: runs are collected in a guest and judged outside.
type Outcome struct {
	Scenario       string        `json:"scenario"`
	Pairing        Pairing       `json:"pairing"`
	Seed           uint64        `json:"seed"`
	Started        time.Time     `json:"started"`
	DurationMillis int64         `json:"duration_ms"`
	Checks         []Check       `json:"checks"`
	Observations   []Observation `json:"observations"`
	Log            []string      `json:"log,omitempty"`
	Setup          string        `json:"setup,omitempty"`       // why it could not be tried
	Unsupported    string        `json:"unsupported,omitempty"` // which capability is missing

	// Port is the TCP port that the responder listened on: the run's packets
	// are those to and from it.
	Port uint16 `json:"port"`

	// Capture is the name of the run's capture file, next to the outcome's own
	// file, and CaptureSource how it was made: "wire" for packets seen on an
	// interface, "tap" for bytes seen at the engine's or raw peer's socket.
	Capture       string `json:"capture,omitempty"`
	CaptureSource string `json:"capture_source,omitempty"`

	// CaptureAtPeer is the name of the file with what the other host captured of the run, with
	// the times of its clock.
	CaptureAtPeer string `json:"capture_at_peer,omitempty"`
}

// A Check is one expectation.
type Check struct {
	What string `json:"what"` // in English
	OK   bool   `json:"ok"`
	Got  string `json:"got,omitempty"` // what was found instead
}

// An Observation is a fact that is compared between pairings.
type Observation struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// State is one word for progress: how the run ended, before it is judged.
func (o *Outcome) State() string {
	switch {
	case o.Setup != "":
		return "setup"
	case o.failed():
		return "differs"
	case o.Unsupported != "":
		return "lacking"
	}
	return "ok"
}

func (o *Outcome) failed() bool {
	for _, c := range o.Checks {
		if !c.OK {
			return true
		}
	}
	return false
}

// A Collection is the outcomes of a run of the suite, and its conditions.
type Collection struct {
	Schema  string    `json:"schema"` // CollectionSchema
	Started time.Time `json:"started"`
	Version string    `json:"version"` // of govs
	Kernel  string    `json:"kernel"`  // uname -r where it ran
	// KernelVersion is the release of the sources that this kernel was built from,
	// such as "6.1.176". A distribution's uname -r does not have it.
	KernelVersion string    `json:"kernel_version,omitempty"`
	CPUs          int       `json:"cpus"`
	Siw           string    `json:"siw,omitempty"` // variant of the module, such as default or crc
	Seed          uint64    `json:"seed"`
	Only          string    `json:"only,omitempty"`
	Require       []string  `json:"require,omitempty"` // providers whose absence is a failure
	Peer          *PeerHost `json:"peer,omitempty"`    // of a run between two hosts
	Target        string    `json:"target,omitempty"`  // address of the target of raw scenarios
	Outcomes      []Outcome `json:"outcomes"`
}

// PeerHost describes the other host of a run between two, as the agent there reported it.
type PeerHost struct {
	Address       string `json:"address"` // of the agent
	Version       string `json:"version"` // of govs
	Kernel        string `json:"kernel"`
	KernelVersion string `json:"kernel_version,omitempty"`
	Siw           string `json:"siw,omitempty"`
	CPUs          int    `json:"cpus"`

	// ClockAhead is how far its clock was ahead of this host's when the run began, and
	// ClockWithin is the largest error of ClockAhead. Both are in nanoseconds.
	ClockAhead  int64 `json:"clock_ahead_ns"`
	ClockWithin int64 `json:"clock_within_ns"`
}

// CollectionSchema is the version of the Collection's JSON form.
const CollectionSchema = "govs-collection/1"
