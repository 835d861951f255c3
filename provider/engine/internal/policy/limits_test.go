package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestLimits: there are at most 50 numbers of tuning, and each says what was measured, or that
// nothing was. What follows from others is no number.
func TestLimits(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "limits.go", nil,
		parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
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
			if follows(c.Values[0]) {
				continue
			}
			numbers++
			if !strings.Contains(doc, "easured") || !strings.Contains(doc, c.Names[0].Name) {
				t.Errorf("%s does not say what was measured", c.Names[0])
			}
		}
	}
	if numbers > 50 || numbers < 20 {
		t.Errorf("%d numbers of tuning", numbers)
	}
}

// follows reports whether a value is an expression of other constants here.
func follows(value ast.Expr) (is bool) {
	ast.Inspect(value, func(n ast.Node) bool {
		_, other := n.(*ast.SelectorExpr) // time.Second
		id, name := n.(*ast.Ident)
		is = is || name && id.IsExported()
		return !other
	})
	return is
}
