// Package siwhang lets tests go on after siw has let a connection hang. Only tests import it.
//
// siw may leave the first bytes of a connection that it accepts in their socket until more come
// (kernel-notes/siw-first-fpdu.md). If the peer sends its first message as soon as it is connected,
// and then waits for an answer, it gets none, because the program at siw's end gets no message. A
// test of such a pair asks Hung or Unread. If the pair hangs, the test ends both and tries again:
//
//	for {
//		server, client := start(port) // over siw, and over whatever is tested
//		if !siwhang.Hung(t, port, client.done) {
//			break // to check how both ended
//		}
//		server.kill()
//		client.kill()
//	}
//
// A connection only counts as hung if the bytes are in a socket that no process has. So this hides
// no failure of the peer or of a program. Each hang is logged, and the third of a run fails its
// test.
package siwhang

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Limit is how long Hung waits. A connection and its first messages take less than a second in the
// emulated guest, and a few seconds beside other busy processes.
const Limit = 20 * time.Second

// Most is how many hangs a run may have. A run is everything that ci/guest runs in one guest, or a
// process without ci/guest.
const Most = 2

// dirVar names the environment variable in which ci/guest passes a directory, with a file for each
// hang of its run.
const dirVar = "GOVS_SIW_HANGS"

const note = "kernel-notes/siw-first-fpdu.md"

// Hung waits until done is closed, which means that the connection has started, and then returns
// false. If done is still open after Limit, Hung returns what Unread returns.
func Hung(t testing.TB, port uint16, done <-chan struct{}) bool {
	t.Helper()
	select {
	case <-done:
		return false
	case <-time.After(Limit):
		return Unread(t, port)
	}
}

// Unread reports whether siw has unread bytes in a connection that it accepted at the port. Port 0,
// for programs that choose a port themselves, means any port. The caller has waited for about
// Limit. Unread looks for a second, because bytes may be in a busy socket for a moment. It counts
// the hang, and ends the test if it is the run's third.
func Unread(t testing.TB, port uint16) bool {
	t.Helper()
	lie := stuck(t, port)
	for range 4 {
		if len(lie) == 0 {
			return false
		}
		time.Sleep(250 * time.Millisecond)
		still := stuck(t, port)
		lie = slices.DeleteFunc(lie, func(s string) bool { return !slices.Contains(still, s) })
	}
	if len(lie) > 0 {
		count(t, lie[0])
	}
	return len(lie) > 0
}

func stuck(t testing.TB, port uint16) []string {
	t.Helper()
	sockets, err := unread("/proc", port)
	if err != nil {
		t.Fatalf("looking for what siw has not read: %v", err)
	}
	return sockets
}

// alone counts the hangs of this process if there is no directory.
var alone atomic.Int64

// count counts a hang, with the socket that shows it.
func count(t testing.TB, socket string) {
	t.Helper()
	hangs := 0
	if dir := os.Getenv(dirVar); dir == "" {
		hangs = int(alone.Add(1))
	} else {
		var err error
		if hangs, err = countIn(dir, t.Name()); err != nil {
			t.Fatalf("counting what siw has let hang: %v", err)
		}
	}
	what := fmt.Sprintf("siw did not complete a connection (%s, %s)", note, socket)
	if hangs > Most {
		t.Fatalf("%s: hang %d of this run, which may have %d", what, hangs, Most)
	}
	t.Logf("%s: hang %d of this run, trying again", what, hangs)
}

// countIn adds a file with the name of a test to a directory, and returns how many there are.
func countIn(dir, test string) (int, error) {
	f, err := os.CreateTemp(dir, "hang-")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Fprintln(f, test)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	all, err := os.ReadDir(dir)
	return len(all), err
}

// unread returns the connected sockets with a local port, or with any port if port is 0, that have
// unread bytes, have not closed their side and belong to no process, so that they are siw's. Each
// is described by its addresses and its number of bytes.
func unread(proc string, port uint16) (sockets []string, err error) {
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		table, err := os.ReadFile(filepath.Join(proc, file))
		if errors.Is(err, fs.ErrNotExist) && file == "net/tcp6" {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode
			cells := strings.Fields(line)
			if len(cells) < 10 || cells[3] != established && cells[3] != closeWait || cells[9] == "0" ||
				port != 0 && !strings.HasSuffix(cells[1], suffix) {
				continue
			}
			_, octets, _ := strings.Cut(cells[4], ":")
			if strings.Trim(octets, "0") == "" {
				continue
			}
			owned, err := ofProcess(proc, cells[9])
			if err != nil {
				return nil, err
			}
			if !owned {
				sockets = append(sockets, fmt.Sprintf("%s has 0x%s bytes from %s", cells[1], octets, cells[2]))
			}
		}
	}
	return sockets, nil
}

// States of sockets in /proc/net/tcp. In all other states siw has ended the connection itself, as
// after a fault of its peer, and reads nothing more. A connection without an inode has not been
// accepted yet, not even by siw.
const (
	established = "01"
	closeWait   = "08" // the peer has closed its side
)

// ofProcess reports whether a process has the socket with an inode. It sees the processes of all
// users if it runs as root, as it does in the guest.
func ofProcess(proc, inode string) (bool, error) {
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && to == "socket:["+inode+"]" {
			return true, nil // a process that can't be read has ended
		}
	}
	return false, err
}
