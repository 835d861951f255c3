package rdmacm_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// The text of a Conn: open, after its end and Close, and nil.
func TestConnString(t *testing.T) {
	client, server := pair(t, nil, nil)
	want := fmt.Sprintf("%s -> %s, qp %d (", client.LocalAddr(), client.RemoteAddr(), client.QP().QPN())
	if got := client.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q and more", got, want)
	}
	testkit.OK(t, server.Shutdown(timeout(t)))
	testkit.OK(t, client.Wait(timeout(t)))
	if got := client.String(); !onKernel() && !strings.Contains(got, "IBV_QPS_ERR") {
		t.Errorf("after the end: %q", got)
	}
	testkit.OK(t, client.Close())
	if got := client.String(); !strings.Contains(got, "(closed)") {
		t.Errorf("after Close: %q", got)
	}
	if got := (*rdmacm.Conn)(nil).String(); got != "nil connection" {
		t.Errorf("nil: %q", got)
	}
}

func TestEventString(t *testing.T) {
	for want, e := range map[string]*rdmacm.Event{
		"nil event":                 nil,
		"RDMA_CM_EVENT_ESTABLISHED": {Type: rdmacm.Established},
		"RDMA_CM_EVENT_REJECTED: rdma_connect: nobody listens there, or the peer's program rejected it; " +
			"start the server first, or read its log: connection refused": {
			Type: rdmacm.Rejected, Status: -int(syscall.ECONNREFUSED),
		},
		"RDMA_CM_EVENT_UNREACHABLE: rdma_connect: RDMA_CM_EVENT_UNREACHABLE: why: no route to host": {
			Type: rdmacm.Unreachable, Status: -int(syscall.EHOSTUNREACH),
			Cause: fmt.Errorf("why: %w", syscall.EHOSTUNREACH),
		},
	} {
		if got := e.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The text of an ID: a listener's and a connection's, after Close and nil.
func TestIDString(t *testing.T) {
	client, server := pair(t, nil, nil)
	device := client.ID().DeviceName()
	want := fmt.Sprintf("cm id of %s: %s -> %s", device, client.LocalAddr(), server.LocalAddr())
	if got := client.ID().String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	testkit.OK(t, client.Close())
	for want, id := range map[string]*rdmacm.ID{
		"cm id of " + device + " (closed)": client.ID(), "nil cm id": nil,
	} {
		if got := id.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
