package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// workloadOptions are the options that the client decides; the server gets them from it.
var workloadOptions = []string{
	"size", "all", "iters", "duration", "warmup", "qp", "poll", "tx-depth", "post-list", "inline", "sge", "mr",
	"outstanding", "bidirectional",
}

// engineOptions are options that the kernel provider does not support.
var engineOptions = []string{"crc", "busy-wait", "cong"}

// useless returns why a workload does not use an option, or "" if it does.
func useless(op load.Op, option string) string {
	reads := op == load.ReadBW || op == load.ReadLat
	switch option {
	case "tx-depth", "post-list", "bidirectional":
		if op.Latency() {
			return "has one message under way at a time"
		}
	case "qp":
		if op.Latency() {
			return "has one message under way at a time, on one QP"
		}
	case "outstanding":
		if !reads {
			return "posts no RDMA Reads"
		}
	case "inline":
		if reads {
			return "posts RDMA Reads, which can't be inline"
		}
	}
	return ""
}

// checkUseless refuses options without effect.
func (f *perfFlags) checkUseless(k *kong.Context) error {
	op := opOf(k)
	switch {
	case f.QP != 1 && useless(op, "qp") != "":
		return fmt.Errorf("--qp %d: %s %s", f.QP, op, useless(op, "qp"))
	case f.Listen == "" && given(k, "serve"):
		return fmt.Errorf("--serve %d: is for a server, with --listen", f.Serve)
	case f.Listen != "" && f.JSON:
		return fmt.Errorf("--json: the client prints the result: leave the option out at the server")
	}
	for _, option := range workloadOptions {
		if !given(k, option) {
			continue
		}
		if f.Listen != "" {
			return fmt.Errorf("--%s: the client decides the workload: leave the option out at the server", option)
		}
		if why := useless(op, option); why != "" && option != "qp" {
			return fmt.Errorf("--%s: %s %s: leave the option out", option, op, why)
		}
	}
	return nil
}

// checkUseless refuses options without effect.
func (c *perfRDMACmd) checkUseless(k *kong.Context) error {
	if c.Provider == "kernel" {
		for _, option := range engineOptions {
			if given(k, option) {
				return fmt.Errorf("--%s: is for the engine, and --provider is kernel: leave the option out", option)
			}
		}
	}
	if c.BusyWait < 0 {
		return fmt.Errorf("--busy-wait %v: has to be at least 0", c.BusyWait)
	}
	if c.Listen == "" && given(k, "busy-wait") && load.Poll(c.Poll) == load.Spin {
		return fmt.Errorf("--busy-wait: with --poll spin this end never sleeps: add --poll block")
	}
	return nil
}

// describePerf adapts the help of each workload: its name, and only the options that it uses.
func describePerf(app *kong.Application) {
	i := slices.IndexFunc(app.Children, func(n *kong.Node) bool { return n.Name == "perf" })
	if i < 0 {
		return // the command is another one
	}
	for _, n := range app.Children[i].Children {
		op := load.Op(n.Name)
		tcp := strings.HasPrefix(n.Name, "tcp-")
		if !tcp && !slices.Contains(load.Ops(), op) {
			continue
		}
		n.Detail = workloadHelp(op, tcp)
		for _, f := range n.Flags {
			f.Hidden = f.Hidden || useless(op, f.Name) != ""
		}
	}
}

// workloadHelp describes a workload.
func workloadHelp(op load.Op, tcp bool) string {
	others, options := "a workload over RDMA", "--provider, --crc, --busy-wait, --cong, --cpu and --procs"
	if tcp {
		others, options = "tcp-bw or tcp-lat", "--cong, --cpu and --procs"
	}
	text := `The client decides the workload, so give its options to the client only. A server serves whatever its client asks for, if that is ` + others +
		`, whichever subcommand started it. Each end has its own options of the device and the ` +
		`process: ` + options + `. ` +
		`The server and the client, for instance:

    ` + name + ` perf ` + string(op) + ` --listen 192.0.2.1:7175
    ` + name + ` perf ` + string(op) + ` 192.0.2.1:7175 --all

`
	if !tcp {
		text += `With --self one command is both ends, and prints raw TCP beside RDMA: each round measures both, ` +
			`and the ratio is the median of the rounds' ratios. The ends are two processes, each on a CPU of its ` +
			`own with GOMAXPROCS 1, unless --procs or --cpu say otherwise:

    ` + name + ` perf ` + string(op) + ` --self

`
	}
	switch {
	case op.Latency() && !tcp && op != load.ReadLat:
		text += "The whole round trip is printed; perftest's ib_" + strings.ReplaceAll(string(op), "-", "_") + " prints half of it."
	case op.Latency():
		text += "The whole round trip is printed."
	case tcp:
		text += "Bandwidth counts until the server has received the last byte."
	default:
		text += "Bandwidth counts until the last byte is placed in memory."
	}
	if tcp {
		text += "\nWith --poll block the ends use a net.Conn, with spin they poll sockets directly."
	} else {
		text += "\nWhat is received is compared with what was sent, outside of the time that counts." +
			" With --poll block an end polls for --busy-wait before it sleeps, if recent waits were" +
			" that short; with --busy-wait 0 it sleeps at once."
	}
	columns := "GB are 10^9 bytes, GiB 2^30."
	if !tcp {
		columns = "BW peak is the highest average over at least 10 ms and 4 times what may be outstanding; " + columns +
			" Without --tx-depth, more than 8 QPs have 1024 work requests outstanding in all, " +
			"but at least 4 on each."
	}
	if op.Latency() {
		columns = "t_typical is the median, 99% and 99.9% are percentiles."
	}
	return text + "\n\n" + columns + " CPU is the processor time of both ends, user and system. " +
		"With --poll spin each end needs a CPU to itself, otherwise it waits for the scheduler."
}
