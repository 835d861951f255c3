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

// What follows in the files cm*.go is the kernel's ucma.c over package rdmacm. Its ids are in one
// table, and their events come on one channel of the device, from which they are given to the
// descriptors: so an id moves from one descriptor to another without the device, which MIGRATE_ID
// needs.
//
// Answers and errnos are those of Linux 6.1 with siw. What differs, and why:
//
//   - CONNECT makes TCP's connection and sends the request before it returns, as siw does. But that
//     nobody listens is the event REJECTED with ECONNREFUSED, as on iWARP hardware, and with siw
//     the errno of CONNECT.
//   - DESTROY_ID and DISCONNECT do not wait for the end of a start-up that is under way: siw holds
//     them up for as long as the peer does not answer, 10 seconds at most.
//   - A port is taken from TCP when an id is bound to it. siw takes it with LISTEN or CONNECT, and
//     BIND knows the ports of other ids only; so what another program has open in TCP shows with
//     BIND.
//   - All of the system's addresses are the device's. ENODEV comes for none of them, and an id that
//     is bound to 127.0.0.1 or ::1 has the device; the kernel takes these for any address.
//   - MIGRATE_ID takes with a listener the ids of requests that the program has not got yet. With
//     the kernel they stay on the former descriptor, where no command reaches them from the new
//     one.
//   - A QP that is connected already is EINVAL of CONNECT; siw finds out when the peer has replied
//     and reports CONNECT_ERROR.
//   - What ACCEPT refuses, the peer sees as a rejection. siw does so for a QP that does not exist
//     and for missing parameters, and hangs up for all else.
//   - ESTABLISHED of the side that has connected reports the depths of Reads in use; siw reports
//     what the peer offers, also if that is more than was asked for.
//   - AFONLY has no effect on an id that is bound; with siw it has until LISTEN.

// cmState is what a bridge has of rdma_cm.
type cmState struct {
	addresses []netip.Addr // see Options

	// Which descriptors are open; held while the first is opened and the last closed.
	open  sync.Mutex
	files int
	event *rdmacm.EventChannel // while there are files
	stop  func()               // ends the taking of events

	// mu is taken after that of an id. It is never held while the device is called.
	mu    sync.Mutex
	ids   cmTable
	ports uint16 // the port that the last id with an address of AF_IB got
}

// cmFile is an open /dev/infiniband/rdma_cm (a ucma_file of the kernel).
type cmFile struct {
	b  *Bridge
	ch *channel

	events []*cmEvent // of cmState.mu
	octets int        // in ch, of cmState.mu
}

// CMFile is a File that rdma_cm's commands are written to.
type CMFile interface {
	File
	connectionManager()
}

func (f *cmFile) connectionManager() {}

// OpenCM opens the connection manager, as open(2) of /dev/infiniband/rdma_cm does. flags are those
// of open: O_NONBLOCK and O_CLOEXEC count. The descriptor is the program's, and is adopted. It can
// be read while there are events; GET_EVENT never waits and returns EAGAIN if there is none, so
// that a program that wants to wait polls the descriptor.
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

// holdCM counts a descriptor. With the first one it begins to take events.
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

// releaseCM takes back what holdCM counted. With the last one the taking of events ends.
func (b *Bridge) releaseCM() {
	s := &b.cm
	s.open.Lock()
	defer s.open.Unlock()
	if s.files--; s.files == 0 {
		s.stop()
		s.event, s.stop = nil, nil
	}
}

// Close implements File: the descriptor's ids are destroyed, and what they connect ends.
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

// settle takes bytes that stand for no event any more out of the channel. cmState.mu is held.
func (f *cmFile) settle() {
	for ; f.octets > len(f.events); f.octets-- {
		f.ch.take()
	}
	// All of them may have been there for events that are gone, while there was no room for more.
	if f.octets == 0 && len(f.events) > 0 && f.ch.offer([]byte{1}) {
		f.octets++
	}
}

// drop takes back the events for which the function which returns true, and returns them.
// cmState.mu is held.
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

// lock returns the id with a number with its lock held.
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

// lockBound is lock for commands that need the device: EINVAL for an id that has none yet.
func (f *cmFile) lockBound(handle uint32) (*cmID, error) {
	x, err := f.lock(handle)
	if err == nil && !x.device {
		x.mu.Unlock()
		return nil, syscall.EINVAL
	}
	return x, err
}

// parseBound decodes a command that is about an id, and locks the id, whose number is a part of it.
func (r *cmRequest) parseBound(msg any, handle *uint32) (*cmID, error) {
	if err := r.parse(msg); err != nil {
		return nil, err
	}
	return r.file.lockBound(*handle)
}
