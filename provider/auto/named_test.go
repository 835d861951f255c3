package auto

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

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
