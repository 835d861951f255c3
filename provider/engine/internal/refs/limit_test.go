package refs

import (
	"syscall"
	"testing"
)

// TestLimit: there are at most Max objects, and one that is refused is not counted.
func TestLimit(t *testing.T) {
	l := Limit{Max: 2}
	for n := range 2 {
		if err := l.Take(); err != nil || l.Len() != n+1 {
			t.Fatalf("object %d: %v, %d are counted", n, err, l.Len())
		}
	}
	if err := l.Take(); err != syscall.ENOMEM || l.Len() != 2 {
		t.Errorf("one too many: %v, %d are counted", err, l.Len())
	}
	l.Give()
	if err := l.Take(); err != nil {
		t.Errorf("one more after another has gone: %v", err)
	}
}
