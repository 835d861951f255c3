//go:build !race

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// A pair of programs, in which PORT stands for the port and ADDR for the server's address.
type programPair struct {
	name           string
	server, client string
	serverSays     []string
	clientSays     []string
	clientEnds     []int // statuses that the client may have, if not only 0
	mode           bool  // not run beside siw: another pair uses the device in the same way
	besideSiw      side  // the one side that is over the engine while the other is over siw; both without
	siwAccepts     bool  // the server is over siw, which may not read the client's first message
}

// arguments returns the words of a command.
func arguments(command, addr string, port uint16) []string {
	return strings.Fields(strings.NewReplacer("PORT", fmt.Sprint(port), "ADDR", addr).
		Replace(command))
}

// check waits for both programs and checks their output.
func (p *programPair) check(t *testing.T, server, client *program) {
	t.Helper()
	if ends := p.clientEnds; len(ends) > 0 {
		if got := client.wait(t); !slices.Contains(ends, got) {
			t.Errorf("%s: status %d, want one of %d\nstderr:\n%s", client, got, ends,
				clip(client.stderr.String()))
		}
	} else {
		client.want(t, 0, p.clientSays...)
	}
	server.want(t, 0, p.serverSays...)
}

// perftest returns a pair of a perftest program, with flags and what its client prints. Bandwidth
// programs send more messages than their queue takes, 128. Latency programs spin, and each of their
// messages may wait for a time slice on a busy machine.
func perftest(program, flags, says string) programPair {
	count := "200"
	if strings.HasSuffix(program, "_lat") {
		count = "50"
	}
	command := program + " -R -F -d siw0 -n " + count + " -p PORT"
	name := program
	if flags != "" {
		name += " " + flags
		command += " " + flags
	}
	return programPair{name: name, server: command, client: command + " ADDR",
		clientSays: parts(says)}
}

func mode(p programPair) programPair {
	p.mode = true
	return p
}

// beside returns the pair with one side that is over the engine in TestExecWithSiw, instead of both
// in turn.
func (p programPair) beside(engine side) programPair {
	p.besideSiw = engine
	return p
}

// rsockets returns a program that uses librdmacm's streams, with flags.
func rsockets(program, flags string) programPair {
	return programPair{name: strings.TrimSpace(program + " " + flags),
		server:     program + " -b ADDR -p PORT -S 4096 -I 20 -C 20 " + flags,
		client:     program + " -s ADDR -p PORT -S 4096 -I 20 -C 20 " + flags,
		clientSays: parts("custom    4k")}
}

