//go:build linux

package rdmacm_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/kernel"
)

// TestPortZeroOnSiw: the range of local ports has two, and a TCP socket listens on one of them. The
// kernel may bind an id with port 0 to either, because it checks only the ports of other ids. siw
// refuses to listen on the port that TCP has (kernel-notes/siw-port-zero.md). Listen takes the
// other.
func TestPortZeroOnSiw(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.NeedKernelProvider(t, kernel.Available)
		vmtest.Self(t, vmtest.Options{})
		return
	}
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	old := testkit.Must(os.ReadFile(ports))(t)
	vctx := testkit.Must(ibverbs.Open(kernel.New(), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	addr := netip.MustParseAddrPort("192.0.2.1:0")

	occupied, free := 47110, 47111
	l := testkit.Must(net.Listen("tcp", fmt.Sprintf("%v:%d", addr.Addr(), occupied)))(t)
	defer l.Close()
	testkit.OK(t, os.WriteFile(ports, fmt.Appendf(nil, "%d %d\n", occupied, free), 0))
	defer func() { testkit.OK(t, os.WriteFile(ports, old, 0)) }()

	refused := 0
	for range 6 {
		ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
		id := testkit.Must(ch.CreateID(nil))(t)
		testkit.OK(t, id.BindAddr(addr))
		at := int(id.LocalAddr().Port())
		err := id.Listen(1)
		switch {
		case at == free:
			testkit.OK(t, err)
		case at == occupied:
			refused++
			wantErr(t, "a port that TCP has", err, syscall.EADDRINUSE, "rdma_listen", "TCP socket has it")
		default:
			t.Errorf("the kernel chose port %d, which is not in the range", at)
		}
		testkit.OK(t, id.Close())
		testkit.OK(t, ch.Close())
	}
	if refused == 0 {
		t.Error("the kernel never chose the port that TCP has: kernel-notes/siw-port-zero.md is out of date")
	}
	t.Logf("%d of 6 listeners on port 0 were refused (range %s)", refused, strings.TrimSpace(string(old)))

	for range 6 {
		l := testkit.Must(rdmacm.Listen(t.Context(), vctx, addr, nil))(t)
		if at := int(l.Addr().Port()); at != free {
			t.Errorf("Listen took port %d, and only %d is free", at, free)
		}
		testkit.OK(t, l.Close())
	}
}
