package ibverbs_test

import (
	"os"
	"os/signal"
	"syscall"
)

// On SIGUSR1 the program writes what is open on its device, and goes on.
func ExampleContext_WriteState() {
	vctx, _ := open()
	defer vctx.Close()

	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			_ = vctx.WriteState(os.Stderr)
		}
	}()
}
