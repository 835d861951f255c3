package auto

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

func TestChoose(t *testing.T) {
	with := func(change func(*fakeDevice)) fakeDevice {
		d := usable("dev0")
		change(&d)
		return d
	}
	fails := func(call string, err error) fakeDevice {
		return with(func(d *fakeDevice) { d.fails = map[string]error{call: err} })
	}
	addr := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct {
		fake fake
		addr netip.Addr
		want string // "" if choose must return the fallback
		why  []string
	}{
		"a usable device":             {fake: fake{devices: []fakeDevice{usable("dev0")}}, want: "dev0", why: []string{"fake: dev0 is usable"}},
		"no devices":                  {why: []string{"engine: ", "there is none"}},
		"devices can't be listed":     {fake: fake{err: errors.New("no headers")}, why: []string{"engine: ", "no headers"}},
		"no rights to open":           {fake: fake{devices: []fakeDevice{fails("ibv_open_device", syscall.EACCES)}}, why: []string{"dev0: ibv_open_device: permission denied"}},
		"port can't be queried":       {fake: fake{devices: []fakeDevice{fails("ibv_query_port", syscall.EIO)}}, why: []string{"dev0: input/output error"}},
		"port down":                   {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.state = provider.PortDown })}}, why: []string{"dev0: its port is"}},
		"InfiniBand":                  {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.transport = provider.TransportIB })}}, why: []string{"dev0 is not an iWARP device"}},
		"no PD":                       {fake: fake{devices: []fakeDevice{fails("ibv_alloc_pd", syscall.ENOMEM)}}, why: []string{"ibv_alloc_pd: cannot allocate memory"}},
		"no completion channel":       {fake: fake{devices: []fakeDevice{fails("ibv_create_comp_channel", syscall.EMFILE)}}, why: []string{"ibv_create_comp_channel"}},
		"no CQ":                       {fake: fake{devices: []fakeDevice{fails("ibv_create_cq", syscall.ENOMEM)}}, why: []string{"ibv_create_cq"}},
		"no QP":                       {fake: fake{devices: []fakeDevice{fails("ibv_create_qp", syscall.ENOMEM)}}, why: []string{"ibv_create_qp"}},
		"no connection manager":       {fake: fake{devices: []fakeDevice{fails("rdma_create_event_channel", syscall.ENOENT)}}, why: []string{"rdma_create_event_channel"}},
		"no id":                       {fake: fake{devices: []fakeDevice{fails("rdma_create_id", syscall.ENODEV)}}, why: []string{"rdma_create_id"}},
		"the second is usable":        {fake: fake{devices: []fakeDevice{fails("ibv_create_qp", syscall.ENOMEM), usable("dev1")}}, want: "dev1"},
		"each that is not says why":   {fake: fake{devices: []fakeDevice{fails("ibv_create_qp", syscall.ENOMEM), {name: "dev1"}}}, why: []string{"dev0: ibv_create_qp", "; dev1 is not an iWARP device"}},
		"leads to the address":        {fake: fake{devices: []fakeDevice{usable("dev0")}}, addr: addr, want: "dev0", why: []string{"leads to 192.0.2.1"}},
		"any address":                 {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.leadsTo = "" })}}, addr: netip.IPv4Unspecified(), want: "dev0"},
		"doesn't resolve the address": {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.leadsTo = "" })}}, addr: addr, why: []string{"doesn't lead to 192.0.2.1: ", "ADDR_ERROR"}},
		"refuses the address":         {fake: fake{devices: []fakeDevice{fails("rdma_resolve_addr", syscall.ENODEV)}}, addr: addr, why: []string{"no such device"}},
		"the address is another's":    {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.leadsTo = "dev7" })}}, addr: addr, why: []string{`"dev7" does`}},
		"the address is the second's": {fake: fake{devices: []fakeDevice{with(func(d *fakeDevice) { d.leadsTo = "dev1" }), usable("dev1")}}, addr: addr, want: "dev1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := choose(&c.fake, engine.New(nil), Options{Addr: c.addr})
			name, device := "engine", engine.DeviceName
			if c.want != "" {
				name, device = "fake", c.want
			}
			if p.Name() != name {
				t.Errorf("took %s (%s), want %s", p.Name(), p.Why(), name)
			}
			if c.fake.open != 0 {
				t.Errorf("%d objects left open", c.fake.open)
			}
			for _, part := range c.why {
				if !strings.Contains(p.Why(), part) {
					t.Errorf("why %q, want %q in it", p.Why(), part)
				}
			}
			dev, err := p.Open("")
			if err != nil {
				t.Fatal(err)
			}
			if dev.Name() != device {
				t.Errorf("opened %s, want %s", dev.Name(), device)
			}
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenByName(t *testing.T) {
	f := &fake{devices: []fakeDevice{usable("dev0"), usable("dev1")}}
	p := choose(f, engine.New(nil), Options{})
	if dev, err := p.Open("dev1"); err != nil || dev.Name() != "dev1" {
		t.Errorf("Open(dev1) = %v, %v", dev, err)
	}
	if _, err := p.Open("dev2"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Open(dev2): %v, want ENODEV", err)
	}
}

// On every host New chooses a device and gives a reason.
func TestNew(t *testing.T) {
	p := New(nil)
	t.Log(p.Why())
	if !strings.HasPrefix(p.Why(), p.Name()+": ") || strings.Contains(p.Why(), "\n") {
		t.Errorf("why %q of %s", p.Why(), p.Name())
	}
	if p.Name() == "engine" && !strings.Contains(p.Why(), "no usable device of the kernel: ") {
		t.Errorf("why %q does not say what is wrong with the kernel's devices", p.Why())
	}
	vctx, err := ibverbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	if vctx.Provider() != p.Name() {
		t.Errorf("opened a device of %s", vctx.Provider())
	}
	if err := vctx.Close(); err != nil {
		t.Error(err)
	}
}

// TestSiw tests the choice with a working device, with a device without a route to the address, and
// with one whose interface is down.
func TestSiw(t *testing.T) {
	vmtest.NeedKernelProvider(t, kernel.Available)
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{})
		return
	}
	want := func(opts *Options, name, device, why string) {
		t.Helper()
		p := New(opts)
		t.Log(p.Why())
		if !strings.Contains(p.Why(), why) {
			t.Errorf("why %q, want %q in it", p.Why(), why)
		}
		vctx, err := ibverbs.Open(p, "")
		if err != nil {
			t.Fatal(err)
		}
		if vctx.Provider() != name || vctx.Name() != device {
			t.Errorf("opened %s of %s, want %s of %s", vctx.Name(), vctx.Provider(), device, name)
		}
		if err := vctx.Close(); err != nil {
			t.Error(err)
		}
	}
	want(nil, "kernel", "siw0", "siw0 is usable")
	want(&Options{Addr: netip.MustParseAddr("192.0.2.1")}, "kernel", "siw0", "leads to 192.0.2.1")
	want(&Options{Addr: netip.MustParseAddr("127.0.0.1")}, "engine", engine.DeviceName, "siw0: doesn't lead to 127.0.0.1")
	set := func(state string) {
		t.Helper()
		if out, err := exec.Command("ip", "link", "set", "d0", state).CombinedOutput(); err != nil {
			t.Fatalf("ip link set d0 %s: %v: %s", state, err, out)
		}
	}
	set("down")
	defer set("up") // other tests use the same guest
	want(nil, "engine", engine.DeviceName, "siw0: its port is")
}

