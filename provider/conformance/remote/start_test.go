package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// patience limits how long a test waits for an event that must come.
const patience = 2 * time.Minute

// counted is a listener that counts the connections that are not freed.
type counted struct {
	net.Listener
	accepted, freed atomic.Int32
}

// countedConn is a connection that the garbage collector can free.
type countedConn struct{ net.Conn }

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted.Add(1)
	counted := &countedConn{c}
	runtime.AddCleanup(counted, func(int) { l.freed.Add(1) }, 0)
	return counted, nil
}

// TestStrangersAreForgotten: the agent keeps nothing of a connection that has ended before it
// proved that it knows the secret.
func TestStrangersAreForgotten(t *testing.T) {
	l := &counted{Listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- engines(0).Serve(ctx, l) }()
	const strangers = 10
	for range strangers {
		c := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
		testkit.OK(t, c.Close())
	}
	for end := time.Now().Add(patience); l.freed.Load() < strangers; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("of %d connections %d are freed", l.accepted.Load(), l.freed.Load())
			break
		}
		runtime.GC()
	}
	cancel()
	testkit.OK(t, <-served)
}

// TestBlockedLog: while Log does not return, the agent closes what it refuses, and serves one run
// after the other. When Log returns, it gets the messages that had room, and the number of others.
func TestBlockedLog(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	var lines []string
	a := engines(0)
	a.Log = func(format string, args ...any) {
		<-release
		lines = append(lines, fmt.Sprintf(format, args...))
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	const strangers = 2 * maxLines
	for range strangers {
		c := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
		testkit.OK(t, c.SetDeadline(time.Now().Add(patience)))
		testkit.Must(c.Write([]byte("not a hello")))(t)
		closes(t, c)
		testkit.OK(t, c.Close())
	}
	for run := range 2 {
		s, err := Dial(t.Context(), l.Addr().String(), Options{})
		for end := time.Now().Add(patience); errors.Is(err, ErrBusy); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("run %d: %v", run, err)
			}
			s, err = Dial(t.Context(), l.Addr().String(), Options{})
		}
		testkit.OK(t, err)
		testkit.Must(s.Provider("engine", nil).Devices())(t)
		testkit.OK(t, s.Close())
	}
	close(release)
	cancel()
	testkit.OK(t, <-served)
	refused, lost := 0, 0
	for _, line := range lines {
		if strings.Contains(line, ": refused: ") {
			refused++
		}
		n := 0
		_, _ = fmt.Sscanf(line, "messages that are lost because Log had not returned: %d", &n)
		lost += n
	}
	if refused < maxLines || refused > maxLines+1 || lost < strangers-refused {
		t.Errorf("of %d messages about strangers Log gets %d, and %d messages are lost", strangers, refused, lost)
	}
}

// TestLongLogLines: messages that wait for Log are short, even if a client has chosen the text of
// the error in them.
func TestLongLogLines(t *testing.T) {
	const long = maxHead / 4
	why := newServed(engines(0), nil).begin(t.Context(), &message{kind: kindRequest, number: 1,
		head: []byte(`{"on":` + strings.Repeat("9", long) + `}`)})
	if why == nil || len(why.Error()) < long {
		t.Fatalf("the client does not choose the text: %.100v", why)
	}
	release := make(chan struct{})
	var line string // the last one
	j := newJournal(func(format string, args ...any) {
		<-release
		line = fmt.Sprintf(format, args...)
	})
	before := heap()
	for range maxLines {
		j.log("127.0.0.1: the run has ended: %v", why)
	}
	if waits := int64(heap() - before); waits > 4*long {
		t.Errorf("%d messages that wait take %d bytes", maxLines, waits)
	}
	close(release)
	j.close(patience)
	if !strings.HasPrefix(line, "127.0.0.1: the run has ended: malformed message") {
		t.Errorf("the message is %q", line)
	}
}

// TestStopWithBlockedLog: an agent that is stopped waits for Log only for the patience.
func TestStopWithBlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		a := engines(0)
		release := make(chan struct{})
		a.Log = func(string, ...any) { <-release }
		began := time.Now()
		err := a.Serve(ctx, &lastMoment{cancel, make(chan struct{}), near})
		if took := time.Since(began); err != nil || took < Patience || took >= Patience+handshakeLimit {
			t.Errorf("%v after %v", err, took)
		}
		close(release)
		testkit.OK(t, far.Close())
	})
}

// closes waits until the agent closes a connection.
func closes(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the agent has not closed the connection")
	}
}

// TestDialEnds: Dial returns when its context ends, even if the agent falls silent after it has
// proved that it knows the secret.
func TestDialEnds(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, l.Addr().String(), Options{Patience: time.Hour})
		ended <- err
	}()
	c := testkit.Must(l.Accept())(t)
	defer c.Close()
	testkit.Must(receive(c, nil, "", func() string { return "" }))(t)
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the context's error", err)
		}
	case <-time.After(patience):
		t.Fatal("Dial does not return")
	}
}

// lastMoment is a listener whose only connection comes when the agent is stopped.
type lastMoment struct {
	stop   func()
	closed chan struct{}
	conn   net.Conn
}

func (l *lastMoment) Accept() (net.Conn, error) {
	c := l.conn
	if l.conn = nil; c == nil {
		<-l.closed
		return nil, net.ErrClosed
	}
	l.stop()
	return &lateDeadline{Conn: c}, nil
}

func (l *lastMoment) Close() error   { close(l.closed); return nil }
func (l *lastMoment) Addr() net.Addr { return nil }

// lateDeadline is a connection whose future deadlines are set after all goroutines have reacted to
// what came before.
type lateDeadline struct{ net.Conn }

func (c *lateDeadline) SetDeadline(at time.Time) error {
	if time.Until(at) > 0 {
		time.Sleep(time.Millisecond)
	}
	return c.Conn.SetDeadline(at)
}

func (c *lateDeadline) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// TestStopAtStart: an agent that is stopped does not wait for a connection that it has just
// accepted.
func TestStopAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		err := engines(0).Serve(ctx, &lastMoment{cancel, make(chan struct{}), near})
		if took := time.Since(began); err != nil || took >= handshakeLimit {
			t.Errorf("%v after %v", err, took)
		}
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection: %v, want that it is closed", err)
		}
		testkit.OK(t, far.Close())
	})
}
