package load

// look reads an octet that a device may be writing: the last one of a Write's
// target. There is nothing in the verbs that would order this with the Write,
// and so nothing that the race detector could know of; it is kept from looking.
// Not inlining it keeps the compiler from reading once for a whole loop.
//
//go:norace
//go:noinline
func look(b *byte) byte { return *b }
