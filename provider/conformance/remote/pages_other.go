//go:build !linux

package remote

// mapPages returns page-aligned memory.
func mapPages(n int) ([]byte, error) {
	b := make([]byte, n+pageBytes)
	from := (pageBytes - int(base(b)%pageBytes)) % pageBytes
	return b[from : from+n : from+n], nil
}

func unmapPages([]byte) error { return nil }
