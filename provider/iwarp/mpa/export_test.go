package mpa

// SetPos sets the stream position, so that tests reach positions beyond gigabytes.
func (f *Framer) SetPos(pos uint64) { f.pos = pos }

// SetPos sets the stream position.
func (r *Receiver) SetPos(pos uint64) { r.d.pos = pos }
