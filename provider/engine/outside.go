package engine

import (
	"fmt"
	"runtime/debug"
)

// mustReturn is deferred around a call of a Sink or a RecvSource. If that panics or ends its
// goroutine, mustReturn ends the program. The engine holds locks during the call, so if the program
// recovered, it and its peers would wait for them forever.
func mustReturn(returned *bool) {
	if *returned {
		return
	}
	text := fmt.Sprintf("a method of a CompletionSink or RecvSource does not return: %v\n\n%s",
		recover(), debug.Stack())
	go panic(text) // here it could be recovered
	select {}
}
