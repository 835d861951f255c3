//go:build cgo && linux && !nokernel

package rdmacm

/*
#include "shim.h"

// govs_signal_restart sets or clears SA_RESTART of a signal whose handler stays
// what it is. It is -1 if there is none.
static int govs_signal_restart(int sig, int restart)
{
	struct sigaction sa;

	if (sigaction(sig, NULL, &sa) || sa.sa_handler == SIG_DFL || sa.sa_handler == SIG_IGN)
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var interrupting sync.Mutex

// Interrupt makes a Connect that is under way on the thread tid fail with EINTR,
// and returns once done is closed, which the caller of Connect does when Connect
// has returned. There is no other way to end the TCP handshake: the kernel
// waits for it inside the call, and destroying the id waits for the call.
//
// It sends the thread a signal: SIGRTMAX-2, the only one that Connect does not block. The
// handler of Go's runtime has SA_RESTART, with which the kernel would begin the handshake
// again; so the flag is cleared for the few milliseconds that this takes. Where Go has no
// handler for the signal, as in a C program that uses Go as a library, the signal would
// end the process, so Interrupt only waits.
func Interrupt(tid int, done <-chan struct{}) {
	interrupting.Lock()
	defer interrupting.Unlock()
	sig := C.govs_interrupt_signal()
	if C.govs_signal_restart(sig, 0) != 0 {
		<-done
		return
	}
	defer C.govs_signal_restart(sig, 1)
	// The thread may be on its way into the call, where a signal is lost on
	// it: hence more than one. One that comes too late does no harm.
	for {
		_ = unix.Tgkill(os.Getpid(), tid, syscall.Signal(sig))
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
