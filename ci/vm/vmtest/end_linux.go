package vmtest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// endsWithUs makes a command that is about to start get SIGTERM if this process is killed. It
// returns a function to call after the command has ended.
func endsWithUs(cmd *exec.Cmd) (after func()) {
	runtime.LockOSThread() // the signal comes when the thread that has started the command ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return runtime.UnlockOSThread
}
