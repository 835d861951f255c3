package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFaults: faults of only one platform are found there, in packages and in tests, and the rest
// passes.
func TestFaults(t *testing.T) {
	const fine = "package a\n\nimport \"net\"\n\nvar Conn net.Conn\n"
	const test = "package a_test\n\nimport (\n\t\"testing\"\n\n\t\"example.org/a\"\n)\n\n" +
		"func TestX(t *testing.T) { t.Log(a.Conn) }\n"
	files := newFiles()
	for _, c := range []struct {
		name, file, text string
		platform, says   string
	}{
		{"nothing is wrong", "b.go", "package a\n", "linux/386", ""},
		{"a constant", "b.go", "package a\n\nvar N int = 1 << 40\n", "linux/386", "overflows"},
		{"the same elsewhere", "b.go", "package a\n\nvar N int = 1 << 40\n", "linux/arm64", ""},
		{"a name", "b_windows.go", "package a\n\nfunc f() { g() }\n", "windows/amd64", "undefined: g"},
		{"the same elsewhere", "b_windows.go", "package a\n\nfunc f() { g() }\n", "darwin/arm64", ""},
		{"a type", "b_s390x.go", "package a\n\nvar c uint8 = len(\"x\")\n", "linux/s390x", "cannot use"},
		{"not used", "b_arm.go", "package a\n\nfunc f() { x := 1 }\n", "linux/arm", "declared and not used: x"},
		{"an import", "b_arm.go", "package a\n\nimport \"os\"\n", "linux/arm", `"os" imported and not used`},
		{"a test", "b_386_test.go", "package a\n\nvar y = z\n", "linux/386", "undefined: z"},
		{"a test from outside", "b_386_test.go", "package a_test\n\nvar y = z\n", "linux/386", "undefined: z"},
		{"the syntax", "b_386.go", "package a\n\nfunc {\n", "linux/386", "b_386.go:3"},
		{"what is imported", "b_386.go", "package a\n\nimport _ \"example.org/b\"\n", "linux/386", "example.org/b"},
		{"what a test imports", "b_386_test.go", "package a\n\nimport _ \"example.org/b\"\n", "linux/386",
			"example.org/b"},
		{"a test's parameter", "b_386_test.go", "package a\n\nfunc TestY(int) {}\n", "linux/386", "TestY"},
		{"no body", "b_386.go", "package a\n\nfunc f()\n", "linux/386", "missing function body"},
		{"no platform", "b.go", "package a\n", "linux/pdp11", "no GOOS/GOARCH"},
		{"no system", "b.go", "package a\n", "multics/amd64", "more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module example.org/a\n\ngo 1.26\n",
				"a.go": fine, "a_test.go": test, c.file: c.text} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			n, err := check(files, c.platform, dir, []string{"./..."})
			switch {
			case c.says == "" && (err != nil || n != 2):
				t.Errorf("%v, %d packages; want 2: the package, its external test", err, n)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
