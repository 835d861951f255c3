//go:build linux && amd64 && !race

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/bridge/recording"
	"github.com/govs-rdma/govs/provider/bridge/recording/tracer"
)

// recordings is the folder with the recordings of programs over siw.
const recordings = "../../provider/bridge/abi/testdata/siw"

var recordTo = flag.String("record-siw", "", "write TestRecordSiw's recordings to this `folder`, "+
	"instead of comparing them")

// A recorded program is a single program or a pair. ADDR and PORT stand for the server's address
// and port, BUILT for the folder of programs whose sources are in testdata.
type recorded struct {
	name           string
	server, client string
	fails          bool // its exit status is not 0, because it needs what siw lacks
}

var recordedPrograms = []recorded{
	{name: "ibv_devinfo", client: "ibv_devinfo -v"},
	{name: "rping", server: "rping -s -v -V -C 3 -a ADDR -p PORT",
		client: "rping -c -v -V -C 3 -a ADDR -p PORT"},
	{name: "rdma_client", server: "rdma_server -s ADDR -p PORT",
		client: "rdma_client -s ADDR -p PORT"},
	{name: "ucmatose", server: "ucmatose -b ADDR -p PORT -c 1 -C 4",
		client: "ucmatose -s ADDR -p PORT -c 1 -C 4"},
	{name: "ib_send_lat", server: "ib_send_lat -R -F -e --use-srq -d siw0 -n 5 -p PORT",
		client: "ib_send_lat -R -F -e --use-srq -d siw0 -n 5 -p PORT ADDR"},
	// Nobody listens.
	{name: "rdma_client-refused", client: "rdma_client -s ADDR -p PORT", fails: true},
	// Its QPs are connected without rdma_cm.
	{name: "ibv_rc_pingpong", server: "ibv_rc_pingpong -d siw0 -g 0 -p PORT",
		client: "ibv_rc_pingpong -d siw0 -g 0 -p PORT ADDR", fails: true},
	{name: "ibv_ud_pingpong", client: "ibv_ud_pingpong -d siw0 -g 0", fails: true},
	{name: "ibv_xsrq_pingpong", client: "ibv_xsrq_pingpong -d siw0 -g 0", fails: true},
	{name: "mckey", client: "mckey -m 224.0.0.9 -b ADDR -s -C 1", fails: true}, // joins a group
	{name: "refusals", client: "BUILT/refusals"},
	{name: "cmrefusals", client: "BUILT/cmrefusals ADDR"},
}

// buildRecorded compiles the recorded programs.
func buildRecorded(t *testing.T) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(builtPrograms, 0o755))
	for _, name := range []string{"refusals", "cmrefusals"} {
		compiledAs(t, filepath.Join(builtPrograms, name), name, "-Wno-psabi", "-Wno-unused-value")
	}
}

// A recorder starts a program.
type recorder func(t *testing.T, args []string) recordedRun

// A recordedRun is a running program, whose recording is available when it has ended.
type recordedRun struct {
	done <-chan struct{}
	kill func()
	// end waits for the program's end, and also returns its exit status and its output.
	end func() (rec *recording.Recording, status int, said string)
}

// record runs a program, or a pair, and returns the recordings by the names of their files. With
// overSiw a pair runs again if siw does not read the client's first message.
func (p *recorded) record(t *testing.T, addr string, overSiw bool, run recorder) map[string]*recording.Recording {
	t.Helper()
	port := freePort()
	words := func(s string) []string {
		return strings.Fields(strings.NewReplacer("PORT", fmt.Sprint(port), "ADDR", addr,
			"BUILT", builtPrograms).Replace(s))
	}
	ended := func(rec *recording.Recording, status int, _ string) *recording.Recording {
		if (status != 0) != p.fails {
			t.Errorf("%s: status %d", p.name, status)
		}
		return rec
	}
	if p.server == "" {
		return map[string]*recording.Recording{p.name: ended(run(t, words(p.client)).end())}
	}
	for attempt := 1; ; attempt, port = attempt+1, freePort() {
		server := p.start(t, port, words(p.server), run)
		runs := run(t, words(p.client))
		if overSiw && siwhang.Hung(t, 0, runs.done) {
			server.kill()
			runs.kill()
			attempt--
			continue
		}
		client, status, said := runs.end()
		if status != 0 && strings.HasPrefix(p.name, "ib_") && saysRefused(said) && attempt < perftestAttempts {
			t.Log("once more: the server listened too late the second time")
			server.kill()
			continue
		}
		served, servedStatus, serverSaid := server.end()
		if attempt < perftestAttempts && (closedFirst(status, said) || closedFirst(servedStatus, serverSaid)) {
			t.Log("once more: main closed the channel before the other thread waited for the next event")
			continue
		}
		return map[string]*recording.Recording{
			p.name + ".client": ended(client, status, said),
			p.name + ".server": ended(served, servedStatus, serverSaid),
		}
	}
}

// closedFirst reports whether rping has lost a race of its own threads: main closes the event
// channel, and the other thread, which comes to wait there only then, gets EBADF, as of any closed
// descriptor, and ends the process before main returns.
func closedFirst(status int, said string) bool {
	return status == 255 && strings.Contains(said, "rdma_get_cm_event: Bad file descriptor")
}

