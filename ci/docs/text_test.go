package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/govs-rdma/govs/ci/testkit"
)

// documents returns README.md, SECURITY.md and the files of docs, kernel-notes and
// kernel-notes/upstream.
func documents(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md", "SECURITY.md"}
	for _, folder := range []string{"docs", "kernel-notes", upstream} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
		if err != nil || len(files) < 4 {
			t.Fatalf("%s has %d documents: %v", folder, len(files), err)
		}
		for _, f := range files {
			names = append(names, folder+"/"+filepath.Base(f))
		}
	}
	return names
}

// TestNamesInDocuments checks that the tests, examples and scenarios that the text names in
// backquotes exist.
func TestNamesInDocuments(t *testing.T) {
	suite := suiteSlugs()
	groups := make(map[string]bool)
	for slug := range suite {
		group, _, _ := strings.Cut(slug, "/")
		groups[group] = true
	}
	have := tests(t)
	names := 0
	for _, file := range documents(t) {
		for _, m := range quoted.FindAllStringSubmatch(withoutCode(document(t, file)), -1) {
			name := m[1]
			group, rest, slash := strings.Cut(name, "/")
			_, test, dot := strings.Cut(name, ".")
			isScenario := slash && groups[group] && !strings.ContainsAny(rest, " *")
			if !isScenario && !testName.MatchString(name) && !(dot && testName.MatchString(test)) {
				continue
			}
			if !isScenario {
				name, _, _ = strings.Cut(name, "/") // a subtest is one of this test
			}
			names++
			switch {
			case isScenario && !suite[name]:
				t.Errorf("%s: there is no scenario %s", file, name)
			case !isScenario && have[name] == nil && unresolved(name, suite, have) != "":
				t.Errorf("%s: there is no test %s", file, name)
			}
		}
	}
	if names < 200 {
		t.Errorf("only %d names were found", names)
	}
}

var link = regexp.MustCompile(`(?:\]\(|src="|srcset=")([^)"]+)`)

// TestLinks checks that the files and headings that the documents link to exist.
func TestLinks(t *testing.T) {
	links := 0
	files := append(documents(t), "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
	for _, name := range []string{"README.md", "limits.md", "host.md", "guest.md", "victim.md"} {
		files = append(files, "docs/benchmarks/"+name)
	}
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(withoutCode(document(t, file)), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s: there is no %s", file, m[1])
			} else if fragment != "" && !slices.Contains(anchors(document(t, path)), fragment) {
				t.Errorf("%s: %s has no heading #%s", file, path, fragment)
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found", links)
	}
}

var notInAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)

// anchors returns the names that code forges give the headings of a text.
func anchors(text string) (names []string) {
	for line := range strings.Lines(withoutCode(text)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "#"), " "); ok && line[0] == '#' {
			name := notInAnchor.ReplaceAllString(strings.ToLower(title), "")
			names = append(names, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return names
}

// withoutCode removes fenced blocks from a text.
func withoutCode(text string) string {
	var kept strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if !fenced {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

var goBlock = regexp.MustCompile("(?s)<!-- from ([^ ]+) -->\n+```go\n(.*?)\n```")

// TestCodeInDocuments checks that each block of Go code is in the file that the comment
// before it names. The file is compiled, and its tests run. A line "// ..." stands for lines
// that are left out.
func TestCodeInDocuments(t *testing.T) {
	for _, file := range documents(t) {
		text := document(t, file)
		found := goBlock.FindAllStringSubmatch(text, -1)
		if n := strings.Count(text, "```go\n"); n != len(found) {
			t.Errorf("%s: %d of %d blocks of Go code don't follow a comment <!-- from FILE -->", file, n-len(found), n)
		}
		for _, m := range found {
			source := trimLines(document(t, m[1]))
			for _, part := range strings.Split(trimLines(m[2]), "// ...\n") {
				i := strings.Index(source, part)
				if i < 0 {
					t.Errorf("%s: %s does not have, in this order:\n%s", file, m[1], part)
					break
				}
				source = source[i+len(part):]
			}
		}
	}
	if len(goBlock.FindAllString(document(t, "README.md"), -1)) == 0 {
		t.Error("README.md has no block of Go code")
	}
}

// trimLines removes indentation and empty lines.
func trimLines(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

var (
	makeCommand = regexp.MustCompile(`(?m)(?:^    |\x60)make ([a-z-]+)`)
	goCommand   = regexp.MustCompile(`\bgo (?:run|build|test)[^\n#\x60]* \./([A-Za-z0-9_/-]+)`)
)

// TestCommandsInDocuments checks that the targets of make and the packages that commands name
// exist.
func TestCommandsInDocuments(t *testing.T) {
	makefile := document(t, "Makefile")
	for _, file := range documents(t) {
		text := document(t, file)
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", file, m[1])
			}
		}
		for _, m := range goCommand.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %s: there is no folder %s", file, m[0], m[1])
			}
		}
	}
	if readme := document(t, "README.md"); len(makeCommand.FindAllString(readme, -1)) < 2 || len(goCommand.FindAllString(readme, -1)) < 2 {
		t.Error("README.md has too few commands")
	}
}

