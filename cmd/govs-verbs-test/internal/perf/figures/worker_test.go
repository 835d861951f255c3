package figures

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
)

// TestRunsDoNotShareConnections: a run has the connections of no other one beside it, whether that
// was over the same device of the engine or over TCP.
func TestRunsDoNotShareConnections(t *testing.T) {
	var ends [2]*executor
	for i := range ends {
		ctx, stop := context.WithCancel(t.Context())
		ends[i] = &executor{ctx: ctx, self: load.End{Procs: 1}, vctxs: make(map[Device]*ibverbs.Context)}
		defer ends[i].close(stop)
	}
	server, client := ends[0], ends[1]
	connected := func(x *executor) int {
		return testkit.Must(testkit.Must(x.open(engine))(t).Stats())(t).Connected
	}
	stream, tcp := engine, Device{Provider: "tcp"}
	stream.Stream = true
	at := make(map[Device]netip.AddrPort)
	for _, d := range []Device{engine, stream, tcp} {
		at[d] = testkit.Must(server.listen(d, netip.AddrPortFrom(loopback, 0)))(t)
	}
	for _, c := range []struct {
		over Device
		want int // connections over the engine: of a run over verbs, one for orders and one for data
	}{{engine, 2}, {stream, 1}, {engine, 2}, {tcp, 0}, {stream, 1}, {tcp, 0}, {engine, 2}} {
		spec := load.Spec{Op: rawtcp.BW, Size: 64, Iters: 10, Poll: load.Block}
		if c.over.overVerbs() {
			spec.Op = load.WriteBW
		}
		testkit.Must(client.run(peer{c.over, at[c.over]}, spec))(t)
		for i, x := range ends {
			start := time.Now()
			n := connected(x)
			for ; n != c.want && time.Since(start) < time.Minute; n = connected(x) {
				time.Sleep(time.Millisecond) // the server notices a little later
			}
			if n != c.want {
				t.Errorf("after a run over %+v, end %d has %d connections over the engine, want %d", c.over, i, n, c.want)
			}
		}
	}
}
