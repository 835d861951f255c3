package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

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
