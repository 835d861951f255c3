package p9_test

import (
	"net"
	"testing"
	"testing/fstest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
)

// TestNilAndZeroValues: a server without a file system, a server without a transport and bytes that
// are not a message each fail with an error that says so.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: time.Minute}
	empty.Zeros(t, &p9.Server{})
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	for what, fs := range map[string]p9.FS{
		"nil": nil, "of a nil fs.FS": p9.NewFS(nil), "of a nil root": p9.NewDir(nil),
	} {
		empty.Func(t, "Serve of an FS "+what, func() error {
			return p9.NewServer(fs, p9.Limits{}).Serve(t.Context(), p9.NewStream(far, msize, 1, 0))
		})
	}
	server := p9.NewServer(p9.NewFS(fstest.MapFS{}), p9.Limits{})
	empty.Func(t, "Serve without a transport", func() error { return server.Serve(t.Context(), nil) })
	empty.Func(t, "Serve of a stream over nil", func() error {
		return server.Serve(t.Context(), p9.NewStream(nil, msize, 1, 0))
	})
	for what, m := range map[string]any{"a struct": p9.Tfid{}, "a nil pointer": (*p9.Tfid)(nil)} {
		for name, call := range map[string]func() error{
			"Encode": func() error { _, err := p9.Encode(make([]byte, 64), p9.KindClunk, 1, m); return err },
			"Decode": func() error { return p9.Decode(make([]byte, 11), m) },
		} {
			if err := call(); err == nil {
				t.Errorf("%s takes %s", name, what)
			}
		}
	}
	for n := range 7 {
		if p9.Decode(make([]byte, n), nil) == nil {
			t.Errorf("%d bytes are a message", n)
		}
	}
}

// TestStreamWithoutReplies: a stream with a limit of 0 replies at a time sends one at a time.
func TestStreamWithoutReplies(t *testing.T) {
	for _, replies := range []int{0, -1} {
		near, far := net.Pipe()
		sent := make(chan error, 1)
		go func() { sent <- p9.NewStream(far, msize, replies, 0).Send(t.Context(), func([]byte) int { return -1 }) }()
		if err := <-sent; err != nil {
			t.Error(err)
		}
		_, _ = near.Close(), far.Close()
	}
}