// TestNamed: each name returns its provider, the engine gets its options, and another name returns
// an error that lists the names.
func TestNamed(t *testing.T) {
	opts := &Options{Engine: &engine.Options{Extensions: true}}
	for _, name := range []string{"engine", "kernel"} {
		p, err := Named(name, opts)
		if err != nil || p.Name() != name {
			t.Errorf("Named(%q): %v, %v", name, p, err)
		}
	}
	p, err := Named("auto", opts)
	if _, ok := p.(*Provider); !ok || err != nil {
		t.Errorf("Named(auto): %T, %v, want what New returns", p, err)
	}
	for _, c := range []struct {
		opts *Options
		want ibverbs.AtomicCap
	}{{nil, ibverbs.AtomicNone}, {opts, ibverbs.AtomicGlob}} {
		p, err := Named("engine", c.opts)
		if err != nil {
			t.Fatal(err)
		}
		vctx, err := ibverbs.Open(p, "")
		if err != nil {
			t.Fatal(err)
		}
		attr, err := vctx.Query()
		if err != nil || (attr.AtomicCap == ibverbs.AtomicNone) != (c.want == ibverbs.AtomicNone) {
			t.Errorf("the engine with %+v: %v, %v", c.opts, attr.AtomicCap, err)
		}
		if err := vctx.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "Engine", "siw0"} {
		p, err := Named(name, nil)
		if p != nil || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(),
			"engine, kernel and auto") {
			t.Errorf("Named(%q): %v, %v, want EINVAL", name, p, err)
		}
	}
}

// TestNilAndZeroValues: methods of a nil or zero Provider, and Try of a nil provider, return errors
// that say so.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: time.Minute}
	empty.Zeros(t, &Provider{})
	empty.Func(t, "Try", Try)
}
