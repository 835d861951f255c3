// Command rfc resolves the requirements that code and tests name against the
// catalogue (provider/conformance/catalogue), both ways, and prints how much of
// each document is covered.
//
// A comment of the form
//
//	rfc:5044 MPA-4.1-03 Pad 0-3 octets so the FPDU is a multiple of 4
//
// that begins immediately after the two slashes claims that the code beside it meets the
// requirement, or in a _test.go file that the test shows this. There it is in a test, or in the
// comment before one. The words after the id are the requirement's Brief in the catalogue.
// Scenarios show what their Requirements name. It is an error
//
//   - if such a comment is malformed, names an id that the catalogue lacks, or
//     another document than the id's,
//   - if its words differ from the catalogue's, or the catalogue has none,
//   - if more than four of them follow each other in code,
//   - if one in a _test.go file belongs to no test,
//   - if code claims what neither a test nor a scenario shows,
//   - if neither a test nor a scenario shows a requirement, and the catalogue has no reason for
//     that, or if it has a reason although one does,
//   - if tests and scenarios show less than 95 % of the MUSTs and MUST NOTs,
//   - if docs/requirements.md or the catalogue's tests.tsv is not what -write makes.
//
// Usage: go run ./ci/rfc [-write] [root]. With -write the command first writes the words of all
// claims and these two files. The exit status is 1 if there is an error.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

func main() {
	words := flag.Bool("write", false, "write the words of claims, and the files made of them")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(os.Stdout, root, *words); err != nil {
		fmt.Fprintln(os.Stderr, "rfc:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, root string, words bool) error {
	c, err := catalogue.Load()
	if err != nil {
		return err
	}
	if words {
		n, err := write(root, c)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d files changed\n", n)
	}
	claims, err := scan(root)
	if err != nil {
		return err
	}
	r := resolve(c, claims, scenarios.Suite().All())
	r.checkAll()
	if err := r.generate(root, words); err != nil {
		return err
	}
	r.print(w)
	for _, p := range r.problems {
		fmt.Fprintln(w, p)
	}
	if n := len(r.problems); n > 0 {
		return fmt.Errorf("%d problems", n)
	}
	return nil
}

// resolution is the result of resolving the claims.
type resolution struct {
	catalogue *catalogue.Catalogue
	code      map[string]bool     // ids that code claims
	tests     map[string][]string // which tests show an id
	scenarios map[string][]string // which scenarios require an id
	problems  []string
}

func resolve(c *catalogue.Catalogue, claims []claim, suite []*conformance.Scenario) *resolution {
	r := &resolution{catalogue: c, code: make(map[string]bool), tests: make(map[string][]string),
		scenarios: make(map[string][]string)}
	for _, sc := range suite {
		for _, id := range sc.Requirements {
			r.scenarios[id] = append(r.scenarios[id], sc.Slug)
		}
	}
	where := make(map[string]string)
	for _, cl := range claims {
		if why := cl.check(c); why != "" {
			r.problem("%s: %s", cl.where, why)
			continue
		}
		if cl.crowded {
			r.problem("%s: more than %d claims in a row: place each at the code that does it",
				cl.where, maxBlock)
		}
		if cl.test {
			if !slices.Contains(r.tests[cl.id], cl.by) {
				r.tests[cl.id] = append(r.tests[cl.id], cl.by)
			}
			continue
		}
		r.code[cl.id] = true
		if where[cl.id] == "" {
			where[cl.id] = cl.where
		}
	}
	for _, req := range c.All() {
		if r.code[req.ID] && !r.shown(req.ID) {
			r.problem("%s: %s is claimed here, and no test or scenario shows it: %s",
				where[req.ID], req.ID, req.Text)
		}
	}
	return r
}

func (r *resolution) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// mustPercent is how many of the MUSTs and MUST NOTs tests and scenarios have to show.
const mustPercent = 95

// checkAll adds a problem for each requirement that is open, or has a reason although it is shown,
// and one if too few MUSTs are shown.
func (r *resolution) checkAll() {
	for _, req := range r.catalogue.All() {
		switch shown := r.shown(req.ID); {
		case !shown && req.Reason == "":
			r.problem("%s %s (%s): neither a test nor a scenario shows it, and reasons.tsv does not "+
				"say why: %s", req.ID, req.Level, req.Where(), req.Text)
		case shown && req.Reason != "":
			r.problem("%s: a test or a scenario shows it, and reasons.tsv has %q", req.ID, req.Reason)
		}
	}
	rows := r.rows()
	if all := rows[len(rows)-1]; all.mustsShown*100 < all.musts*mustPercent {
		r.problem("tests and scenarios show %d of %d MUSTs, want %d %%", all.mustsShown, all.musts,
			mustPercent)
	}
}

func (r *resolution) shown(id string) bool { return r.tests[id] != nil || r.scenarios[id] != nil }

// check returns what is wrong with a claim, or "".
func (cl *claim) check(c *catalogue.Catalogue) string {
	if cl.malformed {
		return fmt.Sprintf("%q is not of the form rfc:5044 MPA-4.1-01", cl.text)
	}
	req := c.ByID(cl.id)
	if req == nil {
		return fmt.Sprintf("%s is not in the catalogue", cl.id)
	}
	if req.Document != "RFC "+cl.document {
		return fmt.Sprintf("%s is of %s, not of RFC %s", cl.id, req.Document, cl.document)
	}
	if req.Brief == "" {
		return fmt.Sprintf("%s has no words for a comment: add it to "+
			"provider/conformance/catalogue/briefs.tsv", cl.id)
	}
	if cl.test && cl.by == "" {
		return fmt.Sprintf("%s belongs to no test: move it to the comment before one", cl.id)
	}
	if cl.words != req.Brief {
		return fmt.Sprintf("%s is followed by %q instead of %q: go run ./ci/rfc -write", cl.id,
			cl.words, req.Brief)
	}
	return ""
}

// row counts one document's requirements.
type row struct {
	document                            string
	all, code, shown, musts, mustsShown int
}

func (r *resolution) rows() []row {
	var rows []row
	total := row{document: "all"}
	for _, req := range r.catalogue.All() {
		i := slices.IndexFunc(rows, func(x row) bool { return x.document == req.Document })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{document: req.Document})
		}
		for _, x := range []*row{&rows[i], &total} {
			x.all++
			if r.code[req.ID] {
				x.code++
			}
			if r.shown(req.ID) {
				x.shown++
			}
			if req.Level.Binding() {
				x.musts++
				if r.shown(req.ID) {
					x.mustsShown++
				}
			}
		}
	}
	return append(rows, total)
}

func (r *resolution) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "document\trequirements\tclaimed by code\tshown\tMUSTs\tMUSTs shown\t")
	for _, x := range r.rows() {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t\n", x.document, x.all, x.code, x.shown, x.musts, x.mustsShown)
	}
	_ = tw.Flush()
}
