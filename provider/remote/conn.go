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
	p := patient{nc, patience}
	return &conn{nc: nc, in: bufio.NewReaderSize(p, pieceOctets), inAuth: newAuthenticator(in),
		out: bufio.NewWriterSize(p, pieceOctets), outAuth: newAuthenticator(out), patience: patience}
}

// pieceOctets is how many bytes have to go out within the patience.
const pieceOctets = 1 << 16

// patient is a connection on which nothing may happen for some time. A long message takes longer
// than that on a slow network, and keeps the beats behind it waiting.
type patient struct {
	nc       net.Conn
	patience time.Duration
}

func (p patient) Read(b []byte) (int, error) {
	_ = p.nc.SetReadDeadline(time.Now().Add(p.patience))
	return p.nc.Read(b)
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

func (c *conn) write(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeMessage(c.out, c.outAuth, m)
}

// bye says why this end leaves, which closes the connection then. A long message that is under way
// has the patience to go out before.
func (c *conn) bye(why string) {
	limit := time.AfterFunc(c.patience, func() { _ = c.nc.Close() })
	defer limit.Stop()
	_ = c.write(&message{kind: kindBye, head: []byte(`"` + why + `"`)})
}

func (c *conn) read() (message, error) {
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
