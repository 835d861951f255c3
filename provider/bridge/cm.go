package bridge

import (
	"context"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// cmState is what a bridge has of rdma_cm. The ids of all descriptors are in one table, as in the
// kernel, and their events come on one channel of the device, from which they are given to the
// descriptors: so that an id moves from one to another with what it has.
type cmState struct {
	mu    sync.Mutex
	ids   map[uint32]*cmID
	event *rdmacm.EventChannel // nil before the first descriptor
	stop  func()
}

// cmID is an id of the program (a ucma_context of the kernel).
type cmID struct {
	handle uint32
	id     *rdmacm.ID // nil for one of the port space IB, which is only asked whether it exists
	probe  abi.SockaddrStorage

	// Under cmState.mu:
	uid      uint64 // what the program calls it; 0 until it accepts the request that the id came with
	file     *cmFile
	reported uint32     // events that the program has got
	qp       *queuePair // that it connects
	dialled  bool       // by CONNECT
}

// cmEvent is an event that the program has not got yet.
type cmEvent struct {
	owner   *cmID // whose event it is
	request *cmID // with CONNECT_REQUEST the new id, otherwise nil
	resp    abi.EventResp
}

// cmFile is an open /dev/infiniband/rdma_cm. In its channel is an octet for each event.
type cmFile struct {
	b      *Bridge
	ch     *channel
	events []*cmEvent // of cmState.mu
	closed bool       // of cmState.mu
}

// CMFile is a File that rdma_cm's commands are written to.
type CMFile interface {
	File
	connectionManager()
}

func (f *cmFile) connectionManager() {}

// OpenCM opens the connection manager, as open(2) of /dev/infiniband/rdma_cm does. flags are those of
// open: O_NONBLOCK and O_CLOEXEC count. The descriptor is the program's, and is adopted.
func (b *Bridge) OpenCM(flags int) (fd int, err error) {
	if err := b.startCM(); err != nil {
		return -1, err
	}
	sock := 0
	if flags&unix.O_CLOEXEC != 0 {
		sock |= unix.SOCK_CLOEXEC
	}
	if flags&unix.O_NONBLOCK != 0 {
		sock |= unix.SOCK_NONBLOCK
	}
	ch, fd, err := newChannel(b.prog, sock)
	if err != nil {
		return -1, err
	}
	b.prog.Adopt(fd, &cmFile{b: b, ch: ch})
	return fd, nil
}

func (s *cmState) init() { s.ids = make(map[uint32]*cmID) }

// startCM begins to take events, once.
func (b *Bridge) startCM() error {
	s := &b.cm
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event != nil {
		return nil
	}
	ch, err := rdmacm.CreateEventChannel(b.vctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.event = ch
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

// close ends the taking of events. There are no descriptors any more.
func (s *cmState) close() {
	s.mu.Lock()
	stop := s.stop
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// add gives an id a number, the lowest that is free. mu is held.
func (s *cmState) add(x *cmID) {
	for s.ids[x.handle] != nil {
		x.handle++
	}
	s.ids[x.handle] = x
}

// take gives an event of the device to the descriptor that the id is of.
func (s *cmState) take(e *rdmacm.Event) {
	on := e.ID
	if e.ListenID != nil {
		on = e.ListenID
	}
	s.mu.Lock()
	owner, ok := on.Cookie().(*cmID)
	if !ok || s.ids[owner.handle] != owner || owner.file.closed {
		s.mu.Unlock()
		if e.ListenID != nil { // a request to a listener that has gone
			_ = e.ID.Close()
		}
		return
	}
	v := &cmEvent{owner: owner}
	switch {
	case e.ListenID != nil:
		v.request = &cmID{id: e.ID, file: owner.file}
		s.add(v.request)
		e.ID.SetCookie(v.request)
	case owner.uid == 0: // the program does not know the id yet; its ACCEPT will fail
		s.mu.Unlock()
		return
	}
	v.fill(e)
	owner.file.queue(v)
	qp, dialled := owner.qp, owner.dialled
	s.mu.Unlock()
	if e.Type == rdmacm.Established && qp != nil {
		qp.connected(dialled)
	}
}

// fill makes the answer to GET_EVENT.
func (v *cmEvent) fill(e *rdmacm.Event) {
	v.resp = abi.EventResp{UID: v.owner.uid, ID: v.owner.handle, Event: uint32(e.Type), Status: uint32(int32(e.Status))}
	if v.request != nil {
		v.resp.ID = v.request.handle
	}
	p := &v.resp.Param
	p.PrivateDataLen = uint8(copy(p.PrivateData[:255], e.PrivateData))
	p.ResponderResources, p.InitiatorDepth = depth(e.ResponderResources), depth(e.InitiatorDepth)
}

func depth(n int) uint8 { return uint8(min(max(n, 0), 255)) }

// queue adds an event. cmState.mu is held.
func (f *cmFile) queue(v *cmEvent) {
	f.events = append(f.events, v)
	f.ch.send([]byte{1})
}

// dropEvents takes back the events that which returns true for, and returns them. cmState.mu is held.
func (f *cmFile) dropEvents(which func(*cmEvent) bool) (dropped []*cmEvent) {
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
	f.ch.withdraw(len(dropped), func([]byte) bool { return true })
	return dropped
}

// Close implements File: the descriptor's ids are destroyed.
func (f *cmFile) Close() {
	s := &f.b.cm
	s.mu.Lock()
	f.closed = true
	var ids []*cmID
	for _, x := range s.ids {
		if x.file == f {
			ids = append(ids, x)
		}
	}
	s.mu.Unlock()
	for _, x := range ids {
		_, _ = f.destroy(x)
	}
	f.ch.close()
}

// destroy takes an id out, with the events that the program has not got, and ends what it has. It
// returns how many events the program has got; ok is false if another call was first.
func (f *cmFile) destroy(x *cmID) (reported uint32, ok bool) {
	s := &f.b.cm
	s.mu.Lock()
	if s.ids[x.handle] != x {
		s.mu.Unlock()
		return 0, false
	}
	delete(s.ids, x.handle)
	dropped := x.file.dropEvents(func(v *cmEvent) bool { return v.owner == x || v.request == x })
	var requests []*cmID
	for _, v := range dropped {
		if r := v.request; r != nil && r != x { // requests that the program has never seen
			delete(s.ids, r.handle)
			requests = append(requests, r)
		}
	}
	reported = x.reported
	s.mu.Unlock()
	for _, r := range append(requests, x) {
		if r.id != nil {
			_ = r.id.Close()
		}
	}
	return reported, true
}

// find returns the id with a number, with the errors of the kernel's _ucma_find_context. cmState.mu
// is held.
func (f *cmFile) find(handle uint32) (*cmID, error) {
	x := f.b.cm.ids[handle]
	switch {
	case x == nil:
		return nil, syscall.ENOENT
	case x.file != f:
		return nil, syscall.EINVAL
	}
	return x, nil
}

// lookup is find without the lock.
func (f *cmFile) lookup(handle uint32) (*cmID, error) {
	f.b.cm.mu.Lock()
	defer f.b.cm.mu.Unlock()
	return f.find(handle)
}

// bound is lookup for commands that need the device: EINVAL for an id that has none yet.
func (f *cmFile) bound(handle uint32) (*cmID, error) {
	x, err := f.lookup(handle)
	if err == nil && !x.hasDevice() {
		err = syscall.EINVAL
	}
	return x, err
}

func (x *cmID) hasDevice() bool { return x.id != nil && x.id.DeviceName() != "" }
