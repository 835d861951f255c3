package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
