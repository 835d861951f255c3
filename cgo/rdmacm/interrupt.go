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

// Interrupt makes a running Connect on the thread tid fail with EINTR. It returns once done is
// closed, which the caller of Connect does when Connect has returned. There is no other way to end
// the TCP handshake: the kernel waits for it inside the call, and destroying the id waits for the
// call.
//
// It sends the thread the signal SIGRTMAX-2, the only one that Connect does not block. Go's handler
// has SA_RESTART, which would make the kernel begin the handshake again, so the flag is cleared for
// the few milliseconds that this takes. Go may have no handler for the signal, for example in a C
// program that uses Go as a library. The signal would then end the process, so Interrupt only
// waits.
func Interrupt(tid int, done <-chan struct{}) {
	interrupting.Lock()
	defer interrupting.Unlock()
	sig := C.govs_interrupt_signal()
	if C.govs_signal_restart(sig, 0) != 0 {
		<-done
		return
	}
	defer C.govs_signal_restart(sig, 1)
	// Interrupt sends more than one signal, because one that arrives before the thread is in the
	// call is lost. A late one does no harm.
	for {
		_ = unix.Tgkill(os.Getpid(), tid, syscall.Signal(sig))
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
