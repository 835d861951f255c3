package main

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// answerTooSoon accepts a connection and sends a Reply with octets behind it, in one piece, as siw
// may if its program sends as soon as it has accepted.
func answerTooSoon(l net.Listener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	head := make([]byte, mpa.FrameHeaderLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	private := make([]byte, int(head[18])<<8|int(head[19]))
	if _, err := io.ReadFull(conn, private); err != nil {
		return err
	}
	request, _, err := mpa.ParseFrame(append(head, private...), mpa.KindRequest)
	if err != nil {
		return err
	}
	request.Kind = mpa.KindReply
	framer := mpa.NewFramer(false, true)
	octets, err := framer.AppendFPDU(request.AppendTo(nil), make([]byte, 18))
	if err != nil {
		return err
	}
	_, err = conn.Write(octets)
	_, wait := io.Copy(io.Discard, conn)
	return errors.Join(err, wait)
}

// TestExecServerSpeaksTooSoon: a stream's client whose server sends before it has, in one piece
// with the Reply, loses its connection, and the log says why. That is how TestExecWithSiw knows
// that it may try again.
func TestExecServerSpeaksTooSoon(t *testing.T) {
	b := newBridged(t)
	b.flags = []string{"--log"}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	testkit.OK(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	defer func() { testkit.OK(t, l.Close()) }()
	done := make(chan error, 1)
	go func() { done <- answerTooSoon(l) }()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	client := b.start(arguments("riostream -s ADDR -p PORT -S 4096 -I 20 -C 20", "127.0.0.1", port)...)
	if !spokeTooSoon(t, client) {
		t.Errorf("the log does not say that the server spoke too soon: %s", &client.stderr)
	}
	// riostream's status is what rpoll reports of the connection. It prints errno, too, which by
	// then may be that of another call.
	const pollErr = 8
	client.want(t, pollErr)
	if said := client.stderr.String(); !strings.Contains(said, "rpoll: ") {
		t.Errorf("riostream says %q", said)
	}
	testkit.OK(t, <-done)
}
