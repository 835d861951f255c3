package bridge

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A channel is a descriptor that the program reads events from. It is a pair of sockets, so poll,
// select, epoll, O_NONBLOCK and duplicates work as with the kernel's descriptors. Each event is a
// packet.
type channel struct {
	prog Program

	mu      sync.Mutex
	ours    int      // events are written to it; it never blocks
	theirs  int      // a duplicate of the program's end, for removing unread events
	backlog [][]byte // events that do not fit into the sockets
	sending bool     // a goroutine is writing the backlog
	closed  bool
}

// newChannel makes a channel. fd is the program's descriptor, which is not adopted yet; flags are
// SOCK_CLOEXEC and SOCK_NONBLOCK.
func newChannel(prog Program, flags int) (c *channel, fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|flags&unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	fd, ours := pair[0], pair[1]
	theirs, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstOwn)
	if err == nil {
		ours, err = aboveStandard(ours)
	}
	if err == nil {
		err = unix.SetNonblock(ours, true)
	}
	if err == nil && flags&unix.SOCK_NONBLOCK != 0 {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = fill(fd)
	}
	if err != nil {
		for _, x := range []int{fd, ours, theirs} {
			_ = unix.Close(x)
		}
		return nil, -1, err
	}
	prog.Own(ours, true)
	prog.Own(theirs, true)
	return &channel{prog: prog, ours: ours, theirs: theirs}, fd, nil
}

// aboveStandard sets the close-on-exec flag of a descriptor, and returns its number, which is a new
// one if it was below firstOwn.
func aboveStandard(fd int) (int, error) {
	if fd >= firstOwn {
		unix.CloseOnExec(fd)
		return fd, nil
	}
	above, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstOwn)
	if err != nil {
		return fd, err
	}
	_ = unix.Close(fd)
	return above, nil
}

// fill uses up the send buffer of a socket, so that poll never reports the socket as writable, as
// it never does for the kernel's descriptors. The smallest buffer of Linux has room for two
// packets.
func fill(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 0); err != nil {
		return err
	}
	for range 64 {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		switch n, err := unix.Poll(fds, 0); {
		case err == unix.EINTR:
			continue
		case err != nil || n == 0:
			return err
		}
		err := unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT, nil)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			return err
		}
	}
	return unix.ENOBUFS
}

// send writes an event. It never waits: events that do not fit into the sockets are written later,
// in order.
func (c *channel) send(event []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if len(c.backlog) == 0 && !c.sending {
		if c.write(event) {
			return
		}
	}
	c.keep(event)
}

// write writes an event, and returns false if there is no room. The event is lost if the program
// has called shutdown, which must not end the program with SIGPIPE. mu is held.
func (c *channel) write(event []byte) bool {
	err := unix.EINTR
	for err == unix.EINTR {
		err, _ = unix.Sendto(c.ours, event, unix.MSG_NOSIGNAL, nil).(unix.Errno)
	}
	return err == 0 || err == unix.EPIPE
}

// keep adds an event to the backlog. mu is held.
func (c *channel) keep(event []byte) {
	c.backlog = append(c.backlog, append([]byte(nil), event...))
	if !c.sending {
		c.sending = true
		go c.drain()
	}
}

// drain writes the backlog whenever there is room.
func (c *channel) drain() {
	for {
		c.mu.Lock()
		for len(c.backlog) > 0 && !c.closed {
			if !c.write(c.backlog[0]) {
				break
			}
			c.backlog = c.backlog[1:]
		}
		if len(c.backlog) == 0 || c.closed {
			c.backlog, c.sending = nil, false
			c.mu.Unlock()
			return
		}
		fds := []unix.PollFd{{Fd: int32(c.ours), Events: unix.POLLOUT}}
		c.mu.Unlock()
		_, _ = unix.Poll(fds, backlogLook)
	}
}

// backlogLook is how long drain waits, in milliseconds, before it checks again whether the channel
// is closed.
const backlogLook = 100

// offer writes an event if there is room, and reports whether there was. Unlike send, it does not
// store the event for later.
func (c *channel) offer(event []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.write(event)
}

// take removes one unread event, if there is one.
func (c *channel) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.unread(make([]byte, maxEvent))
	}
}

// unread moves the oldest event that the program has not read into room. n is 0 if there is none.
// mu is held.
func (c *channel) unread(room []byte) (n int) {
	for {
		n, _, err := unix.Recvfrom(c.theirs, room, unix.MSG_DONTWAIT)
		switch err {
		case nil:
			return n
		case unix.EINTR:
		default:
			return 0
		}
	}
}

// withdraw removes the unread events for which match returns true, and returns their number. The
// others stay in order. If the program reads at the same time, it may find the channel empty for a
// moment; a blocking read waits.
func (c *channel) withdraw(match func(event []byte) bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	var kept [][]byte
	room := make([]byte, maxEvent)
	for k := c.unread(room); k > 0; k = c.unread(room) {
		kept = append(kept, append([]byte(nil), room[:k]...))
	}
	kept = append(kept, c.backlog...)
	c.backlog = nil
	for _, event := range kept {
		if match(event) {
			n++
			continue
		}
		if len(c.backlog) == 0 {
			if c.write(event) {
				continue
			}
		}
		c.keep(event)
	}
	return n
}

// maxEvent is the size of the longest event, in bytes.
const maxEvent = 64

// close ends the channel: after the remaining events, the program reads the end of file.
func (c *channel) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for { // a socket that is closed with unread data resets its peer
		n, _, err := unix.Recvfrom(c.ours, make([]byte, 1), unix.MSG_DONTWAIT)
		if n <= 0 && err != unix.EINTR { // 0: the program has called shutdown
			break
		}
	}
	for _, fd := range []int{c.ours, c.theirs} {
		c.prog.Own(fd, false)
		_ = unix.Close(fd)
	}
}