var bridgedPairs = []programPair{
	{name: "rping", server: "rping -s -v -V -C 20 -a ADDR -p PORT",
		client:     "rping -c -v -V -C 20 -a ADDR -p PORT",
		serverSays: parts("server ping data: rdma-ping-19"),
		clientSays: parts("ping data: rdma-ping-19")},
	{name: "rping over IPv6", server: "rping -s -v -V -C 20 -a ::1 -p PORT",
		client:     "rping -c -v -V -C 20 -a ::1 -p PORT",
		serverSays: parts("server ping data: rdma-ping-19"),
		clientSays: parts("ping data: rdma-ping-19"), mode: true},
	{name: "rdma_server", server: "rdma_server -p PORT", client: "rdma_client -s ADDR -p PORT",
		serverSays: parts("rdma_server: end 0"), clientSays: parts("rdma_client: end 0"),
		besideSiw: serverSide},
	// The accepting side sends first.
	{name: "ucmatose", server: "ucmatose -b ADDR -p PORT -c 4 -C 16",
		client:     "ucmatose -s ADDR -p PORT -c 4 -C 16",
		serverSays: parts("return status 0"),
		clientSays: parts("test complete", "return status 0")},
	mode(perftest("ib_send_bw", "", "65536      200")),
	perftest("ib_write_bw", "", "65536      200").beside(serverSide),
	perftest("ib_read_bw", "", "65536      200").beside(clientSide),
	mode(perftest("ib_send_lat", "", " 2       50")),
	// Neither program calls anything while it waits for the other's Write.
	mode(perftest("ib_write_lat", "", " 2       50")),
	mode(perftest("ib_read_lat", "", " 2       50")),
	// Not ib_send_bw -e: its client may wait for an event of its CQ when it has used up the
	// server's credits, which come by RDMA Write, and then waits forever.
	perftest("ib_send_lat", "-e", " 2       50").beside(serverSide),
	mode(perftest("ib_read_bw", "-e", "65536      200")),
	mode(perftest("ib_read_lat", "-e", " 2       50")),
	perftest("ib_send_bw", "--use-srq", "65536      200").beside(clientSide),
	// Both ends number their QPs by the order of the connection requests.
	mode(perftest("ib_send_bw", "-q 8 -s 4096", "4096       1600")),
	mode(rsockets("rstream", "-T v")),
	mode(rsockets("rstream", "-T n")),
	mode(rsockets("rstream", "-T b -T v")),
	mode(rsockets("rstream", "-T r")),
	{name: "rstream -T a", server: "rstream -b ADDR -p PORT -S 4096 -I 20 -C 20 -T a",
		client:     "rstream -s ADDR -p PORT -S 4096 -I 20 -C 20 -T a",
		serverSays: parts("custom    4k"),
		// The client takes POLLHUP, which comes when the server is done, for a failure if it sees
		// it with the last data. It does the same on siw.
		clientEnds: []int{0, 16}, mode: true},
	rsockets("riostream", "").beside(clientSide),
	{name: "fi_pingpong, verbs", server: "fi_pingpong -B PORT -p verbs -e msg -I 20 -S 65536 -c",
		client:     "fi_pingpong -P PORT -p verbs -e msg -I 20 -S 65536 -c ADDR",
		clientSays: parts("64k     20"), mode: true},
	{name: "fi_pingpong, ofi_rxm", server: "fi_pingpong -B PORT -p verbs;ofi_rxm -e rdm -I 20 -S 65536 -c",
		client:     "fi_pingpong -P PORT -p verbs;ofi_rxm -e rdm -I 20 -S 65536 -c ADDR",
		clientSays: parts("64k     20"), besideSiw: clientSide},
	{name: "fio", server: "fio --name=in --ioengine=rdma --port=PORT --rw=read --bs=64k --size=2m",
		client: "fio --name=out --ioengine=rdma --hostname=ADDR --port=PORT --verb=write " +
			"--rw=write --bs=64k --size=2m --iodepth=4 --iodepth_batch_complete=1",
		serverSays: parts("err= 0"), clientSays: parts("err= 0", "io=2048KiB"), mode: true},
	{name: "qperf", server: "qperf -lp PORT",
		client: "qperf -lp PORT ADDR -cm 1 -t 1 rc_lat quit", clientSays: parts("latency"), besideSiw: clientSide},
}

// perftestAttempts is how often programs of perftest are tried. With -R the server listens again,
// for the measured connection, after it has let the client continue. A faster client is refused,
// over any device, and may crash. The server of qperf sends its client the port before it listens
// on it. On a busy machine one client in five was faster.
const perftestAttempts = 8

// mostCrashes is how often a signal may end the client of such a pair without a report that it was
// refused: more crashes may be our fault. Most refused clients end by SIGSEGV.
const mostCrashes = 2

// listensLate reports whether a program's server may listen too late.
func (p *programPair) listensLate() bool {
	return strings.HasPrefix(p.name, "ib_") || strings.HasPrefix(p.name, "qperf")
}

// run runs a server and its client, and again if the client came before its server listened, or if
// siw did not read the client's first message. Some programs choose the port for that.
func (p *programPair) run(t *testing.T, start func(port uint16) (server, client *program)) {
	t.Helper()
	crashes := 0
	for attempt := 1; ; attempt++ {
		server, client := start(freePort())
		if p.siwAccepts && siwhang.Hung(t, 0, client.done) {
			server.kill()
			client.kill()
			attempt--
			continue
		}
		if attempt == perftestAttempts || !p.listensLate() || !early(t, client) {
			p.check(t, server, client)
			return
		}
		if crashed(client) && !saysRefused(client.stderr.String()) {
			if crashes++; crashes > mostCrashes {
				p.check(t, server, client)
				return
			}
		}
		t.Logf("its server listened too late: %s", client)
		server.kill()
	}
}

// early reports whether a client ended because its server did not listen yet, or because siw could
// not get the local port that Linux chose for the client (kernel-notes/siw-port-zero.md).
func early(t *testing.T, client *program) bool {
	t.Helper()
	if client.wait(t) == 0 {
		return false
	}
	return crashed(client) || saysRefused(client.stderr.String()+client.stdout.String())
}

