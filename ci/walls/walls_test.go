// Package walls checks which packages of the project may import which: the
// directions that ARCHITECTURE.md draws.
package walls

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/govs-rdma/govs"

// allowed says what a package, or all packages below a folder if the name ends in "/...", may
// import of the project, besides packages below itself. The longest name that fits counts. A
// package that no name fits fails the test.
var allowed = map[string][]string{
	"provider":                  {},
	"provider/iwarp":            {},
	"provider/iwarp/mpa":        {"provider/iwarp"},
	"provider/iwarp/mpa/crc32c": {},
	"provider/iwarp/ddp":        {"provider/iwarp"},
	// RDMAP names errors of all layers, but only MPA has frames.
	"provider/iwarp/rdmap": {"provider/iwarp", "provider/iwarp/ddp"},
	"provider/engine": {"provider", "provider/iwarp/...",
		"provider/engine/transport"},
	"provider/engine/transport/...": {"provider/engine/transport", "provider/engine/internal/..."},
	"provider/engine/transport/transporttest": {"provider/engine/transport",
		"provider/engine/internal/...", "ci/testkit"},
	"provider/engine/memnet": {"provider/engine/transport", "provider/engine/internal/..."},
	// Locks and flags whose steps a test can order, and the list of locks in their order.
	"provider/engine/internal/sched": {},
	"provider/engine/internal/locks": {"provider/engine/internal/sched"},
	// Counts of an object's uses and dependants, and objects that are lent.
	"provider/engine/internal/rundown": {"provider/engine/internal/sched"},
	"provider/engine/internal/refs":    {},
	"provider/engine/internal/freelist": {"provider/engine/internal/sched", "provider/engine/internal/locks",
		"provider/engine/internal/policy"},
	// How streams share a poller's time.
	"provider/engine/internal/turns": {"provider/engine/internal/policy"},
	// Registered memory, which the engine uses.
	"provider/engine/internal/memory": {"provider", "provider/iwarp/ddp", "provider/iwarp/rdmap",
		"provider/engine/internal/locks", "provider/engine/internal/policy",
		"provider/engine/internal/refs", "provider/engine/internal/rundown",
		"provider/engine/internal/sched"},
	// The FPDUs of one write, which the engine fills and writes.
	"provider/engine/internal/frames": {"provider", "provider/iwarp/...",
		"provider/engine/internal/freelist", "provider/engine/internal/memory",
		"provider/engine/internal/policy"},
	// Connections until they are the engine's: ids, events, MPA's start-up.
	"provider/engine/internal/cm": {"provider", "provider/iwarp", "provider/iwarp/mpa",
		"provider/iwarp/rdmap", "provider/engine/transport", "provider/engine/internal/locks",
		"provider/engine/internal/refs", "provider/engine/internal/sched"},
	// Decisions of the engine, in pure functions.
	"provider/engine/internal/policy": {},
	"provider/kernel":                 {"provider", "cgo/..."},
	"provider/kernel/rdmalink":        {"provider"},
	// The messages of the kernel's ABI: layouts only.
	"provider/bridge/abi": {},
	// The program's calls and their results, decoded and compared.
	"provider/bridge/recording/...": {"provider/bridge/abi", "provider/bridge/recording"},
	// Serves these calls over the public API, so over any provider.
	"provider/bridge": {"provider", "provider/bridge/abi", "ibverbs", "ibverbs/rdmacm"},
	"provider/auto":   {"provider", "provider/engine", "provider/kernel"},
	"cgo/ibv":         {},
	"cgo/rdmacm":      {"cgo/ibv"},
	// The library that exec loads into C programs: the bridge over the engine, as C calls it.
	"cgo/bridge/lib": {"provider", "provider/bridge", "provider/bridge/abi",
		"provider/bridge/recording", "provider/engine", "provider/engine/transport", "ibverbs"},

	"ibverbs":              {"provider"},
	"ibverbs/internal/...": {"provider"},
	// Tries the addresses of a name; knows no verbs.
	"ibverbs/internal/attempt": {},
	// Runs a package's tests again on a kernel device; only tests import it.
	"ibverbs/internal/ondevice": {"ci/vm/vmtest", "provider/kernel"},
	"ibverbs/rdmacm":            {"provider", "ibverbs", "ibverbs/internal/..."},
	// Streams over the public API; their protocol has no I/O.
	"ibverbs/rsocket": {"ibverbs", "ibverbs/rdmacm", "ibverbs/internal/attempt",
		"ibverbs/internal/object"},
	"ibverbs/rsocket/internal/proto": {},
	// Programs for users to copy: the public API only.
	"ibverbs/examples/...": {"ibverbs", "ibverbs/rdmacm", "provider", "provider/auto", "provider/engine", "provider/kernel"},
	// A protocol without RDMA, and a client of it, which only tests import.
	// It runs the examples for their tests, over siw, too.
	"ibverbs/examples/internal/exampletest": {"ci/vm/siwhang"},
	"ibverbs/examples/9p/p9":                {},
	"ibverbs/examples/9p/p9/p9test":         {"ibverbs/examples/9p/p9"},

	// The suite works over any provider. Of the engine it knows only the tap, through which it
	// sees what goes over a socket.
	"provider/conformance/...": {"provider", "provider/iwarp/...", "provider/conformance/...", "ibverbs/...", "provider/engine/transport"},
	// Puts the suite over the engine; of the suite itself only tests and mutants import it.
	"provider/conformance/onengine": {"provider", "provider/iwarp/...", "provider/conformance", "ibverbs", "provider/engine", "provider/engine/transport"},
	"provider/conformance/mutants":  {"provider", "provider/iwarp/...", "provider/conformance/...", "ibverbs/...", "provider/engine/transport", "provider/engine"},
	// The contract over a control connection; the agent's program opens the providers.
	"provider/conformance/remote": {"provider"},

	// What tests of all packages need; only tests import it.
	"ci/testkit": {},

	"cmd/...": {"..."},
	"ci/...":  {"..."},
}

