package remote

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestSlowNetwork: a message that takes longer than the patience arrives as long as its bytes keep
// arriving. A peer that stops in the middle of a message counts as gone.
func TestSlowNetwork(t *testing.T) {
	const octets, piece = 1 << 20, 1 << 14
	for what, c := range map[string]struct {
		carried int // bytes that the network carries
		want    error
	}{"slow": {2 * octets, nil}, "stops": {octets / 2, os.ErrDeadlineExceeded}} {
		synctest.Test(t, func(t *testing.T) {
			near, from := net.Pipe()
			to, far := net.Pipe()
			defer func() {
				for _, end := range []net.Conn{near, from, to, far} {
					_ = end.Close()
				}
			}()
			go func() {
				b := make([]byte, piece)
				for carried := 0; carried < c.carried; {
					n, err := from.Read(b)
					if err != nil {
						return
					}
					time.Sleep(Patience / 10)
					if _, err := to.Write(b[:n]); err != nil {
						return
					}
					carried += n
				}
			}()
			sent := make(chan error, 1)
			key := make([]byte, 32)
			go func() {
				sent <- newConn(near, key, key, 0).write(&message{kind: kindBeat, body: make([]byte, octets)})
			}()
			m, err := newConn(far, key, key, 0).read()
			if !errors.Is(err, c.want) || err == nil && len(m.body) != octets {
				t.Errorf("%s: %d bytes, %v", what, len(m.body), err)
			}
			if err := <-sent; !errors.Is(err, c.want) {
				t.Errorf("%s: sending: %v", what, err)
			}
		})
	}
}

// TestWrongLength: a message whose header announces more bytes than follow counts as a silent peer,
// although beats arrive in their place.
func TestWrongLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			h := (&message{kind: kindRequest, body: make([]byte, maxBody)}).header()
			_, err := far.Write(h[:])
			for n := 0; n < 100 && err == nil; n++ {
				_, err = far.Write(make([]byte, frameHeader+macLen))
				time.Sleep(Patience / 4)
			}
		}()
		since := time.Now()
		_, err := newConn(near, nil, nil, Patience).read()
		if took := time.Since(since); !errors.Is(err, os.ErrDeadlineExceeded) || took > 2*Patience {
			t.Errorf("%v after %v", err, took)
		}
		_ = near.Close()
		<-done
	})
}

// TestPatientPeer: an end with a longer patience sends often enough for an end without one.
func TestPatientPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		done := make(chan struct{})
		go newConn(far, nil, nil, 10*Patience).beat(done)
		c := newConn(near, nil, nil, 0)
		for range 10 {
			if _, err := c.read(); err != nil {
				t.Error(err)
				break
			}
		}
		close(done)
		_ = near.Close()
	})
}

// TestByeDoesNotWait: an end that leaves does not wait for a long message that goes out slowly. The
// message would take 32 times the patience.
func TestByeDoesNotWait(t *testing.T) {
	const most = 16 // pieces of the message, which take eight times the patience
	testkit.Scaled(t, 100*time.Millisecond, func(patience time.Duration) error {
		near, far := net.Pipe()
		c := newConn(near, nil, nil, patience)
		sent := make(chan error, 1)
		go func() {
			err := c.write(&message{kind: kindBeat, body: make([]byte, 4*most*pieceOctets)})
			_ = near.Close() // ends the reader, even if the write fails before the first read
			sent <- err
		}()
		b := make([]byte, pieceOctets)
		if _, err := far.Read(b); err != nil { // the writer has the lock
			return fmt.Errorf("the first piece: %w; the writer: %w", err, <-sent)
		}
		read := make(chan int, 1)
		go func() {
			pieces := 0
			for ; pieces < most; pieces++ {
				if _, err := far.Read(b); err != nil {
					break
				}
				time.Sleep(patience / 2)
			}
			_ = far.Close()
			read <- pieces
		}()
		c.bye("it was stopped")
		if pieces, err := <-read, <-sent; pieces == most || err == nil {
			return fmt.Errorf("%d pieces went out before it left, %v", pieces, err)
		}
		return nil
	})
}

// TestMessageIsHeldOnce: a message that arrives takes its length, and no more.
func TestMessageIsHeldOnce(t *testing.T) {
	if testkit.Race {
		t.Skip("under the race detector everything allocates; ci/test runs this without it")
	}
	var b bytes.Buffer
	const length = maxHead + maxBody
	key := []byte("a key")
	testkit.OK(t, writeMessage(bufio.NewWriter(&b), newAuthenticator(key),
		&message{kind: kindRequest, head: make([]byte, maxHead), body: make([]byte, maxBody)}))
	in := bufio.NewReader(&b)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := readMessage(in, newAuthenticator(key), func() {})
	runtime.ReadMemStats(&after)
	if err != nil || len(m.head)+len(m.body) != length {
		t.Fatalf("%d and %d bytes: %v", len(m.head), len(m.body), err)
	}
	const noise = 1 << 20 // other allocations of the process
	if took := after.TotalAlloc - before.TotalAlloc; took > length+noise {
		t.Errorf("%d bytes were allocated for a message of %d", took, length)
	}
}

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

// unwritable is a connection whose peer takes nothing any more.
type unwritable struct{ net.Conn }

func (unwritable) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestFailedWriteSaysWhy: a message that can't be sent ends the session, with that reason.
func TestFailedWriteSaysWhy(t *testing.T) {
	near, far := net.Pipe()
	t.Cleanup(func() { testkit.OK(t, far.Close()) })
	c := &Session{address: "agent", done: make(chan struct{}), waiting: make(map[uint64]chan reply),
		objects: make(map[uint32]any), conn: newConn(unwritable{near}, nil, nil, time.Second)}
	c.beats.Go(func() { c.conn.beat(c.done) })
	c.beats.Go(c.listen)
	<-c.Done()
	if err := c.Err(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the session ended with %v", err)
	}
	c.beats.Wait()
}

// TestJournalGivesUp: after close has waited for Log for the limit, Log gets no more messages.
func TestJournalGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls atomic.Int32
		j := newJournal(func(string, ...any) { calls.Add(1); <-release })
		for range 10 {
			j.log("a message")
		}
		synctest.Wait()
		j.close(time.Second)
		close(release)
		synctest.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("Log was called %d times", n)
		}
	})
}

// TestJournalReportsTheLast: messages that are lost after the last one that Log gets are counted.
func TestJournalReportsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		j := newJournal(func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) })
		j.log("a message")
		synctest.Wait()
		j.lost.Add(3)
		j.close(time.Second)
		if len(got) != 2 || !strings.HasSuffix(got[1], ": 3") {
			t.Errorf("Log got %q", got)
		}
	})
}
