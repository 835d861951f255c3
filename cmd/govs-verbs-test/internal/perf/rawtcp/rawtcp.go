// Package rawtcp is what the workloads of package load are compared with: the
// same without RDMA, over TCP as fast as Go can do it. Each operation is one
// write of Size octets; the receiver reads into one buffer. The same is done
// over streams of RDMA (rsockets), whose calls always block.
//
// Spinning ends make raw non-blocking system calls without pause, of which the Go
// scheduler is not notified. Blocking ones use a net.Conn.
//
// Each run has TCP connections of its own: the end of each shows the receiver that it has
// everything.
package rawtcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// The workloads. Of a load.Spec they use Size, Iters or Duration, Warmup, QPs
// (BW: so many connections) and Poll.
const (
	BW  load.Op = "tcp-bw"  // one write per message; timed until the receiver has all
	Lat load.Op = "tcp-lat" // ping-pong

	// The same over streams of RDMA, whose calls always wait.
	StreamBW  load.Op = "stream-bw"
	StreamLat load.Op = "stream-lat"
)

// Complete puts the defaults in and says what is impossible. It has package load check
// the most similar workload.
func Complete(s *load.Spec) error {
	op := s.Op
	switch op {
	case BW, StreamBW:
		s.Op = load.WriteBW
	case Lat, StreamLat:
		s.Op = load.SendLat
	default:
		return fmt.Errorf("no workload %q over TCP", op)
	}
	err := s.Complete()
	s.Op = op
	return err
}

// message is a message between the ends, a line of JSON. A connection begins with Hello;
// on a data connection only data follows.
type message struct {
	Hello *hello     `json:",omitempty"`
	Run   *load.Spec `json:",omitempty"` // client
	Go    bool       `json:",omitempty"` // server: reads from the data connections from now on
	Done  *done      `json:",omitempty"` // server
	Error string     `json:",omitempty"` // server: it can't go on
}

type hello struct {
	Protocol string
	Session  uint64 `json:",omitempty"` // data: the control connection's, from the server's hello
}

type done struct{ Usage load.Usage }

const (
	protocol = "govs-perf-tcp/1"
	maxLine  = 4096
)

// patience is how long an end may take to send the next message.
const patience = 10 * time.Second

// tell sends a message to the other end.
func tell(c net.Conn, m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = c.Write(append(text, '\n'))
	return err
}

// hear reads a message, and not an octet more. An Error in it is the error.
func hear(c net.Conn) (message, error) {
	var m message
	var line [maxLine]byte
	n := 0
	for ; n == 0 || line[n-1] != '\n'; n++ {
		if n == maxLine {
			return m, errors.New("the peer's message is too long")
		}
		if _, err := c.Read(line[n : n+1]); err != nil {
			return m, err
		}
	}
	if err := json.Unmarshal(line[:n], &m); err != nil {
		return m, fmt.Errorf("the peer's message: %w", err)
	}
	if m.Error != "" {
		return m, fmt.Errorf("the server: %s", m.Error)
	}
	return m, nil
}

var errNotThat = errors.New("the peer answers with something else than was asked for")

// hearHello reads a connection's first message, for which there is little time.
func hearHello(c net.Conn) (*hello, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	m, err := hear(c)
	if err != nil {
		return nil, err
	}
	if m.Hello == nil || m.Hello.Protocol != protocol {
		return nil, errors.New("the peer does not speak " + protocol)
	}
	return m.Hello, c.SetReadDeadline(time.Time{})
}

// congestion sets TCP_CONGESTION on a socket before it connects or listens, for
// net.Dialer and net.ListenConfig. Go sets TCP_NODELAY itself.
func congestion(name string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		if name == "" {
			return nil
		}
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		}); e != nil {
			return e
		}
		if err != nil {
			return fmt.Errorf("congestion control %q: %w", name, err)
		}
		return nil
	}
}

// until has what c does end with ctx. The result is to be called when it need not
// any more.
func until(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}
