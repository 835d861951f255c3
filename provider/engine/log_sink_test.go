package engine

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

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
			SGList: []provider.SGE{sink.sge(0, 8)}, RemoteAddr: from.to(0), RKey: from.m.stag,
		})
		if wc := a.poll(); wc.Status != provider.WCSuccess {
			t.Fatalf("a Read: %v", wc.Status)
		}
		a.dev.log.draining.Wait()
		return log.String()
	}
	const want = "ibverbs.AccessReadSink"
	if got := read(provider.AccessLocalWrite | provider.AccessRemoteWrite); got != "" {
		t.Errorf("a sink that the peer may write:\n%s", got)
	}
	if got := read(provider.AccessLocalWrite); strings.Count(got, want) != 1 {
		t.Errorf("log, want %q once:\n%s", want, got)
	}
	if got := read(provider.AccessLocalWrite); strings.Count(got, want) != 1 {
		t.Errorf("log after a second Read, want %q once:\n%s", want, got)
	}
}
