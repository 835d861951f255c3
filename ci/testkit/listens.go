package testkit

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Listens reports whether a socket, siw's own included, listens on a port. It does not connect,
// because the server might take that for its one client.
func Listens(t testing.TB, port uint16) bool {
	t.Helper()
	return listensIn(t, "/proc/net/tcp", port) || listensIn(t, "/proc/net/tcp6", port)
}

// listensIn looks through a table of the kernel. It reads the sockets that listen, which come
// first: the kernel writes the rest, often thousands of closed connections, only if it is read.
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
