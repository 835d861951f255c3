package testkit

import (
	"os"
	"testing"
)

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
