//go:build cgo && linux && !nokernel

package rdmacm

/*
#include <signal.h>
#include <string.h>

// govs_signal_restart sets or clears SA_RESTART of a signal whose handler stays
// what it is.
static int govs_signal_restart(int sig, int restart)
{
	struct sigaction sa;

	if (sigaction(sig, NULL, &sa))
		return -1;
	if (restart)
		sa.sa_flags |= SA_RESTART;
	else
		sa.sa_flags &= ~SA_RESTART;
	return sigaction(sig, &sa, NULL);
}
*/
import "C"

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

var interrupting sync.Mutex

// Interrupt makes a Connect that is under way on the thread tid fail with EINTR,
// and returns once done is closed, which the caller of Connect does when Connect
// has returned. There is no other way to end the TCP handshake: the kernel
// waits for it inside the call, and destroying the id waits for the call.
//
// The signal is SIGURG, which Go programs receive all the time (the runtime
// preempts goroutines with it) and therefore bear. The runtime's handler has
// SA_RESTART, with which the kernel would begin the handshake again; so the
// flag is cleared for the few milliseconds that this takes.
func Interrupt(tid int, done <-chan struct{}) {
	interrupting.Lock()
	defer interrupting.Unlock()
	C.govs_signal_restart(C.SIGURG, 0)
	defer C.govs_signal_restart(C.SIGURG, 1)
	// The thread may be on its way into the call, where a signal is lost on
	// it: hence more than one. One that comes too late does no harm.
	for {
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
