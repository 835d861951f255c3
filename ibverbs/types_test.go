package ibverbs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

// TestDocsListFields: the types of work requests are aliases, and go doc shows no fields of
// aliases. So their comments list all fields with their types.
func TestDocsListFields(t *testing.T) {
	file := testkit.Must(parser.ParseFile(token.NewFileSet(), "types.go", nil, parser.ParseComments))(t)
	docs := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			docs[spec.Name.Name] = spec.Doc.Text()
		}
		return true
	})
	for _, v := range []any{ibverbs.SendWR{}, ibverbs.RecvWR{}, ibverbs.WC{}} {
		typ := reflect.TypeOf(v)
		doc := docs[typ.Name()]
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := strings.NewReplacer("provider.", "", "uint8", "byte").Replace(f.Type.String())
			line := regexp.MustCompile(fmt.Sprintf(`(?m)^\t%s +%s +// `, f.Name, regexp.QuoteMeta(name)))
			if !line.MatchString(doc) {
				t.Errorf("the documentation of %s does not list %s %s", typ.Name(), f.Name, name)
			}
		}
	}
}
