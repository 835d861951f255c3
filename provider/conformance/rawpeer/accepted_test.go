package rawpeer

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestWaitAccepted(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	p, err := Dial(t.Context(), netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.WaitAccepted(5 * time.Millisecond); err == nil {
		t.Error("nobody has accepted it, and there is no error")
	}
	done := make(chan error, 1)
	go func() { done <- p.WaitAccepted(time.Minute) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReadAcceptQueue(t *testing.T) {
	const (
		head   = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
		listen = "   0: 0100007F:4E21 00000000:0000 0A 00000000:00000013 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
		other  = "   1: 0100007F:4E22 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
		open   = "   2: 0100007F:4E21 0100007F:9999 01 00000000:00000100 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
		broken = "   3: 0100007F:4E21 00000000:0000 0A 00000000:zz 00:00000000 00000000     0        0 1\n"
	)
	for _, tc := range []struct {
		text string
		want int
		ok   bool
	}{
		{"", 0, true},
		{head, 0, true},
		{head + listen + other + open, 0x13, true},
		{head + listen + listen, 0x26, true},
		{head + listen + open + listen, 0x13, true}, // sockets that listen come first
		{head + broken, 0, false},
	} {
		got, err := readAcceptQueue(strings.NewReader(tc.text), 20001)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("of %q: %d, %v", tc.text, got, err)
		}
	}
}
