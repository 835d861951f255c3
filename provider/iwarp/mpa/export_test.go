package mpa

// SetPos moves the stream position, so that tests reach those that would take
// gigabytes to get to.
func (f *Framer) SetPos(pos uint64) { f.pos = pos }

// SetPos moves the stream position.
func (r *Receiver) SetPos(pos uint64) { r.d.pos = pos }
