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

// Ports for listeners of tests are below those that Linux gives to sockets that connect, and above
// those that the suite takes.
const (
	firstPort = 26000
	ports     = 6000
)

// reserved are the sockets that reserve ports for this process, and how many were tried.
var reserved struct {
	sync.Mutex
	next  int
	socks []net.Listener
}

// freePort returns a port for a listener of the test. Nothing listens on it, and no freePort
// returns it again, in this process or in another one, as long as this one runs: what a listener of
// the kernel has accepted keeps its port for a while. C programs can't be given port 0, because
// they don't print which one they got.
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

// reserve takes a port, if nobody has it. What reserves it is a socket with the port in its name,
// in the abstract names of Linux: there is one of a name in a network namespace, and it ends with
// the process.
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

// TestFreePort has ports that others have reserved, and that others listen on.
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
