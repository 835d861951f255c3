package remote

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// Patience is how long nothing may come from the other end before it counts as gone, unless
// an option says otherwise. Each end sends something four times in that time.
const Patience = 20 * time.Second

// conn is a control connection after its start.
type conn struct {
	nc       net.Conn
	in       *bufio.Reader
	inAuth   *authenticator
	patience time.Duration

	mu      sync.Mutex // held while a message is written
	out     *bufio.Writer
	outAuth *authenticator
}

func newConn(nc net.Conn, in, out []byte, patience time.Duration) *conn {
	if patience <= 0 {
		patience = Patience
	}
	return &conn{nc: nc, in: bufio.NewReaderSize(nc, 1<<16), inAuth: newAuthenticator(in),
		out: bufio.NewWriterSize(nc, 1<<16), outAuth: newAuthenticator(out), patience: patience}
}

func (c *conn) write(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.patience))
	return writeMessage(c.out, c.outAuth, m)
}

func (c *conn) read() (message, error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(c.patience))
	return readMessage(c.in, c.inAuth)
}

// beat sends something now and then until done is closed or it fails.
func (c *conn) beat(done <-chan struct{}) {
	t := time.NewTicker(c.patience / 4)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			if c.write(&message{kind: kindBeat}) != nil {
				return // the reader finds out why
			}
		}
	}
}
