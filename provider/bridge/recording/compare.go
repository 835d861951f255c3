package recording

import (
	"fmt"
	"slices"
	"strings"
)

// A Difference is between two recordings of a program.
type Difference struct {
	Command string // Step.Name
	Field   string // Step.Fields' name, or step for one that the other recording has not
	A, B    string // its values; with step the number of it, and - where it is not

	Where string // in words, for readers
}

func (d *Difference) String() string {
	return fmt.Sprintf("%s %s %s %s", d.Command, d.Field, d.A, d.B)
}

// none is the value of what a step has not.
const none = "-"

// Compare returns the differences between the steps of two recordings, in order. Steps of the same
// name that stand at the same place in both, as far as possible, are compared.
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

// compareThread compares the steps of a thread, by their longest common sequence of names.
func compareThread(a, b []Step) (differences []Difference) {
	common := make([][]int, len(a)+1) // of what follows a[i] and b[j], both included
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

// compareSteps compares the fields of two steps of the same name. Where their errnos differ, only
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

// field returns the value of a field, "" if there is none.
func (s *Step) field(name string) string {
	for _, f := range s.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// A Known is a difference that is known, with the reason for it.
type Known struct {
	Recording  string // the name of the recording, * for any
	Difference        // A, B or both may be *, for any value
	Reason     string
}

// ReadKnown reads known differences: each is a line of recording, command, field, A and B, with
// spaces between, and the reason after them. Empty lines, and those that begin with #, are left
// out.
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

// Match reports whether a difference of a recording is that which is known.
func (k *Known) Match(recording string, d *Difference) bool {
	fits := func(pattern, s string) bool { return pattern == "*" || pattern == s }
	return fits(k.Recording, recording) && k.Command == d.Command && k.Field == d.Field &&
		fits(k.A, d.A) && fits(k.B, d.B)
}
