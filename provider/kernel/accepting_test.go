//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"syscall"
	"testing"
)

// TestPostWhileAccepting: the peer may send, and the program answer, before rdma_accept has
// returned. PostSend waits for rdma_accept.
func TestPostWhileAccepting(t *testing.T) {
	i := new(id)
	own, foreign := &qp{dev: &device{siw: true}, id: i}, &qp{dev: &device{siw: true}}
	foreign.connector.Store(i)
	for _, q := range []*qp{own, foreign} {
		if _, err := q.PostSend(nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("not connected: %v, want EINVAL", err)
		}
		i.mu.Lock() // as Accept
		posted := make(chan error, 1)
		go func() {
			_, err := q.PostSend(nil)
			posted <- err
		}()
		for q.sqMu.TryLock() {
			q.sqMu.Unlock()
			if len(posted) > 0 {
				t.Errorf("PostSend has not waited for the Accept: %v", <-posted)
				i.mu.Unlock()
				return
			}
		}
		q.connected.Store(true)
		i.mu.Unlock()
		if err := <-posted; err != nil {
			t.Errorf("after the Accept: %v", err)
		}
	}
}
