//go:build !race

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// pingSizes are below and above the capacity of an FPDU on loopback, whose MSS is 65483.
var pingSizes = []int{minPing, maxPing}

// TestRping shows that ping is an rping: our program with the C program both ways, and with itself,
// each over the engine and over siw. Both ends print the data, and the two outputs must be equal.
func TestRping(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	for _, p := range providers {
		for _, size := range pingSizes {
			count := 3 + size%5 // not always the same
			t.Run(fmt.Sprintf("our %s client, C server, %d bytes", p, size), func(t *testing.T) { cServer(t, p, count, size) })
			t.Run(fmt.Sprintf("C client, our %s server, %d bytes", p, size), func(t *testing.T) { cClient(t, p, count, size) })
			for _, s := range providers {
				if p == "engine" && s == "engine" {
					continue // needs no guest: TestPing
				}
				t.Run(fmt.Sprintf("our %s client, our %s server, %d bytes", p, s, size),
					func(t *testing.T) { bothOurs(t, p, s, count, size) })
			}
		}
	}
	t.Run("a C server that gets data of another size than its own", cServerTooSmall)
	t.Run("a C client that leaves in the middle", cClientKilled)
}

func cServer(t *testing.T, provider string, count, size int) {
	port := freePort()
	server := startServer(t, port, "rping", "-s", "-v", "-a", siwAddr, "-p", fmt.Sprint(port), "-S", fmt.Sprint(size))
	client := start(t, "ping", addrOf(port), "-v", "--provider", provider, "--count", fmt.Sprint(count), "--size", fmt.Sprint(size))
	client.want(t, exitPassed, parts(pingLines("ping data: ", count, size),
		fmt.Sprintf("%d pings of %d bytes", count, size)), nil)
	server.want(t, 0)
	if got, want := server.stdout.String(), pingLines("server ping data: ", count, size); got != want {
		t.Errorf("the C server printed\n%s\nwant\n%s", clip(got), clip(want))
	}
}

func cClient(t *testing.T, provider string, count, size int) {
	var server *command
	client := untilRead(t, provider == "kernel", func(port uint16) (interface{ kill() }, *program) {
		server, _ = serve(t, addrOf(port), "-v", "--provider", provider)
		return server, startProgram(t, "rping", "-c", "-v", "-V", "-a", siwAddr, "-p", fmt.Sprint(port),
			"-C", fmt.Sprint(count), "-S", fmt.Sprint(size))
	})
	client.want(t, 0)
	if got, want := client.stdout.String(), pingLines("ping data: ", count, size); got != want {
		t.Errorf("the C client printed\n%s\nwant\n%s", clip(got), clip(want))
	}
	server.want(t, exitPassed, parts(pingLines("server ping data: ", count, size),
		fmt.Sprintf("served %d pings of %d bytes for %s:", count, size, siwAddr)), nil)
}

func bothOurs(t *testing.T, clients, servers string, count, size int) {
	port := freePort()
	server, _ := serve(t, addrOf(port), "-v", "--provider", servers)
	client := start(t, "ping", addrOf(port), "-v", "--provider", clients, "-C", fmt.Sprint(count), "-S", fmt.Sprint(size))
	client.want(t, exitPassed, parts(pingLines("ping data: ", count, size), " over "+clients+" "), nil)
	server.want(t, exitPassed, parts(pingLines("server ping data: ", count, size), " over "+servers+" "), nil)
}

// cServerTooSmall makes the C server read more than its own -S, which fails.
func cServerTooSmall(t *testing.T) {
	for _, p := range providers {
		port := freePort()
		server := startServer(t, port, "rping", "-s", "-a", siwAddr, "-p", fmt.Sprint(port), "-S", "64")
		client := start(t, "ping", addrOf(port), "--provider", p, "--size", "4096", "--timeout", "20s")
		client.want(t, exitFailed, nil, parts("ping 0: the server has to read our data: "))
		_ = server.cmd.Process.Kill()
	}
}

// cClientKilled ends a C client that would run forever. The kernel closes its
// connection.
func cClientKilled(t *testing.T) {
	for _, p := range providers {
		var server *command
		var client *program
		for {
			port := freePort()
			server, _ = serve(t, addrOf(port), "-v", "--provider", p, "--timeout", "1m")
			client = startProgram(t, "rping", "-c", "-a", siwAddr, "-p", fmt.Sprint(port))
			if p != "kernel" || !siwhang.Hung(t, port, server.stdout.matched(t, `rdma-ping-20:`)) {
				break
			}
			server.kill()
			client.kill()
		}
		server.stdout.await(t, `rdma-ping-20:`)
		if err := client.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Between two pings this is a normal end, inside one a failure.
		switch status := server.wait(t); {
		case status == exitPassed && strings.Contains(server.stdout.String(), "served "):
		case status == exitFailed && strings.Contains(server.stderr.String(), " of "+siwAddr+":"):
		default:
			t.Errorf("%s: status %d\nstderr:\n%s", server, status, &server.stderr)
		}
	}
}
