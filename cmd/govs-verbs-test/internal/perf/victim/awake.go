package victim

import (
	"context"
	"runtime"
)

// stayAwake has this process use all the CPU that it gets, which is what nobody else
// wants. Peers that wait for their sockets have it first.
func stayAwake(ctx context.Context) {
	for ctx.Err() == nil {
		for range 1 << 12 {
			spin++
		}
		runtime.Gosched()
	}
}

// spin is for a loop that the compiler may not leave out.
var spin uint64
