//go:build !race

// Under the race detector, decoding requests of 8 MiB takes seconds. Other tests have many requests
// at once.

package remote

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// longRequest returns a request whose head is longer than padding, in bytes.
func longRequest(number, padding int) *message {
	head := append([]byte(`{"verb":"ibv_get_device_list","args":{"options":["`),
		bytes.Repeat([]byte(" "), padding)...)
	return &message{number: uint64(number), head: append(head, `"]}}`...)}
}

// requestLimits are the limits of unanswered requests.
var requestLimits = map[string]struct {
	padding int // of each request
	most    int // requests that reach the limit
}{
	"many":  {0, maxUnderWay},
	"large": {maxHeads/3 + 1, 2}, // three are too much
}

// TestRequestsAreBounded: unanswered requests are limited in number and in total length. Further
// requests wait, and are performed when others have been answered.
func TestRequestsAreBounded(t *testing.T) {
	for name, c := range requestLimits {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			s := newServed(engines(0), newConn(near, nil, nil, time.Hour))
			for i := range c.most {
				testkit.OK(t, s.begin(t.Context(), longRequest(i, c.padding)))
			}
			next := make(chan error, 1)
			go func() { next <- s.begin(t.Context(), longRequest(c.most, c.padding)) }()
			select {
			case err := <-next:
				t.Errorf("%d requests are not answered, and another one does not wait: %v", c.most, err)
				next <- err
			case <-time.After(20 * time.Millisecond):
			}
			s.mu.Lock()
			if len(s.under) != c.most || s.heads > maxHeads {
				t.Errorf("%d requests of %d bytes are under way", len(s.under), s.heads)
			}
			s.mu.Unlock()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			if err := <-next; err != nil {
				t.Errorf("a request that had to wait: %v", err)
			}
			s.calls.Wait()
			if len(s.under) != 0 || s.heads != 0 {
				t.Errorf("%d requests of %d bytes are under way after all are answered", len(s.under), s.heads)
			}
			testkit.OK(t, far.Close())
		})
	}
}

// TestRequestsWaitForTheirTime: a session ends when the requests under way leave no room for
// another one for the patience.
func TestRequestsWaitForTheirTime(t *testing.T) {
	for name, c := range requestLimits {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			testkit.OK(t, far.Close())
			hang := make(chan struct{})
			s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
				<-hang
				return nil, io.EOF
			}}, newConn(near, nil, nil, Patience))
			for i := range c.most {
				testkit.OK(t, s.begin(t.Context(), longRequest(i, c.padding)))
			}
			since := time.Now()
			err := s.begin(t.Context(), longRequest(c.most, c.padding))
			if waited := time.Since(since); err == nil || waited != Patience {
				t.Errorf("%s: %v after %v, want an error after %v", name, err, waited, Patience)
			}
			close(hang)
			s.calls.Wait()
		})
	}
}

// TestEndWhileRequestsWait: an agent that is stopped does not wait until there is room for a
// request. If the client leaves, the agent notices it by its own messages, because it does not
// read.
func TestEndWhileRequestsWait(t *testing.T) {
	endWhileRequestsWait(t, "stopped", 0, func(stop func(), _ net.Conn) { stop() })
	endWhileRequestsWait(t, "left", Patience/2, func(_ func(), client net.Conn) { _ = client.Close() })
}

func endWhileRequestsWait(t *testing.T, what string, most time.Duration,
	end func(stop func(), client net.Conn)) {
	c := requestLimits["large"]
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		hang := make(chan struct{})
		s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
			<-hang
			return nil, io.EOF
		}}, newConn(near, nil, nil, Patience))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = s.serve(ctx)
		}()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		client := newConn(far, nil, nil, Patience)
		for i := range c.most + 1 {
			m := longRequest(i, c.padding)
			m.kind = kindRequest
			testkit.OK(t, client.write(m))
		}
		synctest.Wait() // the last request waits for room
		since := time.Now()
		end(cancel, far)
		<-served
		if waited := time.Since(since); waited > most {
			t.Errorf("%s: the agent ended the run after %v", what, waited)
		}
		close(hang)
		s.calls.Wait()
		cancel()
		_ = far.Close()
	})
}
