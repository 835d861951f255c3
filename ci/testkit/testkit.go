// Package testkit has what the tests of all packages need. Only tests import it.
package testkit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// Equal checks that got is want. what says what they are.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got == want {
		return
	}
	verb := "%+v"
	if _, text := any(got).(string); text {
		verb = "%q"
	}
	t.Errorf("%s: got "+verb+", want "+verb, what, got, want)
}

// Within checks that got is from least to most.
func Within[T cmp.Ordered](t testing.TB, what string, got, least, most T) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want from %v to %v", what, got, least, most)
	}
}

// EqualBytes checks that got is want, and says where they begin to differ.
func EqualBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	part := func(b []byte) []byte { return b[at:min(at+16, len(b))] }
	t.Errorf("%s: got %d bytes, want %d; from byte %d on got % x, want % x", what, len(got), len(want), at,
		part(got), part(want))
}

// WantErr checks that err is target and names all of words.
func WantErr(t testing.TB, what string, err, target error, words ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got error %v, want one that is %v", what, err, target)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %q does not say %q", what, err, w)
		}
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

// Listens reports whether a socket listens on a port, siw's sockets included. It does not connect,
// because the server might take the connection for its one client.
func Listens(t testing.TB, port uint16) bool {
	t.Helper()
	return listensIn(t, "/proc/net/tcp", port) || listensIn(t, "/proc/net/tcp6", port)
}

// listensIn searches a table of the kernel. It reads only the listening sockets, which come first:
// the kernel writes the rest, often thousands of closed connections, only when somebody reads it.
func listensIn(t testing.TB, table string, port uint16) bool {
	t.Helper()
	const listen = "0A"
	f, err := os.Open(table)
	if errors.Is(err, os.ErrNotExist) && table == "/proc/net/tcp6" {
		return false
	}
	OK(t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
	for lines.Scan() {
		cells := strings.Fields(lines.Text())
		if len(cells) < 4 || cells[3] != listen {
			return false
		}
		if strings.HasSuffix(cells[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	OK(t, lines.Err())
	return false
}

// Marked returns the ids of the processes that started with variable, NAME=VALUE, in their
// environment. This process is not among them if it has set the variable itself.
func Marked(t testing.TB, variable string) (pids []string) {
	t.Helper()
	for _, file := range Must(filepath.Glob("/proc/[0-9]*/environ"))(t) {
		text, _ := os.ReadFile(file) // it may be gone
		if bytes.Contains(text, []byte(variable)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// NoneMarked fails the test if there are still such processes after a minute.
func NoneMarked(t testing.TB, variable string) {
	t.Helper()
	left := Marked(t, variable)
	for end := time.Now().Add(time.Minute); left != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		left = Marked(t, variable)
	}
	if left != nil {
		t.Errorf("processes %v are left", left)
	}
}

// NeedRoot skips a test that only root can run, and says why. If all tests are required
// (REQUIRE_SIW=1), the test fails instead, so that missing coverage is noticed.
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	switch {
	case os.Getuid() == 0:
	case os.Getenv("REQUIRE_SIW") == "1":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}
