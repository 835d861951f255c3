package vmtest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// endsWithUs has a command that is about to be run get SIGTERM if this process is killed, and
// returns what to call after the command has ended.
func endsWithUs(cmd *exec.Cmd) (after func()) {
	runtime.LockOSThread() // the signal comes when the thread that has started the command ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return runtime.UnlockOSThread
}