// start starts the server, and waits until it listens on a port.
func (p *recorded) start(t *testing.T, port uint16, args []string, run recorder) recordedRun {
	t.Helper()
	server := run(t, args)
	deadline := time.Now().Add(patience)
	for !testkit.Listens(t, port) {
		select {
		case <-server.done:
			server.end()
			t.Fatalf("%s ended before it listened", p.server)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen", p.server)
		}
	}
	return server
}

// onSiw records a program over the kernel's device.
func onSiw(t *testing.T, args []string) recordedRun {
	t.Helper()
	out := testkit.Must(os.CreateTemp(t.TempDir(), "output"))(t)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	tracee := testkit.Must(tracer.Start(cmd))(t)
	t.Cleanup(tracee.Kill)
	return recordedRun{tracee.Done(), tracee.Kill, func() (*recording.Recording, int, string) {
		select {
		case <-tracee.Done():
		case <-time.After(patience):
			t.Fatalf("%s does not end:\n%s", args, testkit.Must(os.ReadFile(out.Name()))(t))
		}
		rec, status, err := tracee.Wait()
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		said := string(testkit.Must(os.ReadFile(out.Name()))(t))
		t.Logf("%s: status %d\n%s", args, status, said)
		return rec, status, said
	}}
}

// recorder returns a recorder of programs over the bridge.
func (b *bridged) recorder(flags ...string) recorder {
	return func(t *testing.T, args []string) recordedRun {
		t.Helper()
		b := b.of(t)
		file := filepath.Join(t.TempDir(), "recording")
		p := startCmd(t, b.command(append([]string{"--record", file}, flags...), args...))
		return recordedRun{p.done, p.kill, func() (*recording.Recording, int, string) {
			status := p.wait(t)
			t.Logf("%s: status %d\n%s\n%s", args, status, &p.stdout, &p.stderr)
			return testkit.Must(recording.Read(bytes.NewReader(testkit.Must(
				os.ReadFile(file))(t))))(t), status, p.stdout.String() + p.stderr.String()
		}}
	}
}

// TestRecordSiw records programs over siw again, and compares them with the existing recordings,
// which must be what siw does. In the guest it takes a minute.
func TestRecordSiw(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.NeedPackages(t, "guest", "kernel", "witnesses")
		buildRecorded(t)
	}
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	for _, p := range recordedPrograms {
		t.Run(p.name, func(t *testing.T) {
			for name, rec := range p.record(t, siwAddr, true, onSiw) {
				if *recordTo != "" {
					write(t, filepath.Join(*recordTo, name+".siw"), rec)
					continue
				}
				for _, d := range recording.Compare(siwSteps(t, name), steps(t, rec)) {
					t.Errorf("%s is recorded otherwise: %s\n\t%s", name, &d, d.Where)
				}
			}
		})
	}
}

// TestExecLikeSiw runs programs over the engine, and compares their calls and the results with the
// recordings of the same programs over siw. Every difference is in a list, and every entry of the
// list occurs.
func TestExecLikeSiw(t *testing.T) {
	b := newBridged(t)
	buildRecorded(t)
	known := testkit.Must(recording.ReadKnown(string(testkit.Must(
		os.ReadFile(filepath.Join(recordings, "../differences")))(t))))(t)
	seen := make([]bool, len(known))
	ran := 0
	for _, p := range recordedPrograms {
		t.Run(p.name, func(t *testing.T) {
			ran++
			for name, rec := range p.record(t, "127.0.0.1", false, b.recorder()) {
				for _, d := range recording.Compare(siwSteps(t, name), steps(t, rec)) {
					listed := false
					for i := range known {
						if known[i].Match(name, &d) {
							seen[i], listed = true, true
						}
					}
					if !listed {
						t.Errorf("%s %s\n\t%s", name, &d, d.Where)
					}
				}
			}
		})
	}
	for i, k := range known {
		if !seen[i] && ran == len(recordedPrograms) { // with -run fewer may have run
			t.Errorf("differences, %s: it does not occur: %s %s", k.Where, k.Recording,
				&k.Difference)
		}
	}
}

// siwSteps returns the steps of a recording of siw.
func siwSteps(t *testing.T, name string) []recording.Step {
	t.Helper()
	f := testkit.Must(os.Open(filepath.Join(recordings, name+".siw")))(t)
	defer func() { _ = f.Close() }()
	return steps(t, testkit.Must(recording.Read(f))(t))
}

func steps(t *testing.T, rec *recording.Recording) []recording.Step {
	t.Helper()
	return testkit.Must(rec.Steps())(t)
}

func write(t *testing.T, file string, rec *recording.Recording) {
	t.Helper()
	release := strings.TrimSpace(string(testkit.Must(os.ReadFile(
		"/proc/sys/kernel/osrelease"))(t)))
	packages := testkit.Must(exec.Command("dpkg-query", "-W", "-f", "${Package} ${Version}, ",
		"libibverbs1", "librdmacm1", "ibverbs-providers", "ibverbs-utils", "rdmacm-utils",
		"perftest").Output())(t)
	rec.Comments = []string{"Linux " + release, strings.TrimSuffix(string(packages), ", ")}
	f := testkit.Must(os.Create(file))(t)
	testkit.OK(t, errors.Join(rec.Write(f), f.Close()))
}
