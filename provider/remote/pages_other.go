//go:build !linux

package remote

// mapPages returns memory at the start of a page.
func mapPages(n int) ([]byte, error) {
	b := make([]byte, n+pageBytes)
	from := (pageBytes - int(base(b)%pageBytes)) % pageBytes
	return b[from : from+n : from+n], nil
}

func unmapPages([]byte) error { return nil }
