package rsocket

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
