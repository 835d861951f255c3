//go:build !linux

package memory

// probe is for Linux, which shows what memory may be used for.
func probe([]byte, bool) error { return nil }