// onlyIn says where packages from outside the project may be imported.
var onlyIn = map[string][]string{
	"C":                           {"cgo/ibv", "cgo/rdmacm", "cgo/bridge/lib"},
	"github.com/mdlayher/netlink": {"provider/kernel/rdmalink"},
	"github.com/gopacket/gopacket": {
		"provider/conformance/wire/...", "provider/conformance/capture",
	},
	"github.com/alecthomas/kong":      {"cmd/..."},
	"github.com/pelletier/go-toml/v2": {"provider/conformance/profile"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportsKeepToTheWalls(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		may, ok := rule(name)
		if !ok {
			t.Errorf("%s: no rule says what it may import: add one, or put it where it belongs", name)
			continue
		}
		for _, imp := range p.Imports {
			if own, ok := strings.CutPrefix(imp, module+"/"); ok {
				if !below(own, name) && !slices.ContainsFunc(may, func(pattern string) bool { return fits(own, pattern) }) {
					t.Errorf("%s imports %s, and may not", name, own)
				}
				continue
			}
			for prefix, places := range onlyIn {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && !slices.ContainsFunc(places, func(pattern string) bool { return fits(name, pattern) }) {
					t.Errorf("%s imports %s, which only %v may", name, imp, places)
				}
			}
		}
	}
}

// TestCIsWhereItBelongs: C is in the bindings, in the library before libc, and in programs for
// tests.
func TestCIsWhereItBelongs(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "--full-name", ":/*.c", ":/*.h", ":/*.cc", ":/*.cpp").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Fields(string(out))
	if len(files) < 5 {
		t.Fatalf("git lists only %v", files)
	}
	for _, file := range files {
		if !below(file, "cgo") && !strings.Contains(file, "/testdata/") {
			t.Errorf("%s: C belongs below cgo, and programs for tests into testdata", file)
		}
	}
}

// packages lists the packages of the module with what their non-test files
// import.
func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 10 {
		t.Fatalf("go list found only %d packages", len(list))
	}
	return list
}

func rule(name string) ([]string, bool) {
	best, found := "", false
	for pattern := range allowed {
		if fits(name, pattern) && (!found || len(pattern) > len(best)) {
			best, found = pattern, true
		}
	}
	return allowed[best], found
}

// fits reports whether a package matches a pattern: its own name, or a folder
// above it followed by "/...".
func fits(name, pattern string) bool {
	if pattern == "..." {
		return true
	}
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == dir || below(name, dir)
	}
	return name == pattern
}

func below(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }
