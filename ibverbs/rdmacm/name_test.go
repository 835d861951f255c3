package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// noDNS is a resolver that uses the system's files and asks no server.
var noDNS = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no name servers here")
}}

// listenName listens at an address, by name, and serves all connections.
func listenName(t *testing.T, ctx context.Context, vctx *ibverbs.Context, address string) netip.AddrPort {
	t.Helper()
	l := testkit.Must(rdmacm.ListenName(ctx, vctx, address, &rdmacm.ListenConfig{Resolver: noDNS}))(t)
	wait := serve(t, ctx, l)
	t.Cleanup(func() {
		testkit.OK(t, l.Close())
		wait()
	})
	return l.Addr()
}

// dialName dials by name, checks the peer's address, and ends the connection.
func dialName(t *testing.T, ctx context.Context, vctx *ibverbs.Context, address string, want netip.AddrPort) {
	t.Helper()
	c, err := rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{Resolver: noDNS})
	if err != nil {
		t.Errorf("DialName %q: %v", address, err)
		return
	}
	// The peer's zone is as the program wrote it.
	if got := c.RemoteAddr(); got.Port() != want.Port() || got.Addr().WithZone("") != want.Addr().WithZone("") {
		t.Errorf("DialName %q led to %v, want %v", address, c.RemoteAddr(), want)
	}
	testkit.OK(t, c.Shutdown(ctx))
	testkit.OK(t, c.Close())
}

func port(a netip.AddrPort) string {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), a.Port()).String()[len("0.0.0.0:"):]
}

// ip runs the command ip. It changes nothing in a machine's own network, because it runs in a
// namespace or in the guest.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
}

// namedHost describes a host, by name and by its two addresses. With the engine it is this host. A
// device of the kernel serves only its own interface, so in the guest that interface gets an IPv6
// address (RFC 3849), and the system's hosts file a name.
func namedHost(t *testing.T, addr netip.AddrPort) (name string, four, six netip.Addr) {
	t.Helper()
	if !onKernel() {
		return "localhost", addr.Addr(), netip.IPv6Loopback()
	}
	name, six = "govs.test", netip.MustParseAddr("2001:db8::1")
	ip(t, "address replace "+six.String()+"/64 dev "+ondevice.Netdev()+" nodad")
	t.Cleanup(func() { ip(t, "address delete "+six.String()+"/64 dev "+ondevice.Netdev()) })
	before := testkit.Must(os.ReadFile("/etc/hosts"))(t)
	with := fmt.Appendf(bytes.Clone(before), "\n%s %s\n%s %s\n", addr.Addr(), name, six, name)
	testkit.OK(t, os.WriteFile("/etc/hosts", with, 0o644))
	t.Cleanup(func() { testkit.OK(t, os.WriteFile("/etc/hosts", before, 0o644)) })
	return name, addr.Addr(), six
}

// TestNames: addresses, names with several addresses of which one has a listener, and no host.
func TestNames(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	name, four, six := namedHost(t, addr)
	none := []string{""} // means the loopback, where no kernel device is
	all := []string{":0", "*:0"}
	if onKernel() {
		none = nil
	}
	if onSiw() {
		all = nil // connections from this host use lo, where siw does not listen
	}

	at := listenName(t, ctx, vctx, four.String()+":0")
	for _, host := range append(none, four.String(), name, "[::ffff:"+four.String()+"]") {
		dialName(t, ctx, vctx, host+":"+port(at), netip.AddrPortFrom(four, at.Port()))
	}
	at = listenName(t, ctx, vctx, "["+six.String()+"]:0")
	for _, host := range append(none, "["+six.String()+"]") {
		dialName(t, ctx, vctx, host+":"+port(at), netip.AddrPortFrom(six, at.Port()))
	}
	for _, address := range all {
		at = listenName(t, ctx, vctx, address)
		dialName(t, ctx, vctx, four.String()+":"+port(at), netip.AddrPortFrom(four, at.Port()))
		dialName(t, ctx, vctx, "["+six.String()+"]:"+port(at), netip.AddrPortFrom(six, at.Port()))
	}
	at = listenName(t, ctx, vctx, name+":0")
	dialName(t, ctx, vctx, name+":"+port(at), at)
}

func TestBadNames(t *testing.T) {
	ctx := timeout(t)
	vctx, _ := device(t)
	for _, address := range []string{"", "localhost", "::1:7471", "localhost:no-such-service", "localhost:99999", "no-such-host.invalid:7471", "192.0.2.256:1"} {
		_, err := rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{Resolver: noDNS})
		var call *ibverbs.Error
		if !errors.As(err, &call) || call.Object != address {
			t.Errorf("DialName %q: %v, want an error that names it", address, err)
		}
		_, err = rdmacm.ListenName(ctx, vctx, address, &rdmacm.ListenConfig{Resolver: noDNS})
		if !errors.As(err, &call) || call.Object != address {
			t.Errorf("ListenName %q: %v, want an error that names it", address, err)
		}
	}
	_, err := rdmacm.DialName(ctx, vctx, "::1:7471", nil)
	wantErr(t, "IPv6 without brackets", err, syscall.EINVAL, "too many colons", "needs brackets, as in [::1]:7471")
	_, err = rdmacm.DialName(ctx, vctx, "no-such-host.invalid:7471", &rdmacm.ConnConfig{Resolver: noDNS})
	var dns *net.DNSError
	if !errors.As(err, &dns) || dns.Name != "no-such-host.invalid" {
		t.Errorf("a name that nobody has: %v", err)
	}
	_, err = rdmacm.DialName(ctx, vctx, "127.0.0.1:http", nil) // no MPA there
	wantErr(t, "the name of a service", err, err, "127.0.0.1:80")
	if err == nil {
		t.Error("connected to a web server")
	}

	_, err = rdmacm.DialName(ctx, vctx, "127.0.0.1:1", &rdmacm.ConnConfig{LocalAddr: netip.MustParseAddrPort("[::1]:0")})
	if err == nil {
		t.Error("from IPv6 to IPv4")
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := rdmacm.DialName(over, vctx, "localhost:1", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("DialName of a context that is over: %v", err)
	}
	if _, err := rdmacm.ListenName(over, vctx, "localhost:0", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ListenName of a context that is over: %v", err)
	}
}

// TestDialNameTellsOfEachAddress: if no address of a name works, the error has a reason for each.
func TestDialNameTellsOfEachAddress(t *testing.T) {
	ctx := timeout(t)
	vctx, _ := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("[::]:0"), nil))(t)
	p := port(l.Addr())
	testkit.OK(t, l.Close())
	_, err := rdmacm.DialName(ctx, vctx, ":"+p, nil)
	wantErr(t, "nobody listens", err, syscall.ECONNREFUSED, "[::1]:"+p, "127.0.0.1:"+p)
	_, err = rdmacm.ListenName(ctx, vctx, "192.0.2.77:7471", nil)
	wantErr(t, "not ours", err, syscall.EADDRNOTAVAIL, "192.0.2.77:7471")
}

// TestDialNameLeavesTimeForTheNext: an address that does not answer does not use up all the time.
func TestDialNameLeavesTimeForTheNext(t *testing.T) {
	t.Parallel()
	vctx, _ := device(t)
	ctx := timeout(t)
	var at netip.AddrPort
	var silent net.Listener // accepts connections, sends nothing
	for silent == nil {     // until the port is free on both addresses
		at = listenName(t, ctx, vctx, "127.0.0.1:0")
		silent, _ = net.Listen("tcp6", "[::1]:"+port(at))
		testkit.OK(t, ctx.Err())
	}
	defer silent.Close()
	p := port(at)
	testkit.Scaled(t, time.Second, func(given time.Duration) error {
		short, cancel := context.WithTimeout(t.Context(), given)
		defer cancel()
		c, err := rdmacm.DialName(short, vctx, ":"+p, nil)
		if err != nil {
			return err
		}
		if c.RemoteAddr() != at {
			t.Errorf("connected to %v", c.RemoteAddr())
		}
		return errors.Join(c.Shutdown(timeout(t)), c.Close())
	})
}

