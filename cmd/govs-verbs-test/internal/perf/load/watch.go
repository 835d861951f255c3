package load

// look reads a byte that a device may be writing: the last one of a Write's target. Nothing in the
// verbs orders this read with the Write, so the race detector would report a race; the function is
// excluded from it. It is not inlined, because the compiler could then read only once for a whole
// loop.
//
//go:norace
//go:noinline
func look(b *byte) byte { return *b }
