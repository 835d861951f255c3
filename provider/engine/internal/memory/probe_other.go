//go:build !linux

package memory

// probe does nothing: only Linux shows how memory may be used.
func probe([]byte, bool) error { return nil }
