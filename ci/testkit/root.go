package testkit

import (
	"os"
	"testing"
)

// NeedRoot skips a test that only root can run, for the reason why. Where all tests are required
// (REQUIRE_SIW=1) it fails instead, so that no coverage is missing unnoticed.
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
