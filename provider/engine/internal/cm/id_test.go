package cm

import (
	"fmt"
	"net/netip"
	"reflect"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestProgramsFindOnlyTheInterfaces: an id and an event channel have no exported methods but those
// of package provider's interfaces. A program could call any other through an interface of its own.
func TestProgramsFindOnlyTheInterfaces(t *testing.T) {
	check := func(has reflect.Type, allowed ...reflect.Type) {
		may := make(map[string]bool)
		for _, i := range allowed {
			for m := range i.NumMethod() {
				may[i.Method(m).Name] = true
			}
		}
		for m := range has.NumMethod() {
			if name := has.Method(m).Name; !may[name] {
				t.Errorf("%v has a method %s", has, name)
			}
		}
	}
	check(reflect.TypeFor[*ID](), reflect.TypeFor[provider.ID](),
		reflect.TypeFor[provider.ListenerStater]())
	check(reflect.TypeFor[*EventChannel](), reflect.TypeFor[provider.EventChannel]())
}

// TestStatesHaveNames: no two states have the same name.
func TestStatesHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for s := idIdle; s <= idClosed; s++ {
		if seen[fmt.Sprint(s)] || fmt.Sprint(s) == "" {
			t.Errorf("state %d is called %q", uint8(s), s)
		}
		seen[fmt.Sprint(s)] = true
	}
}

// TestNotBoundTexts: what a link-local address lacks is not said of other refusals.
func TestNotBoundTexts(t *testing.T) {
	for _, addr := range []string{"fe80::1", "fe80::1%lo"} {
		err := whyNotBound(netip.MustParseAddr(addr), syscall.EACCES)
		if err == nil || err.Error() != syscall.EACCES.Error() {
			t.Errorf("bind to %s without the right to: %v", addr, err)
		}
	}
}
