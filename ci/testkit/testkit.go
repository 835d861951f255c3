// Package testkit has what the tests of all packages need. Only tests import it.
package testkit

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

// Must returns v, or ends the test if err is not nil. It takes the results of a call directly:
//
//	pd := testkit.Must(dev.AllocPD())(t)
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Must2 returns both results, or ends the test if err is not nil.
func Must2[A, B any](a A, b B, err error) func(testing.TB) (A, B) {
	return func(t testing.TB) (A, B) {
		t.Helper()
		OK(t, err)
		return a, b
	}
}

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Unhex decodes hex digits, which may have spaces and line ends between them.
func Unhex(t testing.TB, s string) []byte {
	t.Helper()
	return Must(hex.DecodeString(strings.Join(strings.Fields(s), "")))(t)
}

// rounds is how often Once tries.
const rounds = 8

// Once calls try until it returns nil, at most eight times. It is for tests that bound what
// something costs: other processes raise the cost in some rounds, and a fault raises it in all.
func Once(t testing.TB, try func() error) {
	t.Helper()
	for n := 1; ; n++ {
		err := try()
		if err == nil {
			return
		}
		if n == rounds {
			t.Fatalf("in each of %d rounds, in the last: %v", n, err)
		}
		t.Logf("once more: %v", err)
	}
}

// Scaled calls try until it returns nil: first with the time from, and after each failure with four
// times as much, up to a minute. It is for tests of time limits. A busy machine stops an end for
// longer than a short limit, but not for longer than a long one. A fault fails with each limit.
func Scaled(t testing.TB, from time.Duration, try func(unit time.Duration) error) {
	t.Helper()
	for unit := from; ; unit *= 4 {
		err := try(unit)
		if err == nil {
			return
		}
		if unit > 15*time.Second {
			t.Fatalf("with %v: %v", unit, err)
		}
		t.Logf("once more, as it failed with %v: %v", unit, err)
	}
}
