//go:build linux

package engine

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// tosOf asks the kernel for the traffic class of the TCP socket with these
// addresses; a remote that is not valid is a listener's.
func tosOf(t *testing.T, local, remote netip.AddrPort) int {
	t.Helper()
	addr := func(sa unix.Sockaddr, err error) netip.AddrPort {
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
		case *unix.SockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
		}
		return netip.AddrPort{}
	}
	for _, e := range testkit.Must(os.ReadDir("/proc/self/fd"))(t) {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || addr(unix.Getsockname(fd)) != local || addr(unix.Getpeername(fd)) != remote {
			continue
		}
		if local.Addr().Is6() {
			return testkit.Must(unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS))(t)
		}
		return testkit.Must(unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS))(t)
	}
	t.Fatalf("no socket %s to %s", local, remote)
	return 0
}

// TestTypeOfService: packets of an id have the type of service that it was given,
// whether the id was bound before or not, and a listener's connections have its.
func TestTypeOfService(t *testing.T) {
	onTCP(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.id()
		testkit.OK(t, l.BindAddr(w.addr))
		testkit.OK(t, l.SetOption(provider.IDOptionTOS, 46<<2|3)) // the lower two bits are TCP's
		testkit.OK(t, l.Listen(0))
		testkit.Equal(t, "the listener's TOS", tosOf(t, l.LocalAddr(), netip.AddrPort{}), 46<<2)
		for name, bound := range map[string]bool{"bound": true, "not bound": false} {
			id := w.active.id()
			if bound {
				testkit.OK(t, id.BindAddr(w.addr))
			}
			testkit.OK(t, id.SetOption(provider.IDOptionTOS, 10<<2))
			w.active.resolve(id, l.LocalAddr())
			testkit.OK(t, id.Connect(provider.ConnParam{}))
			server := w.meet("connected", id, l)
			testkit.Equal(t, name+": the initiator's TOS",
				tosOf(t, id.LocalAddr(), id.RemoteAddr()), 10<<2)
			testkit.Equal(t, name+": the responder's TOS",
				tosOf(t, server.LocalAddr(), server.RemoteAddr()), 46<<2)
			wantErr(t, id.SetOption(provider.IDOptionTOS, 0), syscall.EINVAL)
			wantErr(t, server.SetOption(provider.IDOptionTOS, 0), syscall.EINVAL)
			testkit.OK(t, id.Disconnect())
			w.wantDisconnected("disconnected", id, server)
		}
		wantErr(t, l.SetOption(provider.IDOptionTOS, 0), syscall.EINVAL)
	})
}

// TestAFOnly: a listener on every IPv6 address takes IPv4, too, unless its option says
// not to.
func TestAFOnly(t *testing.T) {
	for only, want := range map[int]provider.CMEventType{0: provider.CMConnectRequest, 1: provider.CMRejected} {
		onTCP(t, Options{}, func(t *testing.T, w *cmWorld) {
			l := w.server.id()
			testkit.OK(t, l.SetOption(provider.IDOptionAFOnly, only))
			testkit.OK(t, l.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)))
			wantErr(t, l.SetOption(provider.IDOptionAFOnly, only), syscall.EINVAL)
			testkit.OK(t, l.Listen(0))
			dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), l.LocalAddr().Port())
			client := w.active.connect(dst, provider.ConnParam{})
			if want == provider.CMRejected {
				w.active.want("IPv6 only", client, want, syscall.ECONNREFUSED)
				return
			}
			server, _ := w.server.wantRequest("both families", l)
			testkit.OK(t, server.Reject(nil))
			w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		})
	}
}

func TestBadIDOptions(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		id := w.active.id()
		for option, values := range map[provider.IDOption][]int{
			provider.IDOptionTOS: {-1, 256}, provider.IDOptionReuseAddr: {-1, 2}, provider.IDOptionAFOnly: {-1, 2}, provider.IDOptionAckTimeout: {-1, 32},
		} {
			for _, v := range values {
				wantErr(t, id.SetOption(option, v), syscall.EINVAL)
			}
		}
		wantErr(t, id.SetOption(4, 0), syscall.ENOSYS)
		wantErr(t, id.SetOption(-1, 0), syscall.ENOSYS)
		wantErr(t, id.SetOption(provider.IDOptionAckTimeout, 14), errors.ErrUnsupported)
		if w.fake {
			wantErr(t, id.SetOption(provider.IDOptionTOS, 1), errors.ErrUnsupported) // no sockets
			wantErr(t, id.SetOption(provider.IDOptionReuseAddr, 1), errors.ErrUnsupported)
		} else {
			testkit.OK(t, id.SetOption(provider.IDOptionReuseAddr, 1))
			testkit.OK(t, id.SetOption(provider.IDOptionReuseAddr, 0))
			testkit.OK(t, id.SetOption(provider.IDOptionTOS, 255))
		}
		testkit.OK(t, id.Close())
		wantErr(t, id.SetOption(provider.IDOptionReuseAddr, 1), os.ErrClosed)
	})
}
