package remote

import (
	"encoding/json"
	"testing"
)

// TestPrintableJSON: control characters in JSON are replaced however it has them, and other text
// stays the same.
func TestPrintableJSON(t *testing.T) {
	for text, want := range map[string]string{
		`"a\u001bb"`: "a\ufffdb", `"a\u009Bb"`: "a\ufffdb", `"\u0000\u007f"`: "\ufffd\ufffd",
		"\"a\u009bb\u007f\"": "a\ufffdb\ufffd", "\"\xff\x9b\"": "\ufffd\ufffd", `"\b\f\r"`: "\ufffd\ufffd\ufffd",
		`"line\nline\ttab"`: "line\nline\ttab", `"\\u001b \\\u0062 \""`: `\u001b \b "`,
		`"\ud83d\ude00 é"`: "😀 é",
	} {
		var got string
		if err := json.Unmarshal(printable([]byte(text)), &got); err != nil || got != want {
			t.Errorf("%s is %q, want %q: %v", text, got, want, err)
		}
	}
	for _, plain := range []string{"", `\`, `\u12`, "all of it, a to z\n", `\u00zz`} {
		if got := string(printable([]byte(plain))); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}
	if got := string(printable([]byte("busy\x1b[2J\x9b"))); got != "busy\ufffd[2J\ufffd" {
		t.Errorf("%q", got)
	}
}
