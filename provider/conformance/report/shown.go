package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// shown replaces the control characters that a terminal acts on, because a report, and the log that
// shows it, have texts of stacks and of other hosts.
type shown struct{ w io.Writer }

// Write implements io.Writer. Each call has to have whole characters.
func (p shown) Write(b []byte) (int, error) {
	text := string(b)
	if strings.ContainsFunc(text, acted) {
		var out strings.Builder
		for _, r := range text {
			if acted(r) {
				fmt.Fprintf(&out, `\x%02x`, r)
			} else {
				out.WriteRune(r)
			}
		}
		text = out.String()
	}
	if _, err := io.WriteString(p.w, text); err != nil {
		return 0, err
	}
	return len(b), nil
}

// acted reports whether a terminal acts on a character that no line of a report needs.
func acted(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
