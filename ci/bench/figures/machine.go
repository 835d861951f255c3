package figures

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loopback works in a network namespace that the script run makes.
var loopback = netip.MustParseAddr("127.0.0.1")

// said returns what a command printed as an error, or nil.
func said(text []byte) error {
	if s := strings.TrimSpace(string(text)); s != "" {
		return errors.New(s)
	}
	return nil
}

// segment sends some data over TCP to an address, and returns the sender's MSS after that, in
// bytes of payload.
func segment(ctx context.Context, addr netip.Addr) (mss int, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	got := make(chan error, 1)
	go func() { got <- drain(l) }()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	_, err = c.Write(make([]byte, 4*mib))
	if err == nil {
		mss, err = segmentOf(c.(*net.TCPConn))
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return 0, err
	}
	return mss, <-got
}

// drain reads one connection to its end.
func drain(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	buf := make([]byte, mib)
	for err == nil {
		_, err = c.Read(buf)
	}
	return c.Close()
}

func segmentOf(c *net.TCPConn) (mss int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var opt error
	err = raw.Control(func(fd uintptr) {
		mss, opt = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	})
	return mss, errors.Join(err, opt)
}

// cpuModel returns the kernel's name of the processor.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown" // arm64 has no name there
}

// Machine describes the machine as far as figures depend on it.
func Machine() map[string]any {
	return map[string]any{
		"CPUs": runtime.NumCPU(), "CPU model": cpuModel(), "Go": runtime.Version(),
		"date": time.Now().UTC().Format(time.DateOnly),
	}
}
