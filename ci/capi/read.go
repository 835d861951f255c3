package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var (
	comments     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	preprocessor = regexp.MustCompile(`(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$`)
	attributes   = regexp.MustCompile(`__attribute__\(\(.*?\)\)|__attribute_const\b|\bstatic\b|\binline\b`)
	spaces       = regexp.MustCompile(`\s+`)
	function     = regexp.MustCompile(`^[\w\s*]*?\b(\w+)\([^()]*(?:\([^()]*\)[^()]*)*\)$`)
)

// functions returns the prototypes of the functions that a C header declares or defines inline, by
// name. It is no C parser. It relies on the style of these headers, in which a declaration is
// outside of all braces and ends with a semicolon or a body.
func functions(header, prefix string) map[string]string {
	text := comments.ReplaceAllString(header, " ")
	text = preprocessor.ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, `extern "C" {`, "")

	found := make(map[string]string)
	var outside strings.Builder // the declaration that is being read
	depth := 0
	flush := func() {
		proto := normal(outside.String())
		outside.Reset()
		if m := function.FindStringSubmatch(proto); m != nil && strings.HasPrefix(m[1], prefix) {
			found[m[1]] = proto
		}
	}
	for _, r := range text {
		switch {
		case r == '{':
			if depth++; depth == 1 {
				flush()
			}
		case r == '}':
			depth = max(depth-1, 0)
		case depth > 0:
		case r == ';':
			flush()
		default:
			outside.WriteRune(r)
		}
	}
	return found
}

// normal brings a prototype into the form in which prototypes are compared: one space between
// words, none around parentheses and after a star, no storage class and no attributes.
func normal(proto string) string {
	proto = attributes.ReplaceAllString(proto, " ")
	proto = spaces.ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(proto), ";"), " ")
	for _, c := range []string{"(", ")", ",", "*"} {
		proto = strings.ReplaceAll(proto, " "+c, c)
		proto = strings.ReplaceAll(proto, c+" ", c)
	}
	return strings.TrimSpace(proto)
}

// citation is the prototype that a wrapper's comment cites.
type citation struct {
	prototype string
	place     string // the wrapper's name and file
}

// citations returns the citations in the Go files of a folder, by the name of
// the C function.
func citations(dir string) (map[string]citation, error) {
	found := make(map[string]citation)
	fset := token.NewFileSet()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			_, proto, ok := strings.Cut(f.Doc.Text(), "Implements:")
			if !ok {
				continue
			}
			proto = normal(proto)
			m := function.FindStringSubmatch(proto)
			place := fmt.Sprintf("%s (%s)", wrapperName(f), filepath.Base(path))
			if m == nil {
				return fmt.Errorf("%s: no prototype: %q", place, proto)
			}
			if twice, ok := found[m[1]]; ok {
				return fmt.Errorf("%s: %s is implemented by %s already", place, m[1], twice.place)
			}
			found[m[1]] = citation{proto, place}
		}
		return nil
	})
	return found, err
}

// wrapperName returns a function's name with its receiver's: QP.PostSend.
func wrapperName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
