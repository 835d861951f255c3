package profile_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestDocument shows that the example of docs/profiles.md is a profile with every key, and that the
// document's tables have them all.
func TestDocument(t *testing.T) {
	data := testkit.Must(os.ReadFile("../../../docs/profiles.md"))(t)
	_, rest, _ := strings.Cut(string(data), "```toml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/profiles.md has no example")
	}
	p := testkit.Must(parse(text))(t)
	for i := range reflect.TypeOf(*p).NumField() {
		if f := reflect.ValueOf(*p).Field(i); f.IsZero() {
			t.Errorf("the example has no %s", reflect.TypeOf(*p).Field(i).Name)
		}
	}
	for _, key := range regexp.MustCompile(`(?m)^([a-z-]+) = `).FindAllStringSubmatch(whole, -1) {
		if key[1] != "shows" && !strings.Contains(string(data), "| `"+key[1]+"` |") {
			t.Errorf("docs/profiles.md has no row for %q", key[1])
		}
	}
}
