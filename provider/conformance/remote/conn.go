package remote

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Patience is how long the other end may be silent before it counts as gone, unless an option says
// otherwise. Each end sends something four times in that time, even if its own patience is longer.
const Patience = 20 * time.Second

// conn is a control connection after the handshake.
type conn struct {
	nc       net.Conn
	in       *bufio.Reader
	inAuth   *authenticator
	patience time.Duration

	mu      sync.Mutex // held while a message is written
	out     *bufio.Writer
	outAuth *authenticator

	fail   sync.Once
	broken chan struct{} // closed when a message could not be sent
	why    error         // of that, set before
}

func newConn(nc net.Conn, in, out []byte, patience time.Duration) *conn {
	patience = patienceOr(patience)
	return &conn{nc: nc, in: bufio.NewReaderSize(nc, pieceOctets), inAuth: newAuthenticator(in),
		out: bufio.NewWriterSize(patient{nc, patience}, pieceOctets), outAuth: newAuthenticator(out),
		patience: patience, broken: make(chan struct{})}
}

// patienceOr returns the patience of an option.
func patienceOr(option time.Duration) time.Duration {
	if option <= 0 {
		return Patience
	}
	return option
}

// pieceOctets is the number of bytes that must be sent, and arrive, within the patience. On a slow
// network a long message takes longer than that, and delays the beats after it. If any byte were
// progress, a message whose length is wrong would never end, because beats would arrive as its
// bytes.
const pieceOctets = 1 << 16

// patient is a connection whose Write fails if a piece takes longer than the patience.
type patient struct {
	nc       net.Conn
	patience time.Duration
}

func (p patient) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		_ = p.nc.SetWriteDeadline(time.Now().Add(p.patience))
		var k int
		k, err = p.nc.Write(b[n:min(n+pieceOctets, len(b))])
		n += k
	}
	return n, err
}

// write sends a message. If it fails, the connection ends.
func (c *conn) write(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := writeMessage(c.out, c.outAuth, m)
	if err != nil {
		c.fail.Do(func() { c.why = err; close(c.broken) })
		_ = c.nc.Close()
	}
	return err
}

// bye sends the reason why this end leaves, and closes the connection. A long message that is being
// sent may take up to the patience to finish first.
func (c *conn) bye(why string) {
	limit := time.AfterFunc(c.patience, func() { _ = c.nc.Close() })
	defer limit.Stop()
	_ = c.write(&message{kind: kindBye, head: []byte(`"` + why + `"`)})
}

// read receives a message. If write has closed the connection, the error is the reason.
func (c *conn) read() (message, error) {
	m, err := readMessage(c.in, c.inAuth, func() {
		_ = c.nc.SetReadDeadline(time.Now().Add(c.patience))
	})
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		select {
		case <-c.broken:
			err = c.why
		default:
		}
	}
	return m, err
}

// beat sends a message at intervals until done is closed or sending fails.
func (c *conn) beat(done <-chan struct{}) {
	t := time.NewTicker(min(c.patience, Patience) / 4)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			if c.write(&message{kind: kindBeat}) != nil {
				return // the reader reports the reason
			}
		}
	}
}
