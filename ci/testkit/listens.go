package testkit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// Listens reports whether a socket, siw's own included, listens on a port. It does not connect,
// because the server might take that for its one client.
func Listens(t testing.TB, port uint16) bool {
	t.Helper()
	const listen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil && !(file == "/proc/net/tcp6" && errors.Is(err, fs.ErrNotExist)) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			if cells := strings.Fields(line); len(cells) > 3 &&
				strings.HasSuffix(cells[1], suffix) && cells[3] == listen {
				return true
			}
		}
	}
	return false
}
