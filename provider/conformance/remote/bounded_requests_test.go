//go:build !race

// Under the race detector, decoding requests of 8 MiB takes seconds. Other tests have many requests
// at once.

package remote

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestRequestsAreBounded: unanswered requests are limited in number and in total length.
func TestRequestsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		padding int // of each request
		most    int // unanswered requests at most
	}{
		"many":  {0, maxUnderWay},
		"large": {maxHead - 100, maxHeads / (maxHead - 100)},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			s := newServed(engines(0), newConn(near, nil, nil, time.Hour))
			head := append([]byte(`{"verb":"clock","args":{"x":"`), make([]byte, c.padding)...)
			for i := range head[len(head)-c.padding:] {
				head[len(head)-c.padding+i] = ' '
			}
			head = append(head, `"}}`...)
			var err error
			begun := 0
			for err == nil && begun <= c.most {
				if err = s.begin(t.Context(), &message{number: uint64(begun), head: head}); err == nil {
					begun++
				}
			}
			if !errors.Is(err, errFrame) {
				t.Errorf("%d requests are under way, and none is answered: %v", begun, err)
			}
			go func() { _, _ = io.Copy(io.Discard, far) }()
			s.calls.Wait()
			if len(s.under) != 0 || s.heads != 0 {
				t.Errorf("%d requests of %d bytes are under way after all are answered", len(s.under), s.heads)
			}
			testkit.OK(t, far.Close())
		})
	}
}