// TestReadmeTable checks that each row of README.md's table by intent has a command and a link.
func TestReadmeTable(t *testing.T) {
	command := regexp.MustCompile("`(go run \\S+|govs-verbs-test [a-z]+) [^`]+`")
	rows := tableRows(section(t, document(t, "README.md"), "## Where to begin"))
	for _, row := range rows {
		if len(row) != 3 || len(command.FindAllString(row[1], -1)) != 1 ||
			len(link.FindAllString(strings.Join(row, " "), -1)) != 1 {
			t.Errorf("a row without one command and one link: %q", row)
		}
	}
	if len(rows) < 6 {
		t.Errorf("only %d rows", len(rows))
	}
}

// commentColumns limits the columns of a line of a comment in Go, with tabs of 4 columns.
const commentColumns = 100

// TestCommentColumns checks that Go comments are wrapped, apart from code in them, C prototypes and
// generated files.
func TestCommentColumns(t *testing.T) {
	lines := 0
	walkGo(t, func(path string) {
		text := document(t, path)
		if strings.Contains(text, "DO NOT EDIT.\n") {
			return
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			line = strings.TrimRight(line, "\n")
			comment, ok := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
			if !ok || strings.HasPrefix(comment, "Implements: ") {
				continue
			}
			lines++
			if columns := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); columns > commentColumns {
				t.Errorf("%s:%d: a comment of %d columns; wrap it at %d", path, n, columns, commentColumns)
			}
		}
	})
	if lines < 10000 {
		t.Errorf("only %d lines of comments were found", lines)
	}
}

// noteLabels begin the parts of a note in kernel-notes, in this order.
var noteLabels = []string{"Specification", "Source", "Seen on", "Shown by", "Workaround", "govs"}

var noteLabel = regexp.MustCompile(`\*\*([A-Za-z ]+)\.?\*\*`)

// TestKernelNotes checks that each note has its labels in one order, says where a fact was seen and
// what shows it, and is listed with its title in the README.
func TestKernelNotes(t *testing.T) {
	readme := document(t, "kernel-notes/README.md")
	for _, file := range documents(t) {
		if filepath.Dir(file) != "kernel-notes" || filepath.Base(file) == "README.md" {
			continue
		}
		text := document(t, file)
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		if n := strings.Count(readme, "["+title+"]("+filepath.Base(file)+")"); n != 1 {
			t.Errorf("%s: the README has its title, %q, with a link to it %d times, want 1", file, title, n)
		}
		var places []int
		for _, m := range noteLabel.FindAllStringSubmatch(text, -1) {
			places = append(places, slices.Index(noteLabels, m[1]))
		}
		if slices.Contains(places, -1) || !slices.IsSorted(places) {
			t.Errorf("%s: labels other than %q, or in another order", file, noteLabels)
		}
		for _, label := range []string{"Seen on", "Shown by"} {
			if !slices.Contains(places, slices.Index(noteLabels, label)) {
				t.Errorf("%s: no label %q", file, label)
			}
		}
	}
}