// saysRefused reports whether a client says that nobody listened.
func saysRefused(said string) bool {
	return strings.Contains(said, "Connection refused") ||
		strings.Contains(said, "RDMA_CM_EVENT_REJECTED") || // perftest
		strings.Contains(said, "Event rejected") || strings.Contains(said, "rdma_connect failed") // qperf
}

// crashed reports whether a signal ended a program, which must have ended.
func crashed(p *program) bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// traced returns b with its own trace, whose file is in dir.
func (b *bridged) traced(t *testing.T, dir, name string) *bridged {
	t.Helper()
	part := b.of(t)
	part.flags = append(slices.Clone(b.flags), "--output", filepath.Join(dir, name))
	return part
}

// wantQueuePairs checks that each trace of dir has a queue pair: some programs use TCP if they get
// none, or with some flags.
func wantQueuePairs(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		wantText(t, name+"'s trace", string(testkit.Must(os.ReadFile(filepath.Join(dir, name)))(t)),
			parts("create_qp("))
	}
}

// TestExecPrograms runs Debian's programs over the engine, both ends.
func TestExecPrograms(t *testing.T) {
	b := newBridged(t)
	for _, p := range bridgedPairs {
		t.Run(p.name, func(t *testing.T) {
			dir := t.TempDir()
			p.run(t, func(port uint16) (server, client *program) {
				server = b.traced(t, dir, "server").server(port, arguments(p.server, "127.0.0.1", port)...)
				return server, b.traced(t, dir, "client").start(arguments(p.client, "127.0.0.1", port)...)
			})
			wantQueuePairs(t, dir, "server", "client")
		})
	}
}

// A launcher starts a program at one end of a pair, with more in its environment.
type launcher func(env []string, args ...string) *program

// launch starts a program over the engine.
func (b *bridged) launch(env []string, args ...string) *program {
	b.t.Helper()
	cmd := b.command(nil, args...)
	cmd.Env = append(cmd.Env, env...)
	return startCmd(b.t, cmd)
}

// launchOverSiw returns a launcher of programs over the kernel's device.
func launchOverSiw(t *testing.T) launcher {
	return func(env []string, args ...string) *program {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), env...)
		return startCmd(t, cmd)
	}
}

// untilRead starts a server and its client, and again if siw accepts the connection and does not
// read the client's first message.
func untilRead(t *testing.T, siwAccepts bool,
	start func(port uint16) (server interface{ kill() }, client *program)) (client *program) {
	t.Helper()
	for {
		port := freePort()
		server, client := start(port)
		if !siwAccepts || !siwhang.Hung(t, port, client.done) {
			return client
		}
		server.kill()
		client.kill()
	}
}

// copyFile makes rcopy copy a file over librdmacm's streams.
func copyFile(t *testing.T, addr string, server, client launcher) {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	content := bytes.Repeat([]byte("one file after another, "), 1<<16)
	testkit.OK(t, os.WriteFile(from, content, 0o644))
	port := freePort()
	awaitListener(t, server(nil, "rcopy", "-p", fmt.Sprint(port)), port) // serves until it is killed
	c := client(nil, "rcopy", from, addr+":"+to, "-p", fmt.Sprint(port))
	c.want(t, 0)
	if got := testkit.Must(os.ReadFile(to))(t); !bytes.Equal(got, content) {
		t.Errorf("%d bytes were copied, with differences; want %d", len(got), len(content))
	}
}

// useSockets makes a TCP program use librdmacm's streams instead, by librspreload.
func useSockets(t *testing.T, addr string, server, client launcher) {
	t.Helper()
	streams := []string{"LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"}
	port := freePort()
	s := server(streams, arguments("iperf -s -P 1 -B ADDR -p PORT", addr, port)...)
	awaitListener(t, s, port)
	c := client(streams, arguments("iperf -c ADDR -p PORT -n 2M", addr, port)...)
	c.want(t, 0, "2.00 MBytes")
	s.want(t, 0, "2.00 MBytes")
}

// TestExecCopy runs rcopy over the engine.
func TestExecCopy(t *testing.T) {
	b := newBridged(t)
	copyFile(t, "127.0.0.1", b.launch, b.launch)
}

