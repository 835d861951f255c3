package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
)

// TestRunsDoNotShareConnections: a run never has the connections of another run, over the same
// device of the engine or over TCP.
func TestRunsDoNotShareConnections(t *testing.T) {
	var ends [2]*perfEnd
	for i := range ends {
		ctx, stop := context.WithCancel(t.Context())
		ends[i] = &perfEnd{ctx: ctx, self: load.End{Procs: 1}, vctxs: make(map[endDevice]*ibverbs.Context)}
		defer ends[i].close(stop)
	}
	server, client := ends[0], ends[1]
	connected := func(x *perfEnd) int {
		return testkit.Must(testkit.Must(x.open(overEngine))(t).Stats())(t).Connected
	}
	stream, tcp := overEngine, endDevice{Provider: "tcp"}
	stream.Stream = true
	at := make(map[endDevice]netip.AddrPort)
	for _, d := range []endDevice{overEngine, stream, tcp} {
		at[d] = testkit.Must(server.listen(d, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	}
	for _, c := range []struct {
		over endDevice
		want int // connections over the engine: of a run over verbs, one for orders and one for data
	}{{overEngine, 2}, {stream, 1}, {overEngine, 2}, {tcp, 0}, {stream, 1}, {tcp, 0}, {overEngine, 2}} {
		spec := load.Spec{Op: rawtcp.BW, Size: 64, Iters: 10, Poll: load.Block}
		if c.over.overVerbs() {
			spec.Op = load.WriteBW
		}
		testkit.Must(client.run(endPeer{c.over, at[c.over]}, spec))(t)
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

var overEngine = endDevice{Provider: "engine", CRC: "on"}

// TestOrdersOfAnEnd: an end answers an order that it can't carry out, and goes on.
func TestOrdersOfAnEnd(t *testing.T) {
	var out bytes.Buffer
	in := strings.NewReader(`{"Who":true}
{}
{"Run":{"Op":"write-bw","Size":64,"Iters":1},"Over":{"Provider":"engine","CRC":"on"},"Addr":"127.0.0.1:1"}
{"Run":{"Op":"write-bw","Size":0,"Iters":1},"Over":{"Provider":"engine","CRC":"on"},"Addr":"127.0.0.1:1"}
{"Listen":{"Provider":"tcp"},"Addr":"127.0.0.1:0"}
`)
	testkit.OK(t, serveOrders(t.Context(), in, &out, load.End{Procs: 3}))
	var answers []endReply
	for d := json.NewDecoder(&out); ; {
		var a endReply
		if err := d.Decode(&a); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != 5 {
		t.Fatalf("answers %+v", answers)
	}
	if e := answers[0].Answer.End; e == nil || e.Procs != 3 {
		t.Errorf("who it is: %+v", answers[0])
	}
	for i, want := range []string{"nothing", "nobody listens there; start the server first", "size 0: has to be"} {
		if !strings.Contains(answers[i+1].Error, want) {
			t.Errorf("answer %d is %q, want one with %q", i+1, answers[i+1].Error, want)
		}
	}
	if s := answers[2].Answer.Spec; s == nil || s.TxDepth != 128 || s.PostList != 32 {
		t.Errorf("the run has %+v, want the defaults", s)
	}
	if a := answers[4]; a.Error != "" || a.Answer.Addr.Port() == 0 {
		t.Errorf("listening: %+v", a)
	}
	if err := serveOrders(t.Context(), strings.NewReader("perhaps\n"), &out, load.End{}); err == nil {
		t.Error("an order that is none")
	}
}
