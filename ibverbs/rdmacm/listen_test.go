package rdmacm_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestListenBacklog: a negative Backlog is refused, and the error names the field.
func TestListenBacklog(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	_, err := rdmacm.Listen(ctx, vctx, addr, &rdmacm.ListenConfig{Backlog: -1})
	wantErr(t, "Listen", err, syscall.EINVAL, "rdma_listen "+addr.String(), "ListenConfig.Backlog is -1")
}

// lines is a writer that passes on the output of a slog handler.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestListenToOtherProtocols: the log names the protocol of a client that has connected to the
// wrong port.
func TestListenToOtherProtocols(t *testing.T) {
	ctx := timeout(t)
	log := make(lines, 16)
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}), ""))(t)
	l := testkit.Must(rdmacm.ListenName(ctx, vctx, "127.0.0.1:0", nil))(t)
	for sent, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n":      "the peer speaks HTTP, not iWARP",
		"SSH-2.0-OpenSSH_9.9 and so on\r\n":              "the peer speaks SSH, not iWARP",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":               "the peer speaks HTTP/2, not iWARP",
		"something else that is long enough for a frame": "key of a start-up frame is wrong",
	} {
		c := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
		testkit.Must(c.Write([]byte(sent)))(t)
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		select {
		case got := <-log:
			if !strings.Contains(got, want) || !strings.Contains(got, c.LocalAddr().String()) {
				t.Errorf("after %q the log has %q, want %q", sent, got, want)
			}
		case <-time.After(patience):
			t.Fatalf("after %q nothing is logged", sent)
		}
	}
	testkit.OK(t, l.Close())
	testkit.OK(t, vctx.Close())
}

// TestConnListenerKnowsItsAddr: a closed Listener returns its former address, and Dial to it says
// that no program listens.
func TestConnListenerKnowsItsAddr(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	had := l.Addr()
	testkit.OK(t, l.Close())
	if got := l.Addr(); got != had || had.Port() == 0 {
		t.Errorf("%v after Close, %v before", got, had)
	}
	_, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	wantErr(t, "Dial of a closed listener", err, syscall.ECONNREFUSED, had.String(), "nobody listens")
}
