//go:build !race

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestExecErrnos: calls with bad arguments fail with exec as they fail without it. With exec they
// name the RDMA device and its files in sysfs, without exec another device and its files.
func TestExecErrnos(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "errnos")
	plain := testkit.Must(exec.Command(program, "/dev/null", "/sys/class/net/lo/address",
		"0").Output())(t) // NETLINK_ROUTE
	bridged := testkit.Must(b.command(nil, program, "/dev/infiniband/uverbs0",
		"/sys/class/infiniband/siw0/node_type", "20").Output())(t) // NETLINK_RDMA
	lines := func(out []byte) []string { return strings.Split(string(out), "\n") }
	if len(lines(plain)) < 500 {
		t.Errorf("only %d calls were tried", len(lines(plain)))
	}
	if diff := cmp.Diff(lines(plain), lines(bridged)); diff != "" {
		t.Errorf("without exec (-) and with it (+):\n%s", diff)
	}
}

// TestExecCalls runs programs of testdata that check what their calls do. The comment at the top of
// each says what that is.
func TestExecCalls(t *testing.T) {
	b := newBridged(t)
	for name, libraries := range map[string][]string{
		"allsignals":  {"-libverbs", "-lpthread"},
		"altstacks":   {"-lpthread"},
		"atfork":      {"-lpthread"},
		"badcalls":    nil,
		"cancelled":   {"-libverbs", "-lpthread"},
		"closelater":  {"-lpthread"},
		"descriptors": {"-lrdmacm", "-libverbs", "-lpthread"},
		"forklisten":  {"-lrdmacm"},
		"fortified":   {"-O2", "-D_FORTIFY_SOURCE=2"},
		"forks":       {"-libverbs", "-lpthread"},
		"garbled":     {"-libverbs"},
		"generations": nil,
		"limits":      {"-pthread"},
		"manyopens":   {"-lrdmacm", "-libverbs", "-pthread"},
		"nonblocking": {"-pthread"},
		"rewritten":   {"-lpthread"},
		"signals":     {"-libverbs", "-lpthread"},
		"smallstack":  {"-lrdmacm", "-libverbs", "-lpthread"},
		"spellings":   nil,
		"standard":    {"-lrdmacm", "-libverbs"},
		"stdio":       {"-pthread"},
	} {
		t.Run(name, func(t *testing.T) {
			b.of(t).start(compiled(t, name, libraries...)).want(t, 0, "as it must be")
		})
	}
}

// TestExecExtensions: a peer that has RFC 7306's messages may send them to a program only if the
// program runs with --extensions. Otherwise they end the connection, and the program's memory is
// unchanged.
func TestExecExtensions(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "extended", "-lrdmacm", "-libverbs")
	for _, x := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--extensions"}, "a message of 0 bytes; the word is 45"},
		{nil, "ended: Work Request Flushed Error; the word is 40"},
	} {
		port := freePort()
		server := startCmd(t, b.command(x.flags, program, fmt.Sprint(port)))
		awaitListener(t, server, port)
		err := addAndSend(t, port)
		if taken := strings.Contains(x.says, "message"); taken != (err == nil) {
			t.Errorf("exec %s: an atomic operation and immediate data: %v", x.flags,
				err)
		}
		server.want(t, 0, x.says)
	}
}

// addAndSend connects to extended, adds 5 to its word, and sends it immediate data.
func addAndSend(t *testing.T, port uint16) error {
	t.Helper()
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer func() { testkit.OK(t, pd.Close()) }()
	mr := testkit.Must(pd.AllocMR(64, ibverbs.AccessLocalWrite))(t)
	defer func() { testkit.OK(t, mr.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn := testkit.Must(rdmacm.Dial(ctx, vctx, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
		port), &rdmacm.ConnConfig{PD: pd, ResponderResources: 4, InitiatorDepth: 4}))(t)
	defer func() { _ = conn.Close() }()
	where := conn.PrivateData()
	word := ibverbs.RemoteRegion{Addr: binary.NativeEndian.Uint64(where),
		RKey: binary.NativeEndian.Uint32(where[8:]), Len: 8}
	old := testkit.Must(mr.SGE(0, 8))(t)
	if err := conn.Do(ctx, ibverbs.NewFetchAdd(word, 5, old)); err != nil {
		return err
	}
	if was := binary.NativeEndian.Uint64(mr.Bytes()); was != 40 {
		t.Errorf("the word was %d, want 40", was)
	}
	send := ibverbs.NewSend() // RFC 7306 has immediate data only without payload
	send.Opcode, send.Imm = ibverbs.WRSendWithImm, 7
	return conn.Do(ctx, send)
}
