package engine

import (
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// nowhere is a stream whose bytes cost nothing: it drops written bytes, or keeps them in out, and
// in can be read once.
type nowhere struct {
	transport.Conn // what it is in the place of
	keep           bool
	mss            int // 0: that of Conn
	out, in        []byte
}

func (c *nowhere) MSS() int {
	if c.mss != 0 {
		return c.mss
	}
	return c.Conn.MSS()
}

func (c *nowhere) Writev(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
		if c.keep {
			c.out = append(c.out, b...)
		}
	}
	return n, nil
}

func (c *nowhere) Readv(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		k := copy(b, c.in)
		c.in = c.in[k:]
		n += k
	}
	if n == 0 {
		return 0, transport.ErrWouldBlock
	}
	return n, nil
}

// replaceConn gives s a stream to nowhere.
func (s *side) replaceConn() *nowhere {
	st := s.qp.stream.Load()
	var c *nowhere
	st.replaceConn(func(own transport.Conn) transport.Conn {
		c = &nowhere{Conn: own}
		return c
	})
	s.t.Cleanup(func() {
		st.alone(func() {
			st.closer.mu.Lock() // a stream that has ended belongs to its lingering
			defer st.closer.mu.Unlock()
			st.conn = c.Conn
		})
	})
	return c
}
