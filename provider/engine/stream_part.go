package engine

// toPart moves what the context holds and was not consumed to a part.
func (s *stream) toPart() {
	r := &s.rx
	r.part = s.dev.prog.parts.Get()
	r.part.fill(r.c.b[r.r:r.w], int(r.need))
	r.part.count(&s.dev.prog.partOctets)
	r.r, r.w = 0, 0
}

// fromPart moves the part back to the context.
func (s *stream) fromPart() {
	r := &s.rx
	r.r, r.w = 0, copy(r.c.b, r.part.b)
	if r.part.need > r.w {
		r.need = uint32(r.part.need)
	}
	s.dropPart()
}

// dropPart gives back what holds a part.
func (s *stream) dropPart() {
	r := &s.rx
	if r.part != nil {
		r.part.b = nil
		r.part.count(&s.dev.prog.partOctets)
		s.dev.prog.parts.Put(r.part)
		r.part = nil
	}
}

// readPart is readMore for an FPDU that has begun in a part.
func (s *stream) readPart() (int, bool) {
	p := s.rx.part
	space := p.room()
	p.count(&s.dev.prog.partOctets)
	p.iov[0] = space
	n, err := s.conn.Readv(p.iov[:])
	p.iov[0] = nil
	if n == 0 {
		s.readFailed(err)
		return 0, false
	}
	p.b = p.b[:len(p.b)+n]
	if len(p.b) == p.need {
		s.rxEnsure()
		s.parse()
	}
	return n, n == len(space)
}

// unkeep takes the context away from a stream that has kept it for too long. rxMu is
// held.
func (s *stream) unkeep() {
	r := &s.rx
	if !r.kept || r.c == nil {
		return
	}
	s.toPart()
	s.giveContext()
}
