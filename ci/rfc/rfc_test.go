package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
)

// TestProject is the check itself: the project's claims resolve. The other tests test the check.
func TestProject(t *testing.T) {
	var b bytes.Buffer
	err := run(&b, filepath.Join("..", ".."), false)
	t.Log("\n" + b.String())
	if err != nil {
		t.Error(err)
	}
}

func load(t *testing.T) *catalogue.Catalogue {
	t.Helper()
	c, err := catalogue.Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// project writes files and returns their folder. "@" stands for the characters that begin a claim.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "@", mark)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The words of three requirements.
const (
	b1 = "FPDU layout: 16-bit length, ULPDU, pad, 32-bit CRC"
	b2 = "ULPDU_Length counts the ULPDU only"
	b3 = "Pad 0-3 octets so the FPDU is a multiple of 4"
)

func TestResolve(t *testing.T) {
	root := project(t, map[string]string{
		"a/a.go": "package a\n\n@5044 MPA-4.1-01 " + b1 + "\nfunc f() {}\n\nvar x = " +
			"1 @5044 MPA-4.1-02 " + b2 + "\n\n@5044 MPA-4.1-03 " + b3 + "\n",
		"a/a_test.go": "package a\n\n// TestA is a test.\n//\n@5044 MPA-4.1-01 " + b1 + "\nfunc TestA(\n",
		"a/b.go": "package a\n@5044 MPA-99-01\n@5041 MPA-4.1-01\n@5044  MPA-4.1-01\n" +
			"@5044 MPA-4.1-01 and more\n@MPA-4.1-01\n",
		"a/testdata/x.go": "@5044 nothing of this counts\n",
		"out/x.go":        "@5044 nor of this\n",
		"a/readme.md":     "@5044 nor of this\n",
		".git/hooks/x.go": "@5044 nor of this\n",
		"b/only_a_test.go": "package b\n// @\nfunc TestB(t *testing.T) {\n\tx() @5040 RDMAP-5.3-01 Send untagged\n}\n" +
			"@5040 RDMAP-5.3-06 Send on QN 0\nvar y = 1\n\nfunc (x) TestC() {\n\tz() @5040 RDMAP-5.3-06 Send on QN 0\n",
		"c/not_an_rfc.go":    "package c\n@5041 RDMAC-DDP1.0-6.1-01\n",
		"c/not_an_rfc_2.txt": "@x",
	})
	claims, err := scan(root)
	if err != nil {
		t.Fatal(err)
	}
	r := resolve(load(t), claims, []*conformance.Scenario{{Requirements: []string{"MPA-4.1-02"}}})
	var got []string
	for _, p := range r.problems {
		got = append(got, strings.TrimPrefix(p, root+"/"))
	}
	want := []string{
		"a/b.go:2: MPA-99-01 is not in the catalogue",
		"a/b.go:3: MPA-4.1-01 is of RFC 5044, not of RFC 5041",
		`a/b.go:4: "rfc:5044  MPA-4.1-01" is not of the form rfc:5044 MPA-4.1-01`,
		`a/b.go:5: MPA-4.1-01 is followed by "and more" instead of "FPDU layout: 16-bit length, ULPDU, pad, 32-bit CRC": go run ./ci/rfc -write`,
		`a/b.go:6: "rfc:MPA-4.1-01" is not of the form rfc:5044 MPA-4.1-01`,
		`b/only_a_test.go:2: "rfc:" is not of the form rfc:5044 MPA-4.1-01`,
		"b/only_a_test.go:6: RDMAP-5.3-06 belongs to no test: move it to the comment before one",
		"b/only_a_test.go:10: RDMAP-5.3-06 belongs to no test: move it to the comment before one",
		"c/not_an_rfc.go:2: RDMAC-DDP1.0-6.1-01 is of draft-shah-iwarp-ddp-v1.0, not of RFC 5041",
		"a/a.go:8: MPA-4.1-03 is claimed here, and no test or scenario shows it: Pad 0-3 octets so the FPDU is a multiple of 4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if a, b := r.tests["MPA-4.1-01"], r.tests["RDMAP-5.3-01"]; !slices.Equal(a, []string{"a.TestA"}) ||
		!slices.Equal(b, []string{"b.TestB"}) {
		t.Errorf("tests are %q and %q", a, b)
	}
	for _, x := range r.rows() {
		if x.document == "RFC 5044" && (x.code != 3 || x.shown != 2) || x.document == "RFC 5040" && (x.code != 0 || x.shown != 1) {
			t.Errorf("counts are %+v", x)
		}
	}
}

// TestWrite checks that -write gives every claim its words, whatever words it had, and
// changes nothing else.
func TestWrite(t *testing.T) {
	root := project(t, map[string]string{
		"a.go": "package a\n\n@5044 MPA-4.1-01\nfunc f() {\n\tx() @5044 MPA-4.1-02 old " +
			"words\n}\n@5044 MPA-4.1-03 " + b3 + "\n@bad\n@5044 MPA-99-01\n",
		"b.go": "package a\n\n// nothing\n",
		"c.go": "package a\n\n@5044 MPA-4.1-03 " + b3 + "\n",
	})
	c := load(t)
	for _, want := range []int{1, 0} {
		if n, err := write(root, c); err != nil || n != want {
			t.Errorf("%d files changed (%v), want %d", n, err, want)
		}
	}
	got, err := os.ReadFile(filepath.Join(root, "a.go"))
	if err != nil {
		t.Fatal(err)
	}
	want := "package a\n\n@5044 MPA-4.1-01 " + b1 + "\nfunc f() {\n\tx() @5044 MPA-4.1-02 " +
		b2 + "\n}\n@5044 MPA-4.1-03 " + b3 + "\n@bad\n@5044 MPA-99-01\n"
	if want = strings.ReplaceAll(want, "@", mark); string(got) != want {
		t.Errorf("the file is\n%s\nwant\n%s", got, want)
	}
}

// TestBlocks checks that four claims may follow each other in code, and any number in tests.
func TestBlocks(t *testing.T) {
	block := strings.Repeat("@5044 MPA-4.1-03 "+b3+"\n", 5)
	root := project(t, map[string]string{
		"a.go":      "package a\n" + block,
		"b.go":      "package a\n" + strings.Replace(block, "\n@", "\nvar x int\n@", 1),
		"a_test.go": "package a\n" + block + "func TestA(",
	})
	claims, err := scan(root)
	if err != nil {
		t.Fatal(err)
	}
	r := resolve(load(t), claims, nil)
	if len(r.problems) != 1 || !strings.Contains(r.problems[0], "a.go:6: more than 4 claims in a row") {
		t.Errorf("problems are %q", r.problems)
	}
}

// TestOpen checks that a requirement needs either a reason or something that shows it, not both.
func TestOpen(t *testing.T) {
	r := resolve(load(t), nil, []*conformance.Scenario{{Slug: "a/b", Requirements: []string{"MPA-9.3-01", "MPA-3-01"}}})
	r.checkAll()
	got := strings.Join(r.problems, "\n")
	for _, want := range []string{
		"MPA-4.1-01 MUST (RFC 5044 §4.1): neither a test nor a scenario shows it",
		"MPA-3-03 SHOULD (RFC 5044 §3): neither",
		`MPA-9.3-01: a test or a scenario shows it, and reasons.tsv has "not testable: IPsec`,
		"tests and scenarios show 2 of 441 MUSTs, want 95 %",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no problem has %q", want)
		}
	}
	for _, id := range []string{"MPA-3-01 ", "MPA-9.4-01 "} {
		if strings.Contains(got, id) {
			t.Errorf("%sis a problem", id)
		}
	}
}

// TestGenerate checks that the files are written, and that a difference is a problem.
func TestGenerate(t *testing.T) {
	root := project(t, map[string]string{testsFile: "old", pageFile: "old"})
	all := []string{"d.TestD", "c.TestC", "b.TestB", "a.TestA"}
	r := &resolution{catalogue: load(t), tests: map[string][]string{"MPA-4.1-01": all},
		scenarios: map[string][]string{"MPA-4.1-01": {"x/y"}}}
	for _, step := range []struct {
		write    bool
		problems int
	}{{false, 2}, {true, 0}, {false, 0}} {
		r.problems = nil
		if err := r.generate(root, step.write); err != nil || len(r.problems) != step.problems {
			t.Errorf("write %v: %q, %v; want %d problems", step.write, r.problems, err, step.problems)
		}
	}
	for file, want := range map[string]string{
		testsFile: "id\ttests\nMPA-4.1-01\ta.TestA b.TestB c.TestC d.TestD\n",
		pageFile:  "\n| MPA-4.1-01 | MUST | `x/y`; `a.TestA`, `b.TestB`, `c.TestC` and 1 more |  |\n",
	} {
		got, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s has no %q: %v", file, want, err)
		}
	}
	page := string(r.page(map[string][]string{"RDMAP-4.8-01": {"siw-terminate-layout"}}))
	for _, want := range []string{"| MPA-9.3-01 | MUST | not testable: ",
		"| RDMAP-4.8-01 | MUST |  | `siw-terminate-layout` |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

func TestScanErrors(t *testing.T) {
	if _, err := scan(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("a folder that is not there can be scanned")
	}
}
