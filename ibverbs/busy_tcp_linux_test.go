package ibverbs_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// busyTCP is the comparison of BenchmarkBusyConnections: TCP connections that do the same, each
// with a goroutine at either end, as usual in Go programs.
type busyTCP struct {
	conns []*net.TCPConn
	took  [][]time.Duration
}

func dialBusyTCP(addr string, conns int) (*busyTCP, error) {
	t := &busyTCP{took: make([][]time.Duration, conns)}
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		t.conns = append(t.conns, c.(*net.TCPConn))
		if err := busyCubic(c.(*net.TCPConn)); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// busyCubic gives a connection the congestion control that the devices use.
func busyCubic(c *net.TCPConn) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) {
		failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return errors.Join(err, failed)
}

func (t *busyTCP) close() (err error) {
	for _, c := range t.conns {
		err = errors.Join(err, c.Close())
	}
	return err
}

// exchange makes all connections send and receive for the given time.
func (t *busyTCP) exchange(long time.Duration) (err error) {
	done := make(chan error)
	end := time.Now().Add(long)
	for i, c := range t.conns {
		go func() {
			took := t.took[i][:0]
			var message [busyOctets]byte
			for sent := time.Now(); ; {
				_, err := c.Write(message[:])
				if err == nil {
					_, err = io.ReadFull(c, message[:])
				}
				now := time.Now()
				took = append(took, now.Sub(sent))
				if err != nil || !now.Before(end) {
					t.took[i] = took
					done <- err
					return
				}
				sent = now
			}
		}()
	}
	for range t.conns {
		err = errors.Join(err, <-done)
	}
	return err
}

// serveBusyTCP prints an address, accepts all connections there, and starts their answering.
func serveBusyTCP(conns int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr())
	for range conns {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if err := busyCubic(c.(*net.TCPConn)); err != nil {
			return err
		}
		go func() {
			defer c.Close()
			var message [busyOctets]byte
			for {
				if _, err := io.ReadFull(c, message[:]); err != nil {
					return // the other process has closed it
				}
				if _, err := c.Write(message[:]); err != nil {
					return
				}
			}
		}()
	}
	return nil
}
