package conformance

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// requirement is one that the catalogue has.
const requirement = "RDMAP-5.3-01"

// verbs returns a well-formed verbs scenario.
func verbs(slug string, body func(*VerbsRun)) *Scenario {
	return &Scenario{Slug: slug, Title: "what is right", Level: Must, Requirements: []string{requirement}, Verbs: body}
}

// raw returns a well-formed raw scenario.
func raw(slug string, role Role, body func(*RawRun)) *Scenario {
	needs := NeedsProgram
	if role == RoleResponder {
		needs = NeedsConnect
	}
	return &Scenario{Slug: slug, Title: "what is right", Level: Must, Raw: body, RawRole: role, Needs: needs}
}

func suite(scenarios ...*Scenario) *Suite {
	s := &Suite{}
	s.Add(scenarios...)
	return s
}

// opener opens the engine under another name.
func opener(t *testing.T, name string) Opener {
	return func([]string) (*Endpoint, error) {
		ctx, err := ibverbs.Open(engine.New(nil), "")
		if err != nil {
			t.Error(err)
		}
		return &Endpoint{Name: name, Context: ctx, Addr: netip.MustParseAddr("127.0.0.1")}, err
	}
}
