//go:build cgo && linux && !nokernel

package kernel

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// connectCall is the state of a running Connect.
type connectCall struct {
	started   chan struct{} // closed when tid is set
	tid       int           // the thread that is in C
	done      chan struct{} // closed when C has returned
	abandoned bool          // guarded by id.mu
}

// Connect occupies the caller's thread until the TCP handshake is over. It does not hold the id's
// lock during that time, so other goroutines can read the id's addresses and close it.
func (i *id) Connect(param provider.ConnParam) error {
	return i.withParam("rdma_connect", param, ibPrivateRequest, i.prepareConnect, func(p *rdmacm.ConnParam) error {
		object := ""
		if to := i.RemoteAddr(); to.IsValid() {
			object = to.String()
		}
		return opError("rdma_connect", object, i.whyNotConnected(i.connect(p)))
	})
}

func (i *id) connect(p *rdmacm.ConnParam) error {
	if err := i.lock(); err != nil {
		return err
	}
	call := &connectCall{started: make(chan struct{}), done: make(chan struct{})}
	i.connecting = call
	c := i.c
	i.mu.Unlock()

	runtime.LockOSThread()
	call.tid = unix.Gettid()
	close(call.started)
	err := c.Connect(p)
	runtime.UnlockOSThread()
	close(call.done)

	i.mu.Lock()
	defer i.mu.Unlock()
	if call.abandoned {
		return os.ErrClosed
	}
	i.connecting = nil
	return err
}

// handshakeTime is how long an abandoned Connect may continue before it is interrupted.
// Interrupting it closes the TCP connection. If a peer's siw accepts a connection that is already
// closed, it loses its listener and then crashes (kernel-notes/siw-listener-lost.md). A reachable
// peer answers within this time.
const handshakeTime = time.Second

// abandonConnect ends a running Connect, which then returns os.ErrClosed. Otherwise, destroying the
// id or its QP would wait for the handshake with a host that does not answer. The caller has the
// id's lock.
func (i *id) abandonConnect() {
	call := i.connecting
	if call == nil {
		return
	}
	call.abandoned = true
	i.connecting = nil
	<-call.started
	select {
	case <-call.done:
		return
	case <-time.After(handshakeTime):
	}
	rdmacm.Interrupt(call.tid, call.done)
}
