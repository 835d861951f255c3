// Command rfc resolves the requirements that code and tests name against the
// catalogue (provider/conformance/catalogue), both ways, and prints how much of
// each document is covered.
//
// A comment of the form
//
//	rfc:5044 MPA-4.1-03 Pad 0-3 octets so the FPDU is a multiple of 4
//
// that begins immediately after the two slashes claims that the code beside it meets the
// requirement, or in a _test.go file that the test shows this. The words after the
// id are the requirement's Brief in the catalogue. Scenarios show what their Requirements
// name. It is an error
//
//   - if such a comment is malformed, names an id that the catalogue lacks, or
//     another document than the id's,
//   - if its words differ from the catalogue's, or the catalogue has none,
//   - if more than four of them follow each other in code,
//   - if code claims what neither a test nor a scenario shows.
//
// Usage: go run ./ci/rfc [-write] [-open] [root]. With -write the command first writes the words of
// all claims; with -open it lists the MUSTs that nothing shows. The exit status is 1 if there is an
// error.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

func main() {
	open := flag.Bool("open", false, "list the MUSTs that no test and no scenario shows")
	words := flag.Bool("write", false, "write the words of the catalogue after the ids in comments")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if *words {
		if err := writeAll(os.Stdout, root); err != nil {
			fmt.Fprintln(os.Stderr, "rfc:", err)
			os.Exit(1)
		}
	}
	if err := run(os.Stdout, root, *open); err != nil {
		fmt.Fprintln(os.Stderr, "rfc:", err)
		os.Exit(1)
	}
}

func writeAll(w io.Writer, root string) error {
	c, err := catalogue.Load()
	if err != nil {
		return err
	}
	n, err := write(root, c)
	fmt.Fprintf(w, "%d files changed\n", n)
	return err
}

func run(w io.Writer, root string, open bool) error {
	c, err := catalogue.Load()
	if err != nil {
		return err
	}
	claims, err := scan(root)
	if err != nil {
		return err
	}
	r := resolve(c, claims, scenarios.Suite().All())
	r.print(w)
	if open {
		r.printOpen(w)
	}
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
	code      map[string]bool // ids that code claims
	tests     map[string]bool // ids that tests show
	scenarios map[string]bool // ids that scenarios require
	problems  []string
}

func resolve(c *catalogue.Catalogue, claims []claim, suite []*conformance.Scenario) *resolution {
	r := &resolution{catalogue: c, code: make(map[string]bool), tests: make(map[string]bool), scenarios: make(map[string]bool)}
	for _, sc := range suite {
		for _, id := range sc.Requirements {
			r.scenarios[id] = true
		}
	}
	where := make(map[string]string)
	for _, cl := range claims {
		if why := cl.check(c); why != "" {
			r.problems = append(r.problems, fmt.Sprintf("%s: %s", cl.where, why))
			continue
		}
		if cl.crowded {
			r.problems = append(r.problems,
				fmt.Sprintf("%s: more than %d claims in a row: place each at the code that does it",
					cl.where, maxBlock))
		}
		if cl.test {
			r.tests[cl.id] = true
			continue
		}
		r.code[cl.id] = true
		if where[cl.id] == "" {
			where[cl.id] = cl.where
		}
	}
	for _, req := range c.All() {
		if r.code[req.ID] && !r.shown(req.ID) {
			r.problems = append(r.problems, fmt.Sprintf("%s: %s is claimed here, and no test or scenario shows it: %s", where[req.ID], req.ID, req.Text))
		}
	}
	return r
}

func (r *resolution) shown(id string) bool { return r.tests[id] || r.scenarios[id] }

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

func (r *resolution) printOpen(w io.Writer) {
	for _, req := range r.catalogue.All() {
		if req.Level.Binding() && !r.shown(req.ID) {
			fmt.Fprintf(w, "open: %s %s (%s): %s\n", req.ID, req.Level, req.Where(), strings.TrimSpace(req.Text))
		}
	}
}
