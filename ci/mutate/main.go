// Mutate puts one-line faults into the engine and the protocol layers, one at a time, and runs the
// conformance suite, engine with engine, over each. If the suite passes, it runs the tests of the
// package.
//
//	go run ./ci/mutate [--seed N] [--count N] [--only PACKAGE] [--out FILE] [--scale FACTOR]
//
// A fault is another operator, a constant that is one more, a condition that is never true, or a
// call or an assignment that is left out. The seed chooses the faults. Each fault that was tried is
// a line of FILE, so a run that was interrupted goes on where it was. A fault whose line is deleted
// is tried again. At the end Mutate prints a table by package, and the faults that nothing noticed.
//
// The go command compiles a fault through an overlay, so no file of the project changes. Everything
// is built without cgo, and nothing needs root or a guest.
//
// The exit status is 1 if a fault could not be tried, or if the suite fails without a fault.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memoryMost is how much memory a process may have, in bytes: a fault may make it allocate without
// end.
const memoryMost = 4 << 30

// govs is what is mutated. Packages that only tests use (memnet, sched), and the ranks of locks,
// are left out.
var govs = project{
	packages: []string{
		"provider/engine", "provider/engine/internal/cm", "provider/engine/internal/frames",
		"provider/engine/internal/freelist", "provider/engine/internal/memory",
		"provider/engine/internal/policy", "provider/engine/internal/refs",
		"provider/engine/internal/rundown", "provider/engine/internal/turns",
		"provider/engine/transport", "provider/iwarp", "provider/iwarp/ddp", "provider/iwarp/mpa",
		"provider/iwarp/mpa/crc32c", "provider/iwarp/rdmap",
	},
	constants: "provider/iwarp",
	users:     map[string]string{"provider/engine/": "provider/engine"},
	command:   "cmd/govs-verbs-test",
	// An address that another run of the suite on this machine is unlikely to have.
	suite: []string{"run", "--verbose", "--no-tshark", "--seed", "1", "--addr",
		fmt.Sprintf("127.9.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)},
}

// project says where faults are put, and what is to notice them. Folders are below the present one.
type project struct {
	packages  []string
	constants string            // packages with this prefix get faults in their const declarations
	users     map[string]string // by prefix of a package: another whose tests are to notice its faults
	command   string            // the program of the suite
	suite     []string          // its arguments
}

// testedBy returns the packages whose tests are to notice a fault of pkg, its own first.
func (p *project) testedBy(pkg string) []string {
	by := []string{pkg}
	for prefix, user := range p.users {
		if strings.HasPrefix(pkg, prefix) {
			by = append(by, user)
		}
	}
	return by
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("mutate: ")
	seed := flag.Uint64("seed", 1, "which faults are tried, and in which order")
	count := flag.Int("count", 300, "how many faults compile, are reached, and are tried")
	only := flag.String("only", "", "the folder of the only package that gets faults")
	out := flag.String("out", "out/mutate.tsv", "the file of the results")
	scale := flag.Float64("scale", 1, "stretch the suite's time limits by this factor")
	flag.Parse()
	if flag.NArg() > 0 || *count < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	limit := &unix.Rlimit{Cur: memoryMost, Max: memoryMost} // children have it, too
	if err := unix.Setrlimit(unix.RLIMIT_DATA, limit); err != nil {
		log.Fatal("limiting the memory of this process: ", err)
	}
	govs.suite = append(govs.suite, "--scale", fmt.Sprint(*scale))
	faults, err := govs.sample(*seed, *only)
	if err != nil {
		log.Fatal(err)
	}
	known, err := govs.mutate(ctx, faults, *count, *out)
	if err != nil {
		log.Fatal(err)
	}
	known.print(os.Stdout)
}

// mutate tries count of the faults, and returns the results that the file has at the end.
func (p *project) mutate(
	ctx context.Context, faults []fault, count int, file string,
) (results, error) {
	known, err := readResults(file)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	t, err := newTrier(ctx, p)
	if err != nil {
		return nil, err
	}
	defer t.close()
	for tried, i := 0, 0; tried < count && i < len(faults); i++ {
		f := &faults[i]
		r, have := known[f.name()]
		if !have {
			if r, err = t.try(f); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name(), err)
			}
			if _, err := fmt.Fprintln(out, r.line(f.name())); err != nil {
				return nil, err
			}
			known[f.name()] = r
			log.Printf("%d of %d: %s", tried+1, count, r.line(f.name()))
		}
		if r.by.counts() {
			tried++
		}
	}
	return known, nil
}

// sample returns the faults in the order of the seed. The order does not depend on only.
func (p *project) sample(seed uint64, only string) ([]fault, error) {
	var all, chosen []fault
	for _, pkg := range p.packages {
		found, err := faultsOf(pkg, strings.HasPrefix(pkg, p.constants))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	swap := func(i, j int) { all[i], all[j] = all[j], all[i] }
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), swap)
	for _, f := range all {
		if only == "" || f.pkg == only {
			chosen = append(chosen, f)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("--only %s: it is none of %s", only, strings.Join(p.packages, ", "))
	}
	return chosen, nil
}
