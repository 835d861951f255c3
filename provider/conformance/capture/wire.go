package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/conformance"
)

// rcvbufBytes is how much the kernel may queue for us: several of the largest
// messages of the suite.
const rcvbufBytes = 64 << 20

// quiet is how long no packet must have come for a run's packets to be complete.
const quiet = 30 * time.Millisecond

// Wire captures on a network interface with a packet socket, which needs
// CAP_NET_RAW.
type Wire struct {
	Interface string // "lo" for traffic between local addresses
}

// Source implements conformance.Capturer.
func (w *Wire) Source() string { return "wire" }

// Usable reports why a packet socket can't be opened, nil if it can.
func (w *Wire) Usable() error {
	fd, _, err := w.open()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Start implements conformance.Capturer. Packets are recorded from when it
// returns.
func (w *Wire) Start(port uint16) (conformance.Capture, error) {
	fd, ifc, err := w.open()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	r := &wireCapture{
		file: f, raw: raw, name: ifc.Name, port: layers.TCPPort(port),
		loopback: ifc.Flags&net.FlagLoopback != 0, last: time.Now(), done: make(chan struct{}),
	}
	go r.loop()
	return r, nil
}

func (w *Wire) open() (int, *net.Interface, error) {
	ifc, err := net.InterfaceByName(w.Interface)
	if err != nil {
		return -1, nil, fmt.Errorf("interface %s: %w", w.Interface, err)
	}
	const proto = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: packet sockets need root or CAP_NET_RAW", err)
		}
		return -1, nil, fmt.Errorf("packet socket: %w", err)
	}
	// The first may need a privilege that CAP_NET_RAW does not include; then
	// the second gives what the system's limit allows.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvbufBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, rcvbufBytes)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifc.Index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("packet socket on %s: %w", w.Interface, err)
	}
	return fd, ifc, nil
}

// wireCapture is a recording under way.
type wireCapture struct {
	file interface {
		Close() error
		SetReadDeadline(time.Time) error
	}
	raw interface {
		Read(func(fd uintptr) bool) error
		Control(func(fd uintptr)) error
	}
	name     string
	port     layers.TCPPort
	loopback bool
	done     chan struct{}

	mu      sync.Mutex
	packets []packet
	last    time.Time // when the last packet came
	err     error
}

func (c *wireCapture) loop() {
	defer close(c.done)
	buf := make([]byte, 1<<18) // GSO lets packets on lo exceed 64 KiB
	oob := make([]byte, 256)
	for {
		var n, oobn int
		var from unix.Sockaddr
		var rerr error
		err := c.raw.Read(func(fd uintptr) bool {
			n, oobn, _, from, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_TRUNC)
			return !errors.Is(rerr, unix.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return
		case err == nil:
			err = rerr
		}
		if err != nil {
			c.fail(fmt.Errorf("packet socket: %w", err))
			return
		}
		if n > len(buf) {
			c.fail(fmt.Errorf("a packet of %d octets is longer than the capture buffer", n))
			return
		}
		c.take(buf[:n], oob[:oobn], from)
	}
}

// take keeps a packet of the run. On loopback each packet is seen on its way
// out and on its way in; one of the two is enough.
func (c *wireCapture) take(data, oob []byte, from unix.Sockaddr) {
	if ll, ok := from.(*unix.SockaddrLinklayer); ok && c.loopback && ll.Pkttype == unix.PACKET_OUTGOING {
		return
	}
	p := gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || tcp.SrcPort != c.port && tcp.DstPort != c.port {
		return
	}
	pkt := packet{time: stampOf(oob), data: append([]byte(nil), data...)}
	c.mu.Lock()
	c.packets = append(c.packets, pkt)
	c.last = time.Now()
	c.mu.Unlock()
}

// stampOf finds the kernel's time of a packet.
func stampOf(oob []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

func (c *wireCapture) fail(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
}

// Stop implements conformance.Capture. It waits for a moment without packets, so
// that the end of the connection is in the file.
func (c *wireCapture) Stop(name string) error {
	for limit := time.Now().Add(time.Second); time.Now().Before(limit); time.Sleep(quiet / 10) {
		c.mu.Lock()
		still := time.Since(c.last) >= quiet
		c.mu.Unlock()
		if still {
			break
		}
	}
	dropped := c.dropped()
	_ = c.file.SetReadDeadline(time.Now())
	<-c.done
	_ = c.file.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if dropped > 0 {
		return fmt.Errorf("the kernel dropped %d packets: the capture is not complete", dropped)
	}
	return writeOne(name, c.name, "", layers.LinkTypeEthernet, c.packets)
}

// dropped asks how many packets did not fit the socket's queue.
func (c *wireCapture) dropped() uint32 {
	var n uint32
	_ = c.raw.Control(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = s.Drops
		}
	})
	return n
}
