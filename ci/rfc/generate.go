package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/profile"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// What generate makes, below the root.
const (
	testsFile = "provider/conformance/catalogue/tests.tsv"
	pageFile  = "docs/requirements.md"
)

// generate compares the files that are made of the claims with those below root, or writes them. A
// difference is a problem.
func (r *resolution) generate(root string, write bool) error {
	known, err := siwEntries()
	if err != nil {
		return err
	}
	for name, want := range map[string][]byte{testsFile: r.testsTable(), pageFile: r.page(known)} {
		path := filepath.Join(root, name)
		have, err := os.ReadFile(path)
		switch {
		case err != nil && !os.IsNotExist(err):
			return err
		case bytes.Equal(have, want):
		case !write:
			r.problem("%s is out of date: go run ./ci/rfc -write", name)
		default:
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// siwEntries returns the ids of the entries of siw's profile by requirement that siw does not keep.
func siwEntries() (map[string][]string, error) {
	profiles, err := profile.Builtin(scenarios.Suite())
	if err != nil {
		return nil, err
	}
	known := make(map[string][]string)
	for _, e := range profile.Entries(profiles) {
		for _, id := range e.Requirements {
			if e.Provider == "kernel" && !slices.Contains(known[id], e.ID) {
				known[id] = append(known[id], e.ID)
			}
		}
	}
	return known, nil
}

// testsTable returns tests.tsv of the catalogue.
func (r *resolution) testsTable() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "id\ttests")
	for _, req := range r.catalogue.All() {
		if tests := r.tests[req.ID]; tests != nil {
			fmt.Fprintf(&b, "%s\t%s\n", req.ID, strings.Join(slices.Sorted(slices.Values(tests)), " "))
		}
	}
	return b.Bytes()
}

const pageHead = `# The requirements, and what shows them

<!-- go run ./ci/rfc -write makes this file. -->

Each row is a requirement of the [catalogue](../provider/conformance/catalogue/README.md), which has its words. The id
has the section: RDMAP-5.2.1-08 is the eighth row of section 5.2.1. A requirement is shown by scenarios of the
[suite](suite.md), which run over the engine and over siw, or by tests. Otherwise the row has a reason:

- *exception*: the engine does something else.
- *not testable*: no test of the engine can show it.
- *not used*: it is a permission that the engine does not use.

The last column names the entries of siw's [profile](profiles.md) for requirements that siw does not keep. The report of
a run has the state of each provider. RFC 5042 is about security; [bounds.md](bounds.md) goes through its attacks.
`

// page returns docs/requirements.md. known has the entries of siw's profile.
func (r *resolution) page(known map[string][]string) []byte {
	var b bytes.Buffer
	b.WriteString(pageHead)
	fmt.Fprint(&b, "\n| document | requirements | shown | MUSTs | MUSTs shown |\n|---|---|---|---|---|\n")
	for _, x := range r.rows() {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n",
			x.document, x.all, x.shown, x.musts, x.mustsShown)
	}
	document := ""
	for _, req := range r.catalogue.All() {
		if req.Document != document {
			document = req.Document
			fmt.Fprintf(&b, "\n## %s\n\n| id | level | shown by | siw |\n|---|---|---|---|\n", document)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n",
			req.ID, req.Level, r.shownBy(req), names(known[req.ID]))
	}
	return b.Bytes()
}

// shownBy names scenarios and tests that show a requirement, or gives the reason why none does.
func (r *resolution) shownBy(req *catalogue.Requirement) string {
	if req.Reason != "" {
		return req.Reason
	}
	var cells []string
	for _, list := range [][]string{r.scenarios[req.ID], r.tests[req.ID]} {
		if list != nil {
			cells = append(cells, names(list))
		}
	}
	return strings.Join(cells, "; ")
}

// mostNames is how many names of a list the page has.
const mostNames = 3

// names returns the first names of a list in backquotes, and how many more there are.
func names(list []string) string {
	sorted := slices.Sorted(slices.Values(list))
	more := ""
	if n := len(sorted) - mostNames; n > 0 {
		sorted, more = sorted[:mostNames], fmt.Sprintf(" and %d more", n)
	}
	for i := range sorted {
		sorted[i] = "`" + sorted[i] + "`"
	}
	return strings.Join(sorted, ", ") + more
}
