package bridge

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"golang.org/x/sys/unix"
)

// The files cm*.go implement the kernel's ucma.c with package rdmacm. All ids are in one table, and
// their events arrive on one channel of the device, from which they are distributed to the
// descriptors. So an id can move from one descriptor to another without the device, as MIGRATE_ID
// requires.
//
// Answers and errnos are those of Linux 6.1 with siw, with these differences:
//
//   - CONNECT makes the TCP connection and sends the request before it returns, as siw does. But if
//     nobody listens, the program gets the event REJECTED with ECONNREFUSED, as on iWARP hardware;
//     with siw, CONNECT returns the errno.
//   - DESTROY_ID and DISCONNECT do not wait for a running start-up to end. siw delays them while
//     the peer does not answer, for up to 10 seconds.
//   - Binding an id takes the port from TCP. siw takes it with LISTEN or CONNECT, and its BIND
//     knows only the ports of other ids. So BIND here also fails for a port that another program
//     uses in TCP.
//   - All addresses of the system belong to the device, unless Options has Addresses. None of them
//     gives ENODEV, and an id that is bound to 127.0.0.1 or ::1 has the device; the kernel treats
//     these as the unspecified address.
//   - When MIGRATE_ID moves a listener, the ids of requests that the program has not fetched move
//     too. With the kernel they stay on the former descriptor, where no command reaches them from
//     the new one.
//   - CONNECT with a QP that is already connected returns EINVAL; siw notices this when the peer
//     has replied, and reports CONNECT_ERROR.
//   - If ACCEPT fails, the peer sees a rejection. siw rejects only for a QP that does not exist and
//     for missing parameters, and closes the connection for everything else.
//   - ESTABLISHED reports to the connecting side the depths of Reads in use; siw reports the peer's
//     offer, even if it is more than was requested.
//   - AFONLY has no effect on a bound id; with siw it has until LISTEN.

// cmState is the bridge's state of rdma_cm.
type cmState struct {
	addresses []netip.Addr // see Options

	// open guards which descriptors are open; it is held while the first is opened and the last
	// closed.
	open  sync.Mutex
	files int
	event *rdmacm.EventChannel // while there are files
	stop  func()               // stops fetching events

	// mu is locked after an id's mu. It is never held during calls of the device.
	mu    sync.Mutex
	ids   cmTable
	ports uint16 // port of the last id with an AF_IB address
}

// cmFile is an open /dev/infiniband/rdma_cm (a ucma_file of the kernel).
type cmFile struct {
	b  *Bridge
	ch *channel

	events []*cmEvent // guarded by cmState.mu
	octets int        // bytes in ch; guarded by cmState.mu
}

// CMFile is a File for rdma_cm's commands.
type CMFile interface {
	File
	connectionManager()
}

func (f *cmFile) connectionManager() {}

// OpenCM opens the connection manager, as open(2) of /dev/infiniband/rdma_cm does. Of the open
// flags, O_NONBLOCK and O_CLOEXEC have an effect. The descriptor is the program's, and is adopted.
// It is readable while there are events. GET_EVENT never waits; it returns EAGAIN if there is no
// event, so a program that wants to wait polls the descriptor.
func (b *Bridge) OpenCM(flags int) (fd int, err error) {
	sock := 0
	if flags&unix.O_CLOEXEC != 0 {
		sock |= unix.SOCK_CLOEXEC
	}
	if flags&unix.O_NONBLOCK != 0 {
		sock |= unix.SOCK_NONBLOCK
	}
	if err := b.holdCM(); err != nil {
		return -1, errno(err)
	}
	ch, fd, err := newChannel(b.prog, sock)
	if err != nil {
		b.releaseCM()
		return -1, err
	}
	return b.adopt(fd, &cmFile{b: b, ch: ch})
}

// holdCM counts an open descriptor. For the first one it begins to fetch events.
func (b *Bridge) holdCM() error {
	s := &b.cm
	s.open.Lock()
	defer s.open.Unlock()
	if s.files > 0 {
		s.files++
		return nil
	}
	ch, err := rdmacm.CreateEventChannel(b.vctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.files, s.event = 1, ch
	s.stop = func() {
		cancel()
		<-ended
		_ = ch.Close()
	}
	go func() {
		defer close(ended)
		for {
			e, err := ch.GetEvent(ctx)
			if err != nil {
				return
			}
			s.take(e)
		}
	}()
	return nil
}

// releaseCM undoes holdCM. After the last descriptor it stops fetching events.
func (b *Bridge) releaseCM() {
	s := &b.cm
	s.open.Lock()
	defer s.open.Unlock()
	if s.files--; s.files == 0 {
		s.stop()
		s.event, s.stop = nil, nil
	}
}

// Close implements File: it destroys the descriptor's ids and ends their connections.
func (f *cmFile) Close() {
	s := &f.b.cm
	s.mu.Lock()
	ids := slices.DeleteFunc(s.ids.all(), func(x *cmID) bool { return x.file != f })
	for _, x := range ids {
		s.ids.reserve(x)
	}
	s.mu.Unlock()
	for _, x := range ids {
		s.destroy(x)
	}
	f.ch.close()
	f.b.releaseCM()
}

// queue adds an event. cmState.mu is held.
func (f *cmFile) queue(v *cmEvent) {
	f.events = append(f.events, v)
	if f.ch.offer([]byte{1}) {
		f.octets++
	}
}

// settle removes the channel's bytes that no longer represent an event. cmState.mu is held.
func (f *cmFile) settle() {
	for ; f.octets > len(f.events); f.octets-- {
		f.ch.take()
	}
	// Perhaps all bytes were for removed events, and kept others from being written.
	if f.octets == 0 && len(f.events) > 0 && f.ch.offer([]byte{1}) {
		f.octets++
	}
}

// drop removes and returns the events for which the function returns true. cmState.mu is held.
func (f *cmFile) drop(which func(*cmEvent) bool) (dropped []*cmEvent) {
	kept := f.events[:0]
	for _, v := range f.events {
		if which(v) {
			dropped = append(dropped, v)
		} else {
			kept = append(kept, v)
		}
	}
	clear(f.events[len(kept):])
	f.events = kept
	f.settle()
	return dropped
}

// find returns the id with a number, with the errors of the kernel's _ucma_find_context. cmState.mu
// is held.
func (f *cmFile) find(handle uint32) (*cmID, error) {
	x := f.b.cm.ids.get(handle)
	switch {
	case x == nil:
		return nil, syscall.ENOENT
	case x.file != f:
		return nil, syscall.EINVAL
	}
	return x, nil
}

// lock returns the id with a number, locked.
func (f *cmFile) lock(handle uint32) (*cmID, error) {
	f.b.cm.mu.Lock()
	x, err := f.find(handle)
	f.b.cm.mu.Unlock()
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	if x.gone {
		x.mu.Unlock()
		return nil, syscall.ENOENT
	}
	return x, nil
}

// lockBound returns the id with a number, locked, for commands that need the device. It returns
// EINVAL if the id is not bound to it.
func (f *cmFile) lockBound(handle uint32) (*cmID, error) {
	x, err := f.lock(handle)
	if err == nil && !x.device {
		x.mu.Unlock()
		return nil, syscall.EINVAL
	}
	return x, err
}

// parseBound decodes a command for an id, and locks the id that handle, a field of msg, names.
func (r *cmRequest) parseBound(msg any, handle *uint32) (*cmID, error) {
	if err := r.parse(msg); err != nil {
		return nil, err
	}
	return r.file.lockBound(*handle)
}
