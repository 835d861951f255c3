package siwhang

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// tables makes a folder like /proc, whose process 7 has the socket 100.
func tables(t *testing.T, lines ...string) string {
	t.Helper()
	proc := t.TempDir()
	for _, dir := range []string{"net", "7/fd"} {
		if err := os.MkdirAll(filepath.Join(proc, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("socket:[100]", filepath.Join(proc, "7/fd/3")); err != nil {
		t.Fatal(err)
	}
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	if err := os.WriteFile(filepath.Join(proc, "net/tcp"), []byte(head+strings.Join(lines, "\n")), 0o666); err != nil {
		t.Fatal(err)
	}
	return proc
}

// socket is a line of /proc/net/tcp, of a socket on port 0x1234.
func socket(state, received string, inode int) string {
	return fmt.Sprintf("   0: 010200C0:1234 010200C0:9C40 %s 00000000:%s 00:00000000 00000000     0        0 %d 1 x",
		state, received, inode)
}

// TestUnread: only bytes in a connected socket of the kernel count as siw's.
func TestUnread(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lines []string
		want  bool
	}{
		{"nothing", nil, false},
		{"siw's, with bytes", []string{socket("01", "0000001C", 99)}, true},
		{"siw's, whose peer has closed", []string{socket("08", "0000001C", 99)}, true},
		{"siw's, read", []string{socket("01", "00000000", 99)}, false},
		{"a listener's", []string{socket("0A", "00000001", 99)}, false},
		{"siw's, which has closed its side", []string{socket("04", "0000001C", 99)}, false},
		{"siw's, which has seen the peer close it, too", []string{socket("05", "0000001C", 99)}, false},
		{"of nobody yet, in a listener's backlog", []string{socket("01", "0000001C", 0)}, false},
		{"a process's", []string{socket("01", "0000001C", 100)}, false},
		{"both", []string{socket("01", "0000001C", 100), socket("01", "0000001C", 99)}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proc := tables(t, tc.lines...)
			for _, port := range []uint16{0x1234, 0} {
				if got, err := unread(proc, port); len(got) > 0 != tc.want || err != nil {
					t.Errorf("port %d: %q, %v", port, got, err)
				}
			}
			if got, err := unread(proc, 0x9C40); len(got) > 0 || err != nil {
				t.Errorf("at the other end's port: %q, %v", got, err)
			}
		})
	}
	if _, err := unread(t.TempDir(), 1); err == nil {
		t.Error("without a table there is no error")
	}
}

// TestOrdinaryFailure: bytes that a process does not read are not a hang of siw, and are not
// counted.
func TestOrdinaryFailure(t *testing.T) {
	t.Setenv(dirVar, t.TempDir())
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	end, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if _, err := peer.Write([]byte("octets")); err != nil {
		t.Fatal(err)
	}
	if Unread(t, uint16(l.Addr().(*net.TCPAddr).Port)) {
		t.Error("what this process has not read is taken for siw's")
	}
	closed := make(chan struct{})
	close(closed)
	if Hung(t, 1, closed) {
		t.Error("what has ended is taken for a hang")
	}
	if all, err := os.ReadDir(os.Getenv(dirVar)); len(all) > 0 || err != nil {
		t.Errorf("counted: %v, %v", all, err)
	}
}

// TestThirdHang: the third hang of a run ends its test, whether the run has a directory or is this
// process.
func TestThirdHang(t *testing.T) {
	for name, dir := range map[string]string{"of ci/guest": t.TempDir(), "of a process": ""} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(dirVar, dir)
			alone.Store(0)
			defer alone.Store(0)
			var r recorder
			for i := range 3 {
				r = recorder{TB: t}
				done := make(chan struct{})
				go func() {
					defer close(done)
					count(&r, "a socket")
				}()
				<-done
				if ended := r.fatal != ""; ended != (i == Most) {
					t.Errorf("hang %d: %q", i+1, r.fatal+r.log)
				}
				if text := r.fatal + r.log; !strings.Contains(text, note) ||
					!strings.Contains(text, fmt.Sprintf("hang %d of this run", i+1)) {
					t.Errorf("hang %d: %q", i+1, text)
				}
			}
		})
	}
}

// recorder is a test that records what is logged to it.
type recorder struct {
	testing.TB
	log, fatal string
}

func (r *recorder) Logf(format string, args ...any) { r.log = fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
