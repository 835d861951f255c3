//go:build !race

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// hasten accepts one connection for the server at addr and forwards it. The server's first FPDU
// then comes to the client in one piece with the Reply, as it may from siw, which does not delay
// it. The engine delays it until the initiator's first FPDU, so hasten sends one for the client: an
// RDMA Write of length 0, which takes no place in any sequence.
func hasten(l net.Listener, addr string) error {
	client, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	for _, c := range []net.Conn{client, server} {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	request, err := readStartup(client)
	if err != nil {
		return fmt.Errorf("the Request: %w", err)
	}
	if _, err := server.Write(request); err != nil {
		return err
	}
	reply, err := readStartup(server)
	if err != nil {
		return fmt.Errorf("the Reply: %w", err)
	}
	header := rdmap.WriteHeader(0, 0, true)
	framer := mpa.NewFramer(false, true)
	opening, err := framer.AppendFPDU(nil, header.AppendTo(nil))
	if err != nil {
		return err
	}
	if _, err := server.Write(opening); err != nil {
		return err
	}
	first, err := readFPDU(server)
	if err != nil {
		return fmt.Errorf("the server's first FPDU: %w", err)
	}
	if _, err := client.Write(slices.Concat(reply, first)); err != nil {
		return err
	}
	there := make(chan error, 1)
	go func() { there <- forward(server, client) }()
	return errors.Join(forward(client, server), <-there)
}

// forward copies what from sends until its end. An end that has closed may reset the connection.
func forward(to, from net.Conn) error {
	_, err := io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return err
	}
	return nil
}

// readStartup reads the bytes of a start-up frame.
func readStartup(r io.Reader) ([]byte, error) {
	head := make([]byte, mpa.FrameHeaderLen)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	private := make([]byte, binary.BigEndian.Uint16(head[mpa.FrameHeaderLen-2:]))
	_, err := io.ReadFull(r, private)
	return append(head, private...), err
}

// readFPDU reads the bytes of an FPDU without Markers.
func readFPDU(r io.Reader) ([]byte, error) {
	head := make([]byte, mpa.HeaderLen)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	_, n, _ := mpa.ParseHeader(head)
	fpdu := append(head, make([]byte, n-len(head))...)
	_, err := io.ReadFull(r, fpdu[len(head):])
	return fpdu, err
}

// TestExecServerSpeaksTooSoon: a stream's server in C sends in one piece with the Reply, before it
// has received anything. Clients over the engine still work, in C and in Go.
func TestExecServerSpeaksTooSoon(t *testing.T) {
	b := newBridged(t)
	client := func(args string) func(t *testing.T, port uint16) {
		return func(t *testing.T, port uint16) {
			b.of(t).start(arguments(args, "127.0.0.1", port)...).want(t, 0, "custom    4k")
		}
	}
	for _, tc := range []struct {
		name, server string
		client       func(t *testing.T, port uint16)
	}{
		{"riostream", "riostream -b ADDR -p PORT -S 4096 -I 20 -C 20",
			client("riostream -s ADDR -p PORT -S 4096 -I 20 -C 20")},
		{"rstream", "rstream -b ADDR -p PORT -S 4096 -I 20 -C 20 -T b",
			client("rstream -s ADDR -p PORT -S 4096 -I 20 -C 20 -T b")},
		{"rstream, the client in Go", "rstream -b ADDR -p PORT -S 4096 -I 20 -C 20 -T b",
			func(t *testing.T, port uint16) {
				start(t, slices.Concat([]string{"stream", "--bench", at("127.0.0.1", port)},
					words("-S 4096 -I 20 -C 20"), onEngine)...).want(t, exitPassed,
					parts("     4096          800 "), nil)
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			port := freePort()
			server := b.of(t).server(port, arguments(tc.server, "127.0.0.1", port)...)
			l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			testkit.OK(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
			defer func() { testkit.OK(t, l.Close()) }()
			done := make(chan error, 1)
			go func() { done <- hasten(l, at("127.0.0.1", port)) }()
			tc.client(t, uint16(l.Addr().(*net.TCPAddr).Port))
			server.want(t, 0)
			testkit.OK(t, <-done)
		})
	}
}