// TestExecSocketProgram runs iperf over the engine, and the traces show it.
func TestExecSocketProgram(t *testing.T) {
	b := newBridged(t)
	dir := t.TempDir()
	useSockets(t, "127.0.0.1", b.traced(t, dir, "server").launch, b.traced(t, dir, "client").launch)
	wantQueuePairs(t, dir, "server", "client")
}

// TestExecRefusesDatagrams: udaddy asks for a UD queue pair, which iWARP does not have.
func TestExecRefusesDatagrams(t *testing.T) {
	b := newBridged(t)
	client := b.start("udaddy", "-s", "127.0.0.1")
	client.want(t, 255, "return status -1")
	wantText(t, "udaddy's error", client.stderr.String(), parts("unable to create QP: "+
		"Operation not supported"))
}

// TestExecMemoryThatChanges: a program may change memory while it is being sent, as qemu does in a
// live migration.
func TestExecMemoryThatChanges(t *testing.T) {
	changing := compiled(t, "changing", "-lrdmacm", "-libverbs", "-lpthread")
	for _, crc := range []string{"required", "off"} {
		b := newBridged(t)
		b.flags = []string{"--crc", crc}
		b.start(changing, "127.0.0.1", fmt.Sprint(freePort())).want(t, 0, "100 writes")
	}
}

// A side is an end that can be over the engine while the other one is over siw.
type side string

const (
	serverSide side = "server"
	clientSide side = "client"
)

// notWithSiw are the sides of pairs that can't be over the engine if the other side is over siw.
var notWithSiw = map[string]map[side]string{
	"ucmatose": {serverSide: "the server sends first, and siw opens no stream"},
}

// cannotBeside returns why a side of a pair can't be over the engine beside siw, or "".
func (p *programPair) cannotBeside(engine side) string {
	if p.besideSiw != "" && p.besideSiw != engine {
		return "the other side is"
	}
	return notWithSiw[p.name][engine]
}

// TestExecWithSiw connects programs over the engine to the same programs over siw: one for each
// kind of operation and each library. rping has the engine at either side, and the others at one
// side, because a pair takes five seconds in the emulated guest, and TestExecPrograms runs both
// sides of all programs over the engine.
func TestExecWithSiw(t *testing.T) {
	if !vmtest.Inside() {
		newBridged(t) // the libraries are built on the host
	}
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	b := newBridged(t)
	// libfabric's server names the first address of the device, and the loopback is not siw's.
	b.flags = []string{"--address", siwAddr, "--log"}
	t.Run("the interface", func(t *testing.T) {
		devices := []string{testkit.Must(os.Executable())(t), "devices", "--provider", "kernel"}
		start(t, devices[1:]...).want(t, exitPassed, parts("siw0", " d0 "), nil)
		p := b.of(t).start(devices...)
		p.want(t, 0, "siw0")
		if out := p.stdout.String(); strings.Contains(out, " d0 ") {
			t.Errorf("siw0 of the bridge has the interface of the kernel's:\n%s", out)
		}
	})
	t.Run("rcopy, the server over the engine", func(t *testing.T) {
		dir := t.TempDir()
		copyFile(t, siwAddr, b.traced(t, dir, "server").launch, launchOverSiw(t))
		wantQueuePairs(t, dir, "server")
	})
	// The programs get exec's environment without exec, which starts slowly in an emulated machine.
	env := b.environment()
	bridge := func(t *testing.T, args ...string) *program {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = env
		return startCmd(t, cmd)
	}
	for _, p := range bridgedPairs {
		if p.mode {
			continue
		}
		if p.cannotBeside(serverSide) == "" {
			t.Run(p.name+", the server over the engine", func(t *testing.T) {
				p.run(t, func(port uint16) (server, client *program) {
					server = bridge(t, arguments(p.server, siwAddr, port)...)
					awaitListener(t, server, port)
					return server, startProgram(t, arguments(p.client, siwAddr, port)...)
				})
			})
		}
		if p.cannotBeside(clientSide) == "" {
			t.Run(p.name+", the client over the engine", func(t *testing.T) {
				p.siwAccepts = true
				p.run(t, func(port uint16) (server, client *program) {
					server = startServer(t, port, arguments(p.server, siwAddr, port)...)
					return server, bridge(t, arguments(p.client, siwAddr, port)...)
				})
			})
		}
	}
}
