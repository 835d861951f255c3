package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

func TestFailureEvents(t *testing.T) {
	for _, tc := range []struct {
		err   error
		typ   provider.CMEventType
		errno syscall.Errno
	}{
		{syscall.ECONNREFUSED, provider.CMRejected, syscall.ECONNREFUSED},
		{syscall.ECONNRESET, provider.CMRejected, syscall.ECONNRESET},
		{syscall.EPIPE, provider.CMRejected, syscall.ECONNRESET},
		{io.EOF, provider.CMRejected, syscall.ECONNRESET},
		{&mpa.RejectedError{}, provider.CMRejected, syscall.ECONNREFUSED},
		{syscall.ETIMEDOUT, provider.CMUnreachable, syscall.ETIMEDOUT},
		{fmt.Errorf("connect: %w", context.DeadlineExceeded), provider.CMUnreachable, syscall.ETIMEDOUT},
		{syscall.EHOSTUNREACH, provider.CMUnreachable, syscall.EHOSTUNREACH},
		{syscall.ENETUNREACH, provider.CMUnreachable, syscall.ENETUNREACH},
		{fmt.Errorf("socket: %w", syscall.EMFILE), provider.CMConnectError, syscall.EMFILE},
		{syscall.EADDRNOTAVAIL, provider.CMConnectError, syscall.EADDRNOTAVAIL},
		{mpa.ErrKey, provider.CMConnectError, syscall.EINVAL},
		{mpa.ErrInsufficientIRD, provider.CMConnectError, syscall.EINVAL},
		{os.ErrClosed, provider.CMConnectError, syscall.EINVAL},
		{errors.New("something else"), provider.CMConnectError, syscall.EINVAL},
	} {
		if e := failureEvent(tc.err); e.Type != tc.typ || e.Status != -int(tc.errno) {
			t.Errorf("%v: %s, status %d; want %s, %d", tc.err, e.Type, e.Status, tc.typ, -int(tc.errno))
		}
	}
}

// TestRejectedDepths passes on what a responder that said no would have needed.
//
//rfc:6581 MPA2-9.1-09 Initiator passes responder IRD/ORD to ULP, also on reject
func TestRejectedDepths(t *testing.T) {
	for _, tc := range []struct {
		r    mpa.RejectedError
		want [2]int
	}{
		{mpa.RejectedError{Enhanced: true, IRD: 3, ORD: 9}, [2]int{9, 3}},
		{mpa.RejectedError{Enhanced: true, IRD: mpa.NotNegotiated, ORD: 9}, [2]int{9, maxDepth}},
		{mpa.RejectedError{IRD: mpa.NotNegotiated, ORD: mpa.NotNegotiated}, [2]int{0, 0}},
	} {
		e := failureEvent(&tc.r)
		got := [2]int{e.Param.ResponderResources, e.Param.InitiatorDepth}
		testkit.Equal(t, "resources and depth", got, tc.want)
	}
}
