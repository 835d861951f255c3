package ibverbs

import (
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// endless is a CQ whose polls do not return.
type endless struct {
	provider.CQ
	end func()
}

func (c endless) Poll([]WC) (int, error) {
	c.end()
	return 0, nil
}

// TestPollThatDoesNotReturn: if a handler of the engine panics in a poll, or ends the goroutine,
// other calls can still use the CQ, both Poll and the poll of the CQ's taker.
func TestPollThatDoesNotReturn(t *testing.T) {
	for name, poll := range map[string]func(*CQ, []WC) (int, error){"Poll": (*CQ).Poll, "poll": (*CQ).poll} {
		for how, end := range map[string]func(){"panic": func() { panic("a handler") }, "Goexit": runtime.Goexit} {
			cq := &CQ{p: endless{end: end}}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_, _ = poll(cq, make([]WC, 1))
				t.Errorf("%s, %s: it has returned", name, how)
			}()
			<-ended
			if !cq.mu.TryLock() {
				t.Errorf("%s, %s: the CQ is locked", name, how)
			}
		}
	}
}
