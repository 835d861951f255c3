package profile_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/profile"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// TestSameAsGo compares the profiles with the ledger in Go that they replace.
func TestSameAsGo(t *testing.T) {
	lines := func(l conformance.Ledger) []string {
		var out []string
		for _, e := range l {
			out = append(out, string(testkit.Must(json.Marshal(e))(t)))
		}
		slices.Sort(out)
		return out
	}
	got := profile.Ledgers(testkit.Must(profile.Builtin(scenarios.Suite()))(t))
	if d := cmp.Diff(lines(scenarios.Ledger()), lines(got)); d != "" {
		t.Error(d)
	}
	fmt.Println(len(got), "entries")
}