// linkLocalOf returns the link-local address of an interface.
func linkLocalOf(t *testing.T, name string) netip.Addr {
	t.Helper()
	dev := testkit.Must(net.InterfaceByName(name))(t)
	for _, a := range testkit.Must(dev.Addrs())(t) {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
			return p.Addr().WithZone(name)
		}
	}
	t.Fatalf("%s has no link-local address", name)
	panic("unreachable")
}

func testLinkLocal(t *testing.T, addr netip.Addr) {
	ctx := timeout(t)
	zone := addr.Zone()
	number := strconv.Itoa(testkit.Must(net.InterfaceByName(zone))(t).Index)
	host := func(zone string) string { return "[" + addr.WithZone(zone).String() + "]:" }
	for { // routing to a new address takes the kernel a moment
		l := testkit.Must(net.Listen("tcp", host(zone)+"0"))(t)
		c, err := net.Dial("tcp", host(zone)+port(l.Addr().(*net.TCPAddr).AddrPort()))
		_ = l.Close()
		if err == nil {
			_ = c.Close()
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	vctx, _ := device(t)
	at := listenName(t, ctx, vctx, host(zone)+"0")
	want := zone
	if onKernel() {
		want = number // as the kernel reports it
	}
	if at.Addr() != addr.WithZone(want) {
		t.Errorf("the listener is at %v", at)
	}
	dialName(t, ctx, vctx, at.String(), at)
	dialName(t, ctx, vctx, host(zone)+port(at), at)
	dialName(t, ctx, vctx, host(number)+port(at), at)

	c, err := rdmacm.DialName(ctx, vctx, host("")+port(at), nil)
	if onKernel() && err == nil { // rdma_resolve_addr takes the only route
		testkit.OK(t, c.Shutdown(ctx))
		testkit.OK(t, c.Close())
	} else {
		wantErr(t, "no zone", err, syscall.EINVAL)
	}
	_, err = rdmacm.DialName(ctx, vctx, host("nosuchif")+port(at), nil)
	wantErr(t, "a zone that isn't there", err, syscall.ENODEV)
	_, err = rdmacm.ListenName(ctx, vctx, host("nosuchif")+"0", nil)
	wantErr(t, "a zone that isn't there", err, syscall.ENODEV, "nosuchif")
}

// TestSetupAndOptions: Setup is called before the id is bound, options reach the provider, and an
// error ends Dial and Listen.
func TestSetupAndOptions(t *testing.T) {
	ctx := timeout(t)
	vctx, _ := device(t)
	var seen []netip.AddrPort
	setup := func(id *rdmacm.ID) error {
		seen = append(seen, id.LocalAddr())
		return id.SetOption(rdmacm.OptionTOS, 10<<2)
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), &rdmacm.ListenConfig{Setup: setup}))(t)
	wait := serve(t, ctx, l)
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Setup: setup}))(t)
	testkit.OK(t, c.Shutdown(ctx))
	wantErr(t, "after the end", c.ID().SetOption(rdmacm.OptionTOS, 0), syscall.EINVAL, "rdma_set_option")
	testkit.OK(t, c.Close())
	wantErr(t, "a closed id", c.ID().SetOption(rdmacm.OptionTOS, 0), os.ErrClosed)
	if len(seen) != 2 || seen[0].IsValid() || seen[1].IsValid() {
		t.Errorf("ids at Setup: %v", seen)
	}
	refuse := func(id *rdmacm.ID) error { return id.SetOption(rdmacm.OptionTOS, 256) }
	_, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Setup: refuse})
	wantErr(t, "Dial", err, syscall.EINVAL, "RDMA_OPTION_ID_TOS", "256")
	_, err = rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), &rdmacm.ListenConfig{Setup: refuse})
	wantErr(t, "Listen", err, syscall.EINVAL, "RDMA_OPTION_ID_TOS", "256")
	testkit.OK(t, l.Close())
	wait()
	var none *rdmacm.ID
	wantErr(t, "a nil id", none.SetOption(rdmacm.OptionTOS, 0), syscall.EINVAL)
}
