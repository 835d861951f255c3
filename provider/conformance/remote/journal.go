package remote

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limits of the messages that wait for Agent.Log.
const (
	maxLines = 64   // further ones are only counted
	maxLine  = 1024 // bytes of one; the rest is cut off, because clients choose some of the text
)

// journal calls Agent.Log on a goroutine of its own. So the agent waits neither for a terminal that
// is stopped nor for a pipe that nobody reads.
type journal struct {
	to    func(format string, args ...any) // nil drops all messages
	lines chan string
	lost  atomic.Uint64 // messages that found no room in lines
	ended chan struct{} // closed when the goroutine ends
}

// newJournal returns a journal, which to gets until close.
func newJournal(to func(format string, args ...any)) *journal {
	j := &journal{to: to, lines: make(chan string, maxLines), ended: make(chan struct{})}
	if to == nil {
		close(j.ended)
	} else {
		go j.run()
	}
	return j
}

func (j *journal) run() {
	defer close(j.ended)
	for line := range j.lines {
		j.to("%s", line)
		j.report()
	}
	j.report()
}

// report says how many messages are lost since the last report.
func (j *journal) report() {
	if n := j.lost.Swap(0); n > 0 {
		j.to("messages that are lost because Log had not returned: %d", n)
	}
}

// log never waits. It may be called concurrently, but not after close.
func (j *journal) log(format string, args ...any) {
	if j.to == nil {
		return
	}
	line := fmt.Sprintf(format, args...)
	if len(line) > maxLine {
		line = line[:maxLine] + " ..." // a copy: nothing keeps the rest
	}
	select {
	case j.lines <- line:
	default:
		j.lost.Add(1)
	}
}

// close returns when Log has got all messages, or after limit if Log does not return. Then Log gets
// no more of them.
func (j *journal) close(limit time.Duration) {
	close(j.lines)
	select {
	case <-j.ended:
	case <-time.After(limit):
		j.lost.Store(0)
		for range j.lines {
		}
	}
}
