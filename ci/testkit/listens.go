package testkit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

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
