package recording

import (
	"fmt"
	"slices"
	"strings"
)

// A Difference is a difference between two recordings of a program.
type Difference struct {
	Command string // Step.Name
	Field   string // a name in Step.Fields, or step if the other recording has no such step
	A, B    string // the values; for step its number, and - where it is missing

	Where string // a description for readers
}

func (d *Difference) String() string {
	return fmt.Sprintf("%s %s %s %s", d.Command, d.Field, d.A, d.B)
}

// none is the value of a missing field.
const none = "-"

// Compare returns the differences between the steps of two recordings, in order. It aligns steps by
// name, as far as possible, and compares the aligned ones.
func Compare(a, b []Step) []Difference {
	var differences []Difference
	most := 0
	for _, s := range append(slices.Clone(a), b...) {
		most = max(most, s.Thread)
	}
	for thread := 1; thread <= most; thread++ {
		of := func(steps []Step) []Step {
			return slices.DeleteFunc(slices.Clone(steps), func(s Step) bool {
				return s.Thread != thread
			})
		}
		differences = append(differences, compareThread(of(a), of(b))...)
	}
	return differences
}

// compareThread compares the steps of a thread after aligning them by the longest common sequence
// of names.
func compareThread(a, b []Step) (differences []Difference) {
	common := make([][]int, len(a)+1) // lengths from a[i] and b[j] on
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i].Name == b[j].Name {
				common[i][j] = max(common[i][j], common[i+1][j+1]+1)
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i].Name == b[j].Name &&
			common[i][j] == common[i+1][j+1]+1:
			differences = append(differences, compareSteps(i+1, &a[i], &b[j])...)
			i++
			j++
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			differences = append(differences, Difference{a[i].Name, "step", "there", none,
				fmt.Sprintf("step %d: %s", i+1, &a[i])})
			i++
		default:
			differences = append(differences, Difference{b[j].Name, "step", none, "there",
				fmt.Sprintf("before step %d: %s", i+1, &b[j])})
			j++
		}
	}
	return differences
}

// compareSteps compares the fields of two steps with the same name. If their errnos differ, only
// one of them can have an answer.
func compareSteps(n int, a, b *Step) (differences []Difference) {
	other := a.field("errno") != b.field("errno")
	add := func(field, x, y string) {
		if other && strings.HasPrefix(field, "answer") {
			return
		}
		differences = append(differences, Difference{a.Name, field, x, y,
			fmt.Sprintf("thread %d, step %d: %s", a.Thread, n, a)})
	}
	// The fields of both are in the order of the layout, but some may be missing.
	rest := slices.Clone(b.Fields)
	for _, f := range a.Fields {
		at := slices.IndexFunc(rest, func(g Field) bool { return g.Name == f.Name })
		if at < 0 {
			add(f.Name, f.Value, none)
			continue
		}
		if rest[at].Value != f.Value {
			add(f.Name, f.Value, rest[at].Value)
		}
		rest = slices.Delete(rest, at, at+1)
	}
	for _, f := range rest {
		add(f.Name, none, f.Value)
	}
	return differences
}

// field returns the value of a field, or "" if there is none.
func (s *Step) field(name string) string {
	for _, f := range s.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// A Known is a known difference with its reason.
type Known struct {
	Recording  string // the name of the recording, * for any
	Difference        // A, B or both may be *, for any value
	Reason     string
}

// ReadKnown reads known differences. Each line has recording, command, field, A and B, separated by
// spaces, and then the reason. Empty lines and lines that begin with # are ignored.
func ReadKnown(text string) (known []Known, err error) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 6 {
			return nil, fmt.Errorf("known differences: line %d: it has no reason: %q", i+1, line)
		}
		known = append(known, Known{words[0],
			Difference{Command: words[1], Field: words[2], A: words[3], B: words[4],
				Where: fmt.Sprintf("line %d", i+1)},
			strings.Join(words[5:], " ")})
	}
	return known, nil
}

// Match reports whether k describes a difference of a recording.
func (k *Known) Match(recording string, d *Difference) bool {
	fits := func(pattern, s string) bool { return pattern == "*" || pattern == s }
	return fits(k.Recording, recording) && k.Command == d.Command && k.Field == d.Field &&
		fits(k.A, d.A) && fits(k.B, d.B)
}