// upstream has reports for the maintainers of what kernel-notes describes.
const upstream = "kernel-notes/upstream"

var (
	severities   = []string{"critical", "high", "medium", "low"}
	reportLabels = []string{"Where", "Since", "What happens", "Evidence", "Effect", "Mend", "Test"}
	reportHead   = regexp.MustCompile(`\A.+\n\n\*(\w+)\..* Report (privately|to [^*]+)\.\*\n`)
	reportLabel  = regexp.MustCompile(`(?m)^\*\*([\w ]+)\.\*\*`)
	ourEdits     = regexp.MustCompile("Our edits?[^`]*: `[^.]*`")
	codeSpan     = regexp.MustCompile("`[^`]*`")
	recipe       = regexp.MustCompile("(?m)^    \\S|^```|\\b[0-9a-f]{2}( [0-9a-f]{2})+\\b")
)

// TestUpstreamReports checks that each note has a report or a reason for having none, that the
// README lists the reports by severity, that reports have their labels in one order, and that
// private ones show no bytes and no commands.
func TestUpstreamReports(t *testing.T) {
	readme := document(t, upstream+"/README.md")
	var edits string
	for _, file := range testkit.Must(filepath.Glob(filepath.Join(root, "ci/vm/mended/*")))(t) {
		edits += string(testkit.Must(os.ReadFile(file))(t))
	}
	last, rows := 0, 0
	for _, cells := range tableRows(readme) {
		name, isReport := strings.CutPrefix(cells[0], "[")
		if !isReport {
			continue
		}
		rows++
		name, link, _ := strings.Cut(name, "](")
		files := strings.Split(strings.TrimSuffix(link, ")"), "#")
		severity := slices.Index(severities, cells[1])
		if severity < last {
			t.Errorf("%s: severity %q is unknown, or follows a lower one", name, cells[1])
		}
		last = severity
		text := strings.TrimSpace(section(t, document(t, upstream+"/"+files[0]), "## "+name))
		head := reportHead.FindStringSubmatch(text)
		if head == nil || !strings.EqualFold(head[1], cells[1]) {
			t.Errorf("%s: no title and line like *Low. Whom. Report to the list.* with the severity %s", name, cells[1])
			continue
		}
		private := head[2] == "privately"
		if private != (cells[5] == "private") || private != (files[0] == "private.md") {
			t.Errorf("%s: the README, the report and its file differ on whether to report it privately", name)
		}
		if m := recipe.FindString(text); private && m != "" {
			t.Errorf("%s: a private report has no recipe, such as %q", name, m)
		}
		var labels []string
		for _, m := range reportLabel.FindAllStringSubmatch(text, -1) {
			labels = append(labels, m[1])
		}
		if !slices.Equal(labels, reportLabels) {
			t.Errorf("%s: labels %q, want %q", name, labels, reportLabels)
		}
		for _, m := range ourEdits.FindAllString(strings.Join(strings.Fields(text), " "), -1) {
			for _, edit := range codeSpan.FindAllString(m, -1) {
				if !strings.Contains(edits, "edit "+strings.Trim(edit, "`")+"\n") {
					t.Errorf("%s: ci/vm/mended has no edit %s", name, edit)
				}
			}
		}
		if n := strings.Count(text, "\n"); n > 45 {
			t.Errorf("%s: %d lines, 45 at most", name, n)
		}
	}
	for _, file := range documents(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name == "README" || filepath.Dir(file) != "kernel-notes" {
			continue
		}
		if !regexp.MustCompile(`[\[ ]` + name + `[], |]`).MatchString(readme) {
			t.Errorf("%s: the README of %s has no report of it, and no reason", file, upstream)
		}
	}
	if rows < 40 {
		t.Errorf("only %d reports were found", rows)
	}
}
