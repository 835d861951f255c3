package rawpeer

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// stateListen is what /proc/net/tcp has for sockets that listen.
const stateListen = "0A"

// WaitAccepted waits until the program that listens on the peer's remote port has accepted
// all connections that were made to it. It returns an error if that does not happen within
// the given time. The listener has to be on the same machine, and in the same network
// namespace.
//
// Scripts call it because a connection that ends before it was accepted looks different to
// a program from one that ends afterwards, and nothing on the wire shows which case it is.
func (p *Peer) WaitAccepted(wait time.Duration) error {
	port := p.record.Remote.Port()
	until := time.Now().Add(wait)
	for {
		waiting, err := acceptQueue(port)
		if err != nil || waiting == 0 {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("port %d: %d connections have not been accepted after %v", port, waiting, wait)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// acceptQueue returns how many connections to the sockets that listen on a port
// wait to be accepted.
func acceptQueue(port uint16) (int, error) {
	total := 0
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue // without IPv6 there is one only
		}
		if err != nil {
			return 0, err
		}
		n, err := readAcceptQueue(f, port)
		_ = f.Close()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		total += n
	}
	return total, nil
}

// readAcceptQueue reads /proc/net/tcp. The receive queue of a listening socket is its
// queue of connections.
func readAcceptQueue(r io.Reader, port uint16) (int, error) {
	total := 0
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// number: local remote state transmit-queue:receive-queue ...
		fields := strings.Fields(lines.Text())
		if len(fields) >= 4 && fields[3] != stateListen && fields[3] != "st" {
			break // sockets that listen come first, and others may be thousands
		}
		if len(fields) < 5 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		_, queue, _ := strings.Cut(fields[4], ":")
		n, err := strconv.ParseUint(queue, 16, 31)
		if err != nil {
			return 0, fmt.Errorf("the line %q: %w", lines.Text(), err)
		}
		total += int(n)
	}
	return total, lines.Err()
}
