package ibverbs_test

import (
	"log"
	"net/netip"
	"os"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// open opens a device and returns an address to listen at. Only this function depends on the
// provider: with GOVS_PROVIDER=kernel, and GOVS_ADDR set to an address of the interface under the
// device, the examples run on siw.
func open() (*ibverbs.Context, netip.AddrPort) {
	if os.Getenv("GOVS_PROVIDER") == "kernel" {
		vctx, err := ibverbs.Open(kernel.New(), os.Getenv("GOVS_DEVICE"))
		check(err)
		addr, err := netip.ParseAddr(os.Getenv("GOVS_ADDR"))
		check(err)
		return vctx, netip.AddrPortFrom(addr, 0)
	}
	vctx, err := ibverbs.Open(engine.New(&engine.Options{StartupTimeout: patience}), "")
	check(err)
	return vctx, netip.MustParseAddrPort("127.0.0.1:0")
}

// check ends the program if something failed.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
