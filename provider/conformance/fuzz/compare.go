package fuzz

import (
	"slices"
	"strings"
)

// A Difference is a key whose texts differ between two outcomes. Several values of one key are
// joined; "-" stands for none.
type Difference struct{ Key, A, B string }

// Compare returns the differences between two outcomes. Which Reads were answered before a
// connection failed is none, because responses wait for their turn.
func Compare(a, b Outcome) (out []Difference) {
	var keys []string
	for _, v := range slices.Concat(a, b) {
		if !slices.Contains(keys, v.Key) {
			keys = append(keys, v.Key)
		}
	}
	for _, key := range keys {
		x, y := a.text(key), b.text(key)
		if x != y && !(key == "answer" && !(a.Taken() && b.Taken()) && (begins(x, y) || begins(y, x))) {
			out = append(out, Difference{key, x, y})
		}
	}
	return out
}

func (o Outcome) text(key string) string {
	var all []string
	for _, v := range o {
		if v.Key == key {
			all = append(all, v.Text)
		}
	}
	if all == nil {
		return "-"
	}
	return strings.Join(all, "; ")
}

// Taken reports whether the barrier was answered, so every frame was taken.
func (o Outcome) Taken() bool { return strings.HasPrefix(o.text("end"), "barrier") }

// Unanswered reports whether a provider neither answered the barrier nor ended the connection,
// though all FPDUs came whole. Two providers that are silent don't differ, but both are wrong.
func (s *Sequence) Unanswered(o Outcome) bool {
	return s.Barrier && o.text("end") == "silence" && !s.read().cut
}

// begins reports whether the answers in long begin with those in short.
func begins(long, short string) bool {
	short, _, _ = strings.Cut(short, "unfinished response")
	return short == "-" || strings.HasPrefix(long, strings.TrimSuffix(short, "; "))
}
