package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

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
		if got := [2]int{e.Param.ResponderResources, e.Param.InitiatorDepth}; got != tc.want {
			t.Errorf("%+v: %v, want %v", tc.r, got, tc.want)
		}
	}
}

// TestRequestOfOptions looks at the Request that options lead to, byte by byte.
//
//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.1-12 Res bits zero on send
//rfc:5044 MPA-7.1.1-14 Rev=1 for this spec
//rfc:5044 MPA-7.1.1-17 PD_Length equals private data length
//rfc:6581 MPA2-6-01 S=1 iff private data starts with the enhanced block
//rfc:6581 MPA2-6-06 PD_Length includes the 4-octet block
//rfc:6581 MPA2-9.2-10 A=0 for client-server
//rfc:6581 MPA2-9.2-12 A=0 forces B=C=D=0 on send
func TestRequestOfOptions(t *testing.T) {
	for _, tc := range []struct {
		opts Options
		want string // after the key
	}{
		{Options{}, "\x50\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{CRC: CRCOff}, "\x10\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{Markers: true}, "\xd0\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{Revision: 1}, "\x40\x01\x00\x02" + "hi"},
		{Options{Revision: 1, CRC: CRCOff, Markers: true}, "\x80\x01\x00\x02" + "hi"},
	} {
		inMemory(t, tc.opts, func(t *testing.T, w *cmWorld) {
			client, p, f := w.toRaw(provider.ConnParam{ResponderResources: 3, InitiatorDepth: 5,
				PrivateData: []byte("hi")})
			if got := string(f.AppendTo(nil)); got != "MPA ID Req Frame"+tc.want {
				t.Errorf("%+v: Request %q, want %q after the key", tc.opts, got, tc.want)
			}
			p.close()
			w.active.want("the peer hung up", client, provider.CMRejected, syscall.ECONNRESET)
		})
	}
}
