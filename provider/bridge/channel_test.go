package bridge

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestChannelPoll: the program's end of a channel is readable while there are events, and never
// writable. When the channel is closed, it ends after the remaining events.
func TestChannelPoll(t *testing.T) {
	c, fd, err := newChannel(newProgram(t), unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	polled := func() int16 {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		if _, err := unix.Poll(fds, 0); err != nil {
			t.Fatal(err)
		}
		return fds[0].Revents
	}
	if got := polled(); got != 0 {
		t.Errorf("without an event poll says %#x", got)
	}
	c.send([]byte{1, 2})
	if got := polled(); got != unix.POLLIN {
		t.Errorf("with an event poll says %#x", got)
	}
	c.close()
	var b [8]byte
	for _, want := range []int{2, 0} {
		if n, err := unix.Read(fd, b[:]); n != want || err != nil {
			t.Errorf("read: %d, %v, want %d", n, err, want)
		}
	}
}

// TestChannelShutDown: a program that calls shutdown on its end does not delay the end of the
// channel.
func TestChannelShutDown(t *testing.T) {
	c, fd, err := newChannel(newProgram(t), unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		c.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("close does not return")
	}
}

// TestChannelNotRead: events for a program that has called shutdown for reading are lost, and no
// goroutine retries them.
func TestChannelNotRead(t *testing.T) {
	c, fd, err := newChannel(newProgram(t), unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	defer c.close()
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	c.send([]byte{1})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending || len(c.backlog) > 0 {
		t.Errorf("%d events are kept", len(c.backlog))
	}
}
