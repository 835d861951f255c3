package provider_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestRejectedError: the text has the reason and a remedy, and the errno or the status last.
func TestRejectedError(t *testing.T) {
	const refused, reset = -int(syscall.ECONNREFUSED), -int(syscall.ECONNRESET)
	const private = " with 2 bytes of private data; RejectedError.PrivateData may say why"
	for want, err := range map[string]*provider.RejectedError{
		"why: connection refused": {Status: refused, Cause: errors.New("why")},
		"why" + private + ": connection refused": {
			Status: refused, Cause: errors.New("why"), PrivateData: []byte("no"),
		},
		"nobody listens there, or the peer's program rejected it; start the server first, or read its log: " +
			"connection refused": {Status: refused},
		"the peer's program rejected it" + private + ": connection reset by peer": {
			Status: reset, PrivateData: []byte("no"),
		},
		"the peer's program rejected it, or the peer closed the connection without an answer; the peer's log " +
			"may say why: connection reset by peer": {Status: reset},
		// InfiniBand pads private data.
		"nobody listens there; start the server first: connection rejected, status 8": {
			Status: 8, PrivateData: make([]byte, 148),
		},
		"the peer's program rejected it" + private + ": connection rejected, status 28": {
			Status: 28, PrivateData: []byte("no"),
		},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v is not ECONNREFUSED", err)
		}
	}
}
