package policy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestLimits: there are at most 50 constants of tuning, each with a comment of its own or of the
// constants before it, which says what was measured, or the group's says that nothing was.
func TestLimits(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "limits.go", nil,
		parser.ParseComments|parser.SkipObjectResolution)
	testkit.OK(t, err)
	numbers := 0
	for _, d := range file.Decls {
		decl := d.(*ast.GenDecl)
		doc := ""
		for _, s := range decl.Specs {
			c, is := s.(*ast.ValueSpec)
			if !is {
				continue // an import
			}
			if c.Doc != nil {
				doc = c.Doc.Text()
			}
			numbers++
			if !strings.Contains(decl.Doc.Text()+doc, "easured") || !strings.Contains(doc, c.Names[0].Name) {
				t.Errorf("%s does not say what was measured", c.Names[0])
			}
			if _, alias := c.Values[0].(*ast.Ident); alias {
				t.Errorf("%s has the number of another constant", c.Names[0])
			}
		}
	}
	if numbers > 50 || numbers < 20 {
		t.Errorf("%d constants of tuning", numbers)
	}
}

// TestLimitsInProse: what users read says the numbers that the constants have.
func TestLimitsInProse(t *testing.T) {
	us := func(d time.Duration) string { return fmt.Sprint(int64(d/time.Microsecond), " us") }
	ms := func(d time.Duration) string { return fmt.Sprint(d.Seconds()*1e3, " ms") }
	from, to := WaitTimer, WaitTimer*3/2
	for file, phrases := range map[string][]string{
		"ibverbs/qp.go": {"within the last " + us(RunTime), fmt.Sprint("makes ", MostOctets>>10, " KiB wait"),
			"the wait has taken " + us(WaitMost), fmt.Sprintf("after %v to %s", from.Seconds()*1e3, ms(to))},
		"provider/engine/options.go": {"late by " + ms(to)},
		"docs/reference.md":          {ms(to) + ", until a timer", "no completion for " + us(RunTime)},
		"ARCHITECTURE.md":            {us(WaitMost) + " end the wait", "`Options.BusyWait`, " + us(BusyWait)},
	} {
		text := string(testkit.Must(os.ReadFile(filepath.Join("../../../..", file)))(t))
		text = strings.Join(strings.Fields(strings.ReplaceAll(text, "//", "")), " ")
		for _, phrase := range phrases {
			if !strings.Contains(text, phrase) {
				t.Errorf("%s does not say %q, which limits.go does", file, phrase)
			}
		}
	}
}
