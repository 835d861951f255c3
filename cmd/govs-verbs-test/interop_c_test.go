//go:build !race

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
)

// TestCPrograms connects C programs of rdma-core with the tests' own programs, over the
// engine and over siw.
func TestCPrograms(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	overProviders(t, "rdma_client", rdmaClient)
	overProviders(t, "rdma_server", rdmaServer)
	t.Run("ucmatose client, our side kernel", func(t *testing.T) { ucmatoseClient(t, openDevice(t, "kernel")) })
	overProviders(t, "ucmatose client, connections only", ucmatoseConnections)
	overProviders(t, "ucmatose server, connections only", ucmatoseServer)
	t.Run("ib_send_bw between kernel peers beside the engine", sendBW)
}

// TestCProgramsPeerToPeer makes ucmatose wait for our first message, with a siw that requests the
// peer-to-peer mode of RFC 6581, which is made for such programs. Without that mode the engine, as
// the responder, follows RFC 5044 section 7.1.2 and sends nothing before it has received
// something; siw does not wait.
func TestCProgramsPeerToPeer(t *testing.T) {
	if !inGuest(t, vmtest.Options{Siw: "p2p"}) {
		return
	}
	ucmatoseClient(t, openDevice(t, "engine"))
}

// The message that rdma_client and rdma_server exchange: 16 bytes that they
// never set.
const rdmaMessage = 16

// rdmaClient sends one message and waits for one.
func rdmaClient(t *testing.T, vctx *ibverbs.Context) {
	port := freePort()
	l := listen(t, vctx, port)
	m, client := acceptFirst(t, vctx, l, port, rdmaMessage, func() *program {
		return startProgram(t, "rdma_client", "-s", siwAddr, "-p", fmt.Sprint(port))
	})
	if got := m.received(); !bytes.Equal(got, make([]byte, rdmaMessage)) {
		t.Errorf("rdma_client sent %x", got)
	}
	m.send(1)
	m.ended()
	client.want(t, 0, "rdma_client: end 0")
}

// rdmaServer waits for one message and answers with one.
func rdmaServer(t *testing.T, vctx *ibverbs.Context) {
	port := freePort()
	server := startServer(t, port, "rdma_server", "-s", siwAddr, "-p", fmt.Sprint(port))
	m := dial(t, vctx, port, rdmaMessage, 1)
	time.Sleep(settle)
	m.send(1)
	m.receive(1)
	if got := m.received(); !bytes.Equal(got, make([]byte, rdmaMessage)) {
		t.Errorf("rdma_server sent %x", got)
	}
	m.disconnect()
	server.want(t, 0, "rdma_server: end 0")
}

// ucmatose's sizes: several messages of more than one FPDU each.
const (
	ucmMessages = 20
	ucmOctets   = 100_000
)

// ucmatoseClient waits for messages and then sends as many, so the server must send first.
func ucmatoseClient(t *testing.T, vctx *ibverbs.Context) {
	port := freePort()
	l := listen(t, vctx, port)
	client := startProgram(t, "ucmatose", "-s", siwAddr, "-p", fmt.Sprint(port), "-C", fmt.Sprint(ucmMessages), "-S", fmt.Sprint(ucmOctets))
	m := accept(t, vctx, l, ucmOctets, ucmMessages)
	time.Sleep(settle) // siw refuses a message in one piece with the Reply
	m.send(ucmMessages)
	m.receive(ucmMessages)
	// ucmatose has one buffer for all messages, which has the last one.
	last := m.out.Bytes()[(ucmMessages-1)*ucmOctets:]
	for i := range ucmMessages {
		if got := m.received()[i*ucmOctets : (i+1)*ucmOctets]; !bytes.Equal(got, last) {
			t.Errorf("message %d is not what was sent to ucmatose", i)
		}
	}
	m.disconnect()
	client.want(t, 0, "data transfers complete", "return status 0")
}

// ucmatoseConnections opens several connections at once, and waits for their
// ends.
func ucmatoseConnections(t *testing.T, vctx *ibverbs.Context) {
	const connections = 10
	port := freePort()
	l := listen(t, vctx, port)
	client := startProgram(t, "ucmatose", "-s", siwAddr, "-p", fmt.Sprint(port), "-c", fmt.Sprint(connections), "-C", "0")
	var all []*messenger
	for range connections {
		all = append(all, accept(t, vctx, l, 1, 1))
	}
	for _, m := range all {
		m.disconnect()
	}
	client.want(t, 0, "return status 0")
}

// ucmatoseServer accepts connections and ends them, without messages: it sends the first right
// after its Reply. An initiator may refuse that, and the engine and siw do if the two come in one
// piece (RFC 5044 section 7.1.2).
func ucmatoseServer(t *testing.T, vctx *ibverbs.Context) {
	const connections = 10
	port := freePort()
	server := startServer(t, port, "ucmatose", "-b", siwAddr, "-p", fmt.Sprint(port), "-c", fmt.Sprint(connections), "-C", "0")
	var all []*messenger
	for range connections {
		all = append(all, dial(t, vctx, port, 1, 1))
	}
	for _, m := range all {
		m.ended()
	}
	server.want(t, 0, "return status 0")
}

// sendBW runs perftest over siw while the engine is busy.
func sendBW(t *testing.T) {
	port := freePort()
	server, addr := serve(t, addrOf(port), "--provider", "engine")
	client := start(t, "ping", addr, "--provider", "engine", "--count", "1000000", "--size", "20000")

	bw := perftest("ib_send_bw", "", " 65536      200 ")
	bw.serverSays, bw.siwAccepts = bw.clientSays, true
	bw.run(t, func(port uint16) (server, client *program) {
		server = startServer(t, port, arguments(bw.server, siwAddr, port)...)
		return server, startProgram(t, arguments(bw.client, siwAddr, port)...)
	})

	select {
	case <-client.done:
		t.Errorf("the engine's ping ended before perftest did:\n%s", &client.stderr)
	default:
	}
	client.stop()
	client.want(t, exitFailed, nil, parts("interrupted"))
	if server.wait(t); !strings.Contains(server.stdout.String()+server.stderr.String(), "ping") {
		t.Errorf("the server told nothing:\n%s%s", &server.stdout, &server.stderr)
	}
}
