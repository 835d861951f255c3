package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// streamBenchFlags are the flags of stream --bench.
type streamBenchFlags struct {
	Bench      bool   `help:"Measure, as rstream does, instead of connecting standard input and output."`
	Size       string `short:"S" help:"With --bench: bytes of a transfer, or all for all of rstream's sizes. Default: rstream's four sizes; with --count or --iterations 1000." placeholder:"N|all"`
	Count      int    `short:"C" default:"1000" help:"With --bench: transfers that follow each other in one direction. Default 1000. 1: round trips." placeholder:"N"`
	Iterations int    `short:"I" default:"1" help:"With --bench: how often both ends send --count transfers, one end after the other. Default 1." placeholder:"N"`
	Verify     bool   `help:"With --bench: compare what comes with the bytes of rstream -T v. This command always sends these bytes."`
	JSON       bool   `name:"json" help:"With --bench: print the result as JSON."`
}

// allSizes is the value of --size for all sizes.
const allSizes = "all"

// checkBench checks the options of --bench.
func (f *streamBenchFlags) checkBench(k *kong.Context) error {
	if !f.Bench {
		for _, option := range []string{"size", "count", "iterations", "verify", "json"} {
			if given(k, option) {
				return fmt.Errorf("--%s: is for --bench: add that, or leave the option out", option)
			}
		}
		return nil
	}
	if f.Size == allSizes && (given(k, "count") || given(k, "iterations")) {
		return errors.New("--size all has rstream's own numbers: leave --count and --iterations out")
	}
	if f.Size != "" && f.Size != allSizes {
		if n, err := strconv.Atoi(f.Size); err != nil || n < 1 || n > rstream.MaxSize {
			return fmt.Errorf("--size %s: has to be a number from 1 to %d, or all", f.Size, rstream.MaxSize)
		}
	} else if given(k, "size") && f.Size == "" {
		return errors.New("--size is empty: give a number of bytes, or all")
	}
	return checkLimits([]limit{
		{"count", f.Count, 1, rstream.MaxCount}, {"iterations", f.Iterations, 1, rstream.MaxCount},
	})
}

// phases returns the tests, grouped by connection.
func (f *streamBenchFlags) phases(k *kong.Context) [][]rstream.Test {
	if f.Size == allSizes || f.Size == "" && !given(k, "count") && !given(k, "iterations") {
		var lat, bw []rstream.Test
		for _, size := range rstream.Sizes(f.Size == allSizes) {
			lat, bw = append(lat, rstream.LatencyOf(size)), append(bw, rstream.BandwidthOf(size))
		}
		return [][]rstream.Test{lat, bw}
	}
	t := rstream.Test{Size: rstream.DefaultSize, Transfers: f.Count, Iterations: f.Iterations}
	if f.Size != "" {
		t.Size, _ = strconv.Atoi(f.Size) // checked by checkBench
	}
	return [][]rstream.Test{{t}}
}

// streamReport is the output of --json.
type streamReport struct {
	Role     string      `json:"role"` // client (connects and sends first) or server
	Peer     string      `json:"peer"`
	Provider string      `json:"provider"`
	Device   string      `json:"device"`
	Results  []streamRow `json:"results"`
}

// streamRow is the result of a test.
type streamRow struct {
	Test rstream.Test `json:"test"`
	perfRow
}

// bench does all tests, each phase over its own connection.
func (c *streamCmd) bench(ctx context.Context, phases [][]rstream.Test, out *output,
	vctx *ibverbs.Context, next func(context.Context) (*rsocket.Conn, error),
) error {
	rep := streamReport{Role: "client", Provider: vctx.Provider(), Device: vctx.Name(),
		Results: []streamRow{}}
	end := &rstream.End{Verify: c.Verify, Patience: c.Timeout}
	if c.Listen != "" {
		rep.Role, end.Accepted = "server", true
	}
	for _, tests := range phases {
		conn, err := next(ctx)
		if err != nil {
			return err
		}
		if rep.Peer = conn.RemoteAddr().String(); !c.JSON {
			op := opOfStream(tests[0])
			fmt.Fprintf(out, "%s: block; %s of %s over %s %s\n%s\n", op, rep.Role, rep.Peer,
				rep.Provider, rep.Device, headings(op))
		}
		if err := c.closing(out, conn, c.phase(ctx, out, conn, end, tests, &rep)); err != nil {
			return err
		}
	}
	if c.JSON {
		return out.json(rep)
	}
	return nil
}

// sameOptions names the most likely cause of ends that do not agree.
const sameOptions = "does it have the same --size, --count and --iterations (rstream: -S, -C and -I)?"

// phase does the tests of one connection.
func (c *streamCmd) phase(ctx context.Context, out *output, conn *rsocket.Conn, end *rstream.End,
	tests []rstream.Test, rep *streamReport,
) error {
	for _, t := range tests {
		r, err := end.Run(ctx, conn, t)
		if errors.Is(err, rstream.ErrEnded) || errors.Is(err, rstream.ErrQuiet) {
			err = fmt.Errorf("%w; %s", err, sameOptions)
		}
		if err != nil {
			return fmt.Errorf("%d times %d transfers of %d bytes: %w", t.Iterations, t.Transfers,
				t.Size, err)
		}
		row := newPerfRow(load.Spec{Op: opOfStream(t), Poll: load.Block, Size: t.Size,
			Iters: t.Iterations * t.Transfers}, r)
		rep.Results = append(rep.Results, streamRow{t, row})
		if !c.JSON {
			fmt.Fprintln(out, row.line())
		}
	}
	if c.Listen == "" {
		return nil
	}
	return c.awaitEnd(conn)
}

// patienceAtEnd is how long the peer has to end a connection after its tests.
const patienceAtEnd = time.Second

// awaitEnd waits for the peer to end the connection, for up to patienceAtEnd. This end has sent
// last, and rstream -T a fails if the end of a connection arrives together with the last bytes.
func (c *streamCmd) awaitEnd(conn *rsocket.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(patienceAtEnd)); err != nil {
		return err
	}
	if n, _ := conn.Read(make([]byte, 1)); n > 0 { // an error is fine, because the tests are over
		return errors.New("the peer sends more than the tests have; " + sameOptions)
	}
	return nil
}

func opOfStream(t rstream.Test) load.Op {
	if t.Latency() {
		return "stream-lat"
	}
	return "stream-bw"
}
