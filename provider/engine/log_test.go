package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestLogWithoutWRIDs: a Terminate for a work request is logged without its WRID, which may be one
// that the program has not given.
func TestLogWithoutWRIDs(t *testing.T) {
	log := new(recorder)
	a, _ := pair(t, memnet.New(nil), memAddr, Options{Logger: slog.New(log)}, sideOptions{}, params(true))
	a.send(provider.SendWR{WRID: 0xabcdef, Opcode: provider.WRSend, SGList: []provider.SGE{{Length: 1, LKey: 7}}})
	a.wantTerm("at the sender", false, 0, 0, 0xff)
	a.dev.log.draining.Wait()
	if got := log.String(); !strings.Contains(got, "IBV_WR_SEND, SGE 0: no region has lkey 0x7") || strings.Contains(got, "abcdef") {
		t.Errorf("logged %q", got)
	}
}

// TestLogKeepsErrors: records that peers cause don't displace the overflow of a CQ, which is the
// program's own fault, and of another level.
func TestLogKeepsErrors(t *testing.T) {
	var out bytes.Buffer
	l := &logger{to: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))}
	for range 3 * logPerSecond {
		l.add(slog.LevelWarn, "Terminate received")
	}
	l.overflow(64)
	l.draining.Wait()
	if !strings.Contains(out.String(), "CQ overflow") {
		t.Errorf("logged %q, without the overflow", out.String())
	}
}

// TestLogReadSink: the first Read into a region that RNICs would not let the peer's answer into is
// logged, and no other.
func TestLogReadSink(t *testing.T) {
	log := new(recorder)
	a, b := pair(t, memnet.New(nil), memAddr, Options{Logger: slog.New(log)}, sideOptions{}, params(true))
	from := b.reg(8, allRights)
	read := func(access provider.Access) string {
		t.Helper()
		sink := a.reg(8, access)
		a.send(provider.SendWR{
			Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{sink.sge(0, 8)}, RemoteAddr: from.to(0), RKey: from.m.STag(),
		})
		testkit.Equal(t, "the Read's status", a.poll().Status, provider.WCSuccess)
		a.dev.log.draining.Wait()
		return log.String()
	}
	const want = "ibverbs.AccessReadSink"
	testkit.Equal(t, "the log of a sink that the peer may write",
		read(provider.AccessLocalWrite|provider.AccessRemoteWrite), "")
	if got := read(provider.AccessLocalWrite); strings.Count(got, want) != 1 {
		t.Errorf("log, want %q once:\n%s", want, got)
	}
	if got := read(provider.AccessLocalWrite); strings.Count(got, want) != 1 {
		t.Errorf("log after a second Read, want %q once:\n%s", want, got)
	}
}
