package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// claim is one comment.
type claim struct {
	where     string // file:line
	test      bool   // in a _test.go file
	by        string // the test it belongs to, as "engine.TestFaults"
	document  string // "5044"
	id        string
	words     string // what follows the id
	text      string // the whole comment
	malformed bool
	crowded   bool // the first claim of a block in code beyond maxBlock
}

// mark begins a claim. It is written so that the scan does not find one here.
const mark = "//" + "rfc:"

var form = regexp.MustCompile(`^([0-9]{4}) ([A-Z][A-Za-z0-9.-]*)(?: (\S.*))?$`)

// maxBlock is how many claims may follow each other without code between them. Further claims stand
// at the statements that do what they say.
const maxBlock = 4

// skipped are folders that have no code of the project.
var skipped = map[string]bool{".git": true, "testdata": true, "out": true, "vendor": true}

// scan collects the claims in the Go files under root.
func scan(root string) ([]claim, error) {
	var claims []claim
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && skipped[d.Name()]:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		found, err := scanFile(path)
		claims = append(claims, found...)
		return err
	})
	return claims, err
}

// function matches the first line of a function, and finds the name of a test.
var function = regexp.MustCompile(`^func (?:((?:Test|Fuzz|Example)\w*)\()?`)

func scanFile(path string) ([]claim, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var claims []claim
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	test := strings.HasSuffix(path, "_test.go")
	block, by, before := 0, "", 0 // before: how many claims do not belong to the comment that goes on
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if m := function.FindStringSubmatch(line); m != nil && test {
			by = ""
			if m[1] != "" {
				by = filepath.Base(filepath.Dir(path)) + "." + m[1]
			}
			for i := before; i < len(claims); i++ {
				claims[i].by = by
			}
		}
		if !strings.HasPrefix(line, "//") {
			before = len(claims)
		}
		_, text, ok := strings.Cut(line, mark)
		if !ok {
			block = 0
			continue
		}
		block++
		c := claim{where: fmt.Sprintf("%s:%d", path, n), test: test, text: "rfc:" + text}
		if m := form.FindStringSubmatch(text); m != nil {
			c.document, c.id, c.words = m[1], m[2], m[3]
		} else {
			c.malformed = true
		}
		c.crowded = !test && block == maxBlock+1
		if !strings.HasPrefix(line, "//") {
			c.by = by
		}
		claims = append(claims, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return claims, nil
}
