package rsocket

import "time"

// Owns reports whether p, which must not be empty, is in the connection's ring or send buffer.
func (c *Conn) Owns(p []byte) (ring, sendBuffer bool) {
	in := func(b []byte) bool {
		for i := range b {
			if &b[i] == &p[0] {
				return true
			}
		}
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return in(c.parts.ring.Bytes()), in(c.parts.own.Bytes()[:c.parts.cfg.SendBuffer])
}

// SetAnswerLimit changes how long Accept waits until a peer's connection is established.
func (l *Listener) SetAnswerLimit(d time.Duration) { l.limit = d }
