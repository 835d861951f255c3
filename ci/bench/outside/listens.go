package outside

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// listens reports whether a TCP socket of this network namespace listens at the port, at any
// address. The kernel's own sockets, such as siw's, count.
func listens(port int) (bool, error) {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		found, err := listensIn(file, port)
		if found {
			return true, nil
		}
		if err != nil && !os.IsNotExist(err) { // without IPv6 there is no tcp6
			return false, err
		}
	}
	return false, nil
}

// listensIn searches one of the kernel's tables: the fields of each row are a number, the local and
// the remote address, and the state.
func listensIn(file string, port int) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const stateListen = "0A"
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		_, text, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(text, 16, 16); err == nil && int(n) == port {
			return true, nil
		}
	}
	return false, lines.Err()
}
