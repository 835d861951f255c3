package engine

import (
	"fmt"
	"runtime/debug"
)

// mustReturn is deferred around a call of a Sink or a RecvSource. If that panics or ends its
// goroutine, the program ends: the engine has locks then, so that a program that recovered would
// wait for them forever, and its peers with it.
func mustReturn(returned *bool) {
	if *returned {
		return
	}
	text := fmt.Sprintf("a method of a CompletionSink or RecvSource does not return: %v\n\n%s",
		recover(), debug.Stack())
	go panic(text) // here it could be recovered
	select {}
}
