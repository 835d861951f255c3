package remote

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// printable replaces control characters in the agent's JSON, or in its plain text, because programs
// print what is in it, and terminals would act on them. Line feeds and tabs stay. JSON has most
// control characters as an escape.
func printable(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := nextRune(text)
		if r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' {
			out = utf8.AppendRune(out, unicode.ReplacementChar)
		} else {
			out = append(out, text[:n]...)
		}
		text = text[n:]
	}
	return out
}

// nextRune returns the first character of a text, which JSON may have escaped, and its length in
// the text, in bytes.
func nextRune(text []byte) (rune, int) {
	if text[0] != '\\' || len(text) < 2 {
		return utf8.DecodeRune(text)
	}
	switch text[1] {
	case 'b', 'f', 'r':
		return '\r', 2
	case 'u':
		if len(text) >= 6 {
			if r, err := strconv.ParseUint(string(text[2:6]), 16, 16); err == nil {
				return rune(r), 6
			}
		}
	}
	return rune(text[1]), 2
}
