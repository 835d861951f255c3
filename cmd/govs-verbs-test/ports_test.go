package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
)

// Ports for listeners of tests are below the ports that Linux gives to connecting sockets, and
// above the ports that the suite uses.
const (
	firstPort = 26000
	ports     = 6000
)

// reserved has the sockets that reserve ports for this process, and how many were tried.
var reserved struct {
	sync.Mutex
	next  int
	socks []net.Listener
}

// freePort returns a port for a listener of the test. Nothing listens on it, and freePort does not
// return it again, in any process, as long as this process runs, because connections that a kernel
// listener has accepted keep its port for a while. C programs can't use port 0, because they don't
// print the port that they got.
func freePort() uint16 {
	reserved.Lock()
	defer reserved.Unlock()
	for range ports {
		port := uint16(firstPort + (os.Getpid()*61+reserved.next)%ports)
		reserved.next++
		if sock, ok := reserve(port); ok {
			reserved.socks = append(reserved.socks, sock)
			return port
		}
	}
	panic(fmt.Sprintf("all ports from %d on are in use: %d, of which this process has %d",
		firstPort, ports, len(reserved.socks)))
}

// reserve reserves a port if nobody has it. A socket reserves it with a name in Linux's abstract
// namespace that has the port in it: a name exists once in a network namespace, and ends with the
// process.
func reserve(port uint16) (sock net.Listener, ok bool) {
	sock, err := net.Listen("unix", fmt.Sprintf("@govs-test-port-%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, false
	}
	if err != nil {
		panic(err)
	}
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		_ = sock.Close()
		return nil, false
	}
	_ = tcp.Close()
	return sock, true
}

// TestFreePort tries ports that others have reserved, and ports that others listen on.
func TestFreePort(t *testing.T) {
	port := freePort()
	if _, ok := reserve(port); ok {
		t.Errorf("port %d is reserved twice", port)
	}
	other := freePort()
	if other == port {
		t.Errorf("port %d is returned twice", port)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, ok := reserve(uint16(l.Addr().(*net.TCPAddr).Port)); ok {
		t.Errorf("%v is reserved while somebody listens on it", l.Addr())
	}
}
