package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits of a sentence and of a document, in words.
const (
	longest = 35
	average = 18.0
)

// avoided are phrases that an English reader has to read twice, with what to write instead.
var avoided = []struct {
	form    *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bin place of\b`), "instead of"},
	{regexp.MustCompile(`(?i)\bfor ever\b`), "forever"},
	{regexp.MustCompile(`(?i)\balso if\b`), "even if"},
	{regexp.MustCompile(`(?i)\bnow and then\b`), "occasionally"},
	{regexp.MustCompile(`(?i)\b(has|have|had|having) (the|an?|it|them|each|its|their|[a-z]+'s) (\S+ )?` +
		`(ask|be|begin|close|connect|copy|do|end|listen|open|post|read|run|send|stop|take|use|wait|write)\b`),
		"makes X do, or lets X do"},
}

// TestWordsInDocuments checks all documents for avoided phrases and for long sentences.
func TestWordsInDocuments(t *testing.T) {
	for _, file := range append(documents(t), "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md",
		"docs/benchmarks/README.md", "docs/benchmarks/guest.md",
		"docs/benchmarks/host.md", "docs/benchmarks/limits.md",
		"docs/benchmarks/victim.md", "ci/vm/README.md", "ibverbs/examples/README.md") {
		for _, m := range mistakes(document(t, file)) {
			t.Errorf("%s: %s", file, m)
		}
	}
}

// TestWordsInComments checks comments in Go for avoided phrases, and for functions that are defined
// as another function of their folder for something.
func TestWordsInComments(t *testing.T) {
	texts, functions := map[string]string{}, map[[2]string]bool{}
	walkGo(t, func(path string) {
		texts[path] = document(t, path)
		for _, m := range funcName.FindAllStringSubmatch(texts[path], -1) {
			functions[[2]string{filepath.Dir(path), m[1]}] = true
		}
	})
	blocks := 0
	for path, text := range texts {
		for _, m := range definition.FindAllStringSubmatch(text, -1) {
			if m[1] == m[3] && m[2] != "called" && functions[[2]string{filepath.Dir(path), m[2]}] {
				t.Errorf("%s: \"%s is %s\": say what it does", path, m[1], m[2])
			}
		}
		for _, block := range commentBlock.FindAllString(text, -1) {
			blocks++
			plain := strings.Join(strings.Fields(strings.ReplaceAll(block, "//", "")), " ")
			if m := avoidedInComments.FindString(plain); m != "" {
				t.Errorf("%s: %q is avoided", path, m)
			}
		}
	}
	if blocks < 5000 {
		t.Errorf("only %d comments were found", blocks)
	}
}

var (
	funcName     = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)`)
	commentBlock = regexp.MustCompile(`(?m)(?:^[\t ]*// [^\n]*\n)+`)
	definition   = regexp.MustCompile(`(?m)^// (\w+) is (?:\w+\.)?(\w+) (?:as|for|of|that|with|without) [^\n]*\n` +
		`(?://[^\n]*\n)*func (?:\([^)]*\) )?(\w+)`)

	// Verbs of avoided that are often nouns are left out, as in "has a copy".
	avoidedInComments = regexp.MustCompile(`(?i)\b(in place of|for ever|also if|now and then|` +
		`(has|have|had|having) (the|an?|it|them|each|its|their|[a-z]+'s) (\S+ )?` +
		`(ask|be|begin|close|connect|do|listen|stop|take|wait))\b`)
)

// TestMistakes: mistakes finds each kind of mistake, and nothing that only looks like one.
func TestMistakes(t *testing.T) {
	long := strings.Repeat("word ", longest) + "more."
	for text, want := range map[string]string{
		"The engine asks. It waits.":                   "",
		"It uses a copy in place of the region.":       "instead of",
		"It waits for ever.":                           "forever",
		"It has the engine ask for CRC.":               "makes X do",
		"The program has its peer wait.":               "makes X do",
		"It has a CRC, and the peer has one.":          "",
		"The errors and that of X, and those of Y.":    "that of",
		"The errors and that of X.\n\nAnd those of Y.": "",
		long:        "36 words",
		"- " + long: "36 words",
		"| " + strings.Repeat("word ", 25) + " | x |": "",
		"| " + strings.Repeat("word ", 26) + " | x |": "26 words in a cell",
		"    " + long:           "",
		"```\nin place of\n```": "",
		"Named `in place of`.":  "",
		strings.Repeat("word ", 19) + "at an average. Y.": "",
		strings.Repeat("word ", 19) + "too long.":         "on average",
	} {
		got := strings.Join(mistakes(text), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

var (
	code     = regexp.MustCompile("`[^`]*`")
	target   = regexp.MustCompile(`\]\([^)]*\)`)
	comment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	item     = regexp.MustCompile(`^\s*([-*]|[0-9]+\.) `)
	sentence = regexp.MustCompile(`[.!?:;]['")*]*\s+`)
	thatOf   = regexp.MustCompile(`(?i)\b(that|those) of\b`)
)

// mistakes returns what is wrong with the words of a Markdown text, outside its code.
func mistakes(text string) (found []string) {
	text = comment.ReplaceAllString(withoutCode(text), "")
	words, sentences := 0, 0
	for _, paragraph := range paragraphs(text) {
		plain := target.ReplaceAllString(code.ReplaceAllString(paragraph, "code"), "]")
		for _, a := range avoided {
			if m := a.form.FindString(plain); m != "" {
				found = append(found, fmt.Sprintf("%q: write %s", m, a.instead))
			}
		}
		if m := thatOf.FindAllString(plain, -1); len(m) > 1 {
			found = append(found, fmt.Sprintf("%q in a paragraph: name the things again: %.60s", m, plain))
		}
		if strings.HasPrefix(plain, "|") {
			for _, cell := range strings.Split(plain, "|") {
				if n := len(strings.Fields(cell)); n > 25 {
					found = append(found, fmt.Sprintf("%d words in a cell, 25 at most: %.60s", n, strings.TrimSpace(cell)))
				}
			}
			continue
		}
		for _, s := range sentence.Split(plain, -1) {
			n := len(strings.Fields(s))
			if n > longest {
				found = append(found, fmt.Sprintf("a sentence of %d words: %.60s", n, strings.TrimSpace(s)))
			}
			if n > 0 {
				words, sentences = words+n, sentences+1
			}
		}
	}
	if sentences > 0 && float64(words)/float64(sentences) > average {
		found = append(found, fmt.Sprintf("%.1f words a sentence on average", float64(words)/float64(sentences)))
	}
	return found
}

// paragraphs returns the paragraphs, items and table rows of a text without fenced code, each in
// one line. It leaves out headings and indented code.
func paragraphs(text string) (all []string) {
	open := false
	for _, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		row := strings.HasPrefix(trimmed, "|")
		switch begins := item.MatchString(line) || row; {
		case trimmed == "", strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "!["):
			open = false
		case !open && !begins && strings.HasPrefix(line, "    "):
		case begins, !open:
			all = append(all, item.ReplaceAllString(trimmed, ""))
			open = !row
		default:
			all[len(all)-1] += " " + trimmed
		}
	}
	return all
}
