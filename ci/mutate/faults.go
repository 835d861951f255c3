package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// place is a position in a file: its line, and in the lower 16 bits its column.
type place int

func placeOf(line, column int) place { return place(line<<16 | column) }

func (p place) line() int { return int(p >> 16) }

// fault replaces a part of a file.
type fault struct {
	pkg, file string // below the project's folder
	from, end int    // what is replaced, in bytes
	at        place  // of from
	kind      string
	was, to   string

	probe place  // what runs if the fault matters: of a condition, what it guards
	fn    [2]int // first and last line of the function, or 0
}

// name identifies the fault.
func (f *fault) name() string {
	return fmt.Sprintf("%s:%d:%d\t%s\t%s\t%s",
		f.file, f.at.line(), f.at&0xffff, f.kind, oneLine(f.was), oneLine(f.to))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// others has, for each operator, one that a programmer may confuse with it.
var others = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL,
}

// No fault is put into what only people read: texts, logs and statistics.
var (
	textFiles = regexp.MustCompile(`(^|_)(logger|stats|inspect)\.go$`) // inspect.go is for tests
	textCalls = regexp.MustCompile(`^(fmt|errors|slog)\.|\blog\.|^panic$|` +
		`\bcount[A-Z]\w*$|\b(counters|counts)\b`)
)

// faultsOf returns the faults of a package, in the order of its files. With constants, its const
// declarations have faults, too.
func faultsOf(pkg string, constants bool) (all []fault, err error) {
	entries, err := os.ReadDir(pkg)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			textFiles.MatchString(name) {
			continue
		}
		if ok, err := build.Default.MatchFile(pkg, name); err != nil || !ok {
			continue // for another platform
		}
		src, err := os.ReadFile(filepath.Join(pkg, name))
		if err != nil {
			return nil, err
		}
		found, err := faultsIn(filepath.Join(pkg, name), src, constants)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// finder collects the faults of a file.
type finder struct {
	file   string
	src    []byte
	fset   *token.FileSet
	fn     [2]int // as in fault
	faults []fault
}

func faultsIn(file string, src []byte, constants bool) ([]fault, error) {
	fi := &finder{file: file, src: src, fset: token.NewFileSet()}
	parsed, err := parser.ParseFile(fi.fset, file, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(parsed) {
		return nil, nil
	}
	for _, d := range parsed.Decls {
		fi.fn = [2]int{}
		switch d := d.(type) {
		case *ast.GenDecl:
			if d.Tok == token.VAR || d.Tok == token.CONST && constants {
				ast.Inspect(d, fi.visit)
			}
		case *ast.FuncDecl:
			if d.Body != nil && !makesText(d) {
				fi.fn = [2]int{fi.place(d.Pos()).line(), fi.place(d.End()).line()}
				ast.Inspect(d.Body, fi.visit)
			}
		}
	}
	return fi.faults, nil
}

// makesText reports whether a function only returns a text, as String and Error do.
func makesText(d *ast.FuncDecl) bool {
	if d.Type.Results.NumFields() != 1 {
		return false
	}
	result, ok := d.Type.Results.List[0].Type.(*ast.Ident)
	return ok && result.Name == "string"
}

func (fi *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		return !fi.isText(n)
	case *ast.BinaryExpr:
		if o, ok := others[n.Op]; ok && !isString(n.X) && !isString(n.Y) {
			fi.add("operator", n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), o.String())
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			fi.add("operator", n.OpPos, n.OpPos+1, "")
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			fi.add("constant", n.Pos(), n.End(), "("+n.Value+"+1)")
		}
	case *ast.IfStmt:
		fi.never(n.Cond, n.Body)
	case *ast.ForStmt:
		if n.Cond != nil {
			fi.never(n.Cond, n.Body)
		}
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !fi.isText(call) {
			fi.add("call", n.Pos(), n.End(), "")
		}
	case *ast.DeferStmt:
		fi.add("call", n.Pos(), n.End(), "")
	case *ast.IncDecStmt:
		fi.add("assignment", n.Pos(), n.End(), "")
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			fi.add("assignment", n.Pos(), n.End(), "")
		}
	}
	return true
}

// never adds the fault that a condition is never true.
func (fi *finder) never(cond ast.Expr, body *ast.BlockStmt) {
	fi.add("condition", cond.Pos(), cond.End(), "("+fi.text(cond)+") && false")
	if len(body.List) > 0 {
		fi.faults[len(fi.faults)-1].probe = fi.place(body.List[0].Pos())
	}
}

// isText reports whether a call makes a text, a record of the log, or a statistic.
func (fi *finder) isText(n *ast.CallExpr) bool { return textCalls.MatchString(fi.text(n.Fun)) }

func isString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

func (fi *finder) add(kind string, pos, end token.Pos, to string) {
	first, last := fi.fset.Position(pos).Offset, fi.fset.Position(end).Offset
	fi.faults = append(fi.faults, fault{
		pkg: filepath.Dir(fi.file), file: fi.file, from: first, end: last, at: fi.place(pos),
		kind: kind, was: string(fi.src[first:last]), to: to, probe: fi.place(pos), fn: fi.fn,
	})
}

func (fi *finder) place(p token.Pos) place {
	at := fi.fset.Position(p)
	return placeOf(at.Line, at.Column)
}

func (fi *finder) text(n ast.Node) string {
	return string(fi.src[fi.fset.Position(n.Pos()).Offset:fi.fset.Position(n.End()).Offset])
}
