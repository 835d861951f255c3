package figures

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/outside"
)

// A measure is made once in each round. Exactly one of Device and Test is set.
type measure struct {
	Name   string
	Device *load.Device
	Spec   load.Spec
	Test   *outside.Test
	Rounds int // that it is made in, at most; 0: all
}

// A formula makes a figure of measures.
type formula struct {
	id     string
	of, to string // names of measures; without to the value of the first counts
	value  quantity
	needs  string  // siw or siw-crc: what there has to be
	reach  float64 // of the path: what the figure is to reach, 0 for nothing
}

// formulas are those of figures that come from measures. Those with a dash in
// their id are beside the goals.
var formulas = slices.Concat(pathFormulas(), hostFormulas)

var hostFormulas = []formula{
	{id: "write_1m_crc", of: "write-1m", to: "tcp-1m", value: gbps},
	{id: "write_1m_cpu_per_gib", of: "write-1m", to: "tcp-1m", value: cpuPerGiB},
	{id: "write_1m_nocrc", of: "write-1m-nocrc", to: "tcp-1m", value: gbps},
	{id: "read_1m_crc", of: "read-1m", to: "tcp-1m", value: gbps},
	{id: "send_1m_crc", of: "send-1m", to: "tcp-1m", value: gbps},
	{id: "write_64k_vs_ucx_put", of: "write-64k", to: "ucx-put-64k", value: gbps},
	{id: "write_4k_vs_tcp", of: "write-4k", to: "tcp-4k", value: gbps},
	{id: "write_64b_mops", of: "write-64b", value: mops},
	{id: "send_rtt_spin_vs_tcp", of: "send-rtt-spin", to: "tcp-rtt-spin", value: rtt},
	{id: "send_rtt_block_vs_tcp", of: "send-rtt-block", to: "tcp-rtt-block", value: rtt},
	{id: "write_1m_mss1448", of: "write-1m-mss1448", to: "write-1m", value: gbps},
	{id: "guest_write_1m_nocrc_vs_siw", of: "guest-write-1m-nocrc", to: "siw-write-1m", value: gbps, needs: "siw"},
	{id: "guest_write_64k_crc_vs_siw", of: "guest-write-64k", to: "siw-crc-write-64k", value: gbps, needs: "siw-crc"},
	{id: "guest_send_rtt_vs_siw", of: "guest-send-rtt", to: "siw-send-rtt", value: rtt, needs: "siw"},
	{id: "qp1000_vs_1", of: "write-64k-qp1000", to: "write-64k", value: gbps},
	{id: "exec_write_1m", of: "exec-write-1m", to: "write-1m", value: gbps},
	{id: "exec_write_64k", of: "exec-write-64k", to: "write-64k", value: gbps},
	{id: "exec_send_rtt", of: "exec-send-rtt", to: "send-rtt-spin", value: rtt},
	{id: "stream_1m_vs_tcp", of: "stream-1m", to: "tcp-1m", value: gbps},
	{id: "stream_64k_vs_tcp", of: "stream-64k", to: "tcp-64k", value: gbps},
	{id: "stream_1m_vs_netconn", of: "stream-1m", to: "netconn-1m", value: gbps},
	{id: "stream_64k_vs_netconn", of: "stream-64k", to: "netconn-64k", value: gbps},
	{id: "stream_rtt_vs_netconn", of: "stream-rtt", to: "tcp-rtt-block", value: rtt},

	{id: "stream-1m-nocrc-vs-netconn", of: "stream-1m-nocrc", to: "netconn-1m", value: gbps},
	{id: "stream-1m-vs-rstream", of: "stream-1m", to: "exec-rstream-1m", value: gbps},
	{id: "stream-64k-vs-rstream", of: "stream-64k", to: "exec-rstream-64k", value: gbps},
	{id: "stream-rtt-vs-rstream", of: "stream-rtt", to: "exec-rstream-rtt", value: rtt},
	{id: "guest-stream-1m-nocrc-vs-rstream", of: "guest-stream-1m-nocrc", to: "rstream-1m",
		value: gbps, needs: "siw"},
	{id: "guest-stream-rtt-vs-rstream", of: "guest-stream-rtt", to: "rstream-rtt",
		value: rtt, needs: "siw"},

	{id: "write-64k-vs-tcp", of: "write-64k", to: "tcp-64k", value: gbps},
	{id: "write-64k-qp64-vs-tcp", of: "write-64k-qp64", to: "tcp-64k-qp64", value: gbps},
	{id: "write-64k-vs-ucx-tag", of: "write-64k", to: "ucx-tag-64k", value: gbps},
	{id: "send-rtt-spin-vs-ucx", of: "send-rtt-spin", to: "ucx-rtt", value: rtt},
	{id: "send-rtt-spin-vs-libfabric", of: "send-rtt-spin", to: "libfabric-rtt", value: rtt},
	{id: "send-rtt-sleep-vs-tcp", of: "send-rtt-sleep", to: "tcp-rtt-block", value: rtt},
	{id: "write-64b-list32-mops", of: "write-64b-list32", value: mops},
	{id: "send-64b-mops", of: "send-64b", value: mops},
	{id: "tcp-1m-mss1448-vs-tcp-1m", of: "tcp-1m-mss1448", to: "tcp-1m", value: gbps},
	{id: "write-1m-nocrc-cpu-per-gib", of: "write-1m-nocrc", to: "tcp-1m", value: cpuPerGiB},
	{id: "write-1m-sleep-cpu-per-gib", of: "write-1m-sleep", to: "netconn-1m", value: cpuPerGiB},
	{id: "write-1m-mss1448-cpu-per-gib", of: "write-1m-mss1448", to: "tcp-1m-mss1448", value: cpuPerGiB},
	{id: "read-1m-cpu-per-gib", of: "read-1m", to: "tcp-1m", value: cpuPerGiB},
	{id: "send-1m-cpu-per-gib", of: "send-1m", to: "tcp-1m", value: cpuPerGiB},
	{id: "write-64k-cpu-per-gib", of: "write-64k", to: "tcp-64k", value: cpuPerGiB},
	{id: "write-64k-qp1000-cpu-per-gib", of: "write-64k-qp1000", to: "tcp-64k", value: cpuPerGiB},
	{id: "stream-1m-cpu-per-gib", of: "stream-1m", to: "netconn-1m", value: cpuPerGiB},
	{id: "stream-64k-cpu-per-gib", of: "stream-64k", to: "netconn-64k", value: cpuPerGiB},
	{id: "write-4k-cpu-per-op", of: "write-4k", to: "tcp-4k", value: cpuPerOp},
	{id: "write-64b-cpu-per-op", of: "write-64b", to: "tcp-64b", value: cpuPerOp},
	{id: "send-64b-cpu-per-op", of: "send-64b", to: "tcp-64b", value: cpuPerOp},
	{id: "send-rtt-spin-cpu-per-op", of: "send-rtt-spin", to: "tcp-rtt-spin", value: cpuPerOp},
	{id: "send-rtt-block-cpu-per-op", of: "send-rtt-block", to: "tcp-rtt-block", value: cpuPerOp},
	{id: "send-rtt-sleep-cpu-per-op", of: "send-rtt-sleep", to: "tcp-rtt-block", value: cpuPerOp},
	{id: "stream-rtt-cpu-per-op", of: "stream-rtt", to: "tcp-rtt-block", value: cpuPerOp},

	{id: "guest-write-1m-nocrc-vs-perftest", of: "guest-write-1m-nocrc", to: "perftest-write-1m",
		value: gbps, needs: "siw"},
	{id: "guest-write-64k-crc-vs-perftest", of: "guest-write-64k", to: "perftest-crc-write-64k",
		value: gbps, needs: "siw-crc"},
	{id: "guest-send-rtt-vs-perftest", of: "guest-send-rtt", to: "perftest-send-rtt", value: rtt, needs: "siw"},
	{id: "guest-exec-write-1m-vs-siw", of: "guest-exec-write-1m", to: "perftest-write-1m", value: gbps, needs: "siw"},
	{id: "guest-exec-write-64k-vs-siw", of: "guest-exec-write-64k", to: "perftest-crc-write-64k",
		value: gbps, needs: "siw-crc"},
	{id: "guest-exec-send-rtt-vs-siw", of: "guest-exec-send-rtt", to: "perftest-send-rtt", value: rtt, needs: "siw"},
}

// allocating are the measures whose allocations allocs_per_op counts.
var allocating = []string{"write-1m", "write-64b", "read-1m", "send-1m", "send-rtt-spin", "send-rtt-block"}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// engine is the engine as it is by default.
var engine = load.Device{Provider: "engine", CRC: "on"}

func noCRC(d load.Device) load.Device    { d.CRC = "off"; return d }
func sleeps(d load.Device) load.Device   { d.Sleeps = true; return d }
func segments(d load.Device) load.Device { d.Segments = true; return d }
func stream(d load.Device) load.Device   { d.Stream = true; return d }

// base are the measures that formulas name. Those that are compared follow each other.
func base(c Config) []measure { return append(pathMeasures(c), hostMeasures(c)...) }

// hostMeasures are those of the loopback.
func hostMeasures(c Config) []measure {
	tcp, kernel := load.Device{Provider: "tcp"}, load.Device{Provider: "kernel"}
	bw := func(name string, d load.Device, op load.Op, size, depth int) measure {
		return measure{Name: name, Device: &d, Spec: load.Spec{Op: op, Size: size, TxDepth: depth, Duration: c.Time}}
	}
	lat := func(name string, d load.Device, op load.Op, poll load.Poll) measure {
		m := measure{Name: name, Device: &d, Spec: load.Spec{Op: op, Size: 64, Poll: poll, Duration: c.Time}}
		if op == load.SendLat {
			m.Spec.Inline = 64 // as ib_send_lat does, up to 236 octets or what the device takes
		}
		return m
	}
	// Streams, and net.Conns that block as these do.
	blocking := func(name string, d load.Device, op load.Op, size int) measure {
		return measure{Name: name, Device: &d,
			Spec: load.Spec{Op: op, Size: size, Poll: load.Block, Duration: c.Time}}
	}
	// Writes over an engine that sleeps as a net.Conn does: a CPU that waits is not busy.
	sleeping := func(name string, size, depth int) measure {
		m := blocking(name, sleeps(engine), load.WriteBW, size)
		m.Spec.TxDepth = depth
		return m
	}
	// Operations of 64 octets, so many in one post.
	list := func(name string, op load.Op, n int) measure {
		m := bw(name, engine, op, 64, 128)
		m.Spec.PostList = n
		return m
	}
	measures := []measure{
		bw("tcp-1m", tcp, load.TCPBW, mib, 0),
		blocking("stream-1m", stream(engine), load.TCPBW, mib),
		blocking("netconn-1m", tcp, load.TCPBW, mib),
		sleeping("write-1m-sleep", mib, 16),
		blocking("stream-1m-nocrc", stream(noCRC(engine)), load.TCPBW, mib),
		c.program("exec-rstream-1m", outside.ExecRstreamBW, mib),
		bw("write-1m", engine, load.WriteBW, mib, 16),
		c.program("exec-write-1m", outside.ExecWrite, mib),
		bw("write-1m-nocrc", noCRC(engine), load.WriteBW, mib, 16),
		bw("read-1m", engine, load.ReadBW, mib, 16),
		bw("send-1m", engine, load.SendBW, mib, 16),
		bw("write-1m-mss1448", segments(engine), load.WriteBW, mib, 16),
		bw("tcp-1m-mss1448", segments(tcp), load.TCPBW, mib, 0),
		bw("tcp-64k", tcp, load.TCPBW, 64*kib, 0),
		blocking("stream-64k", stream(engine), load.TCPBW, 64*kib),
		blocking("netconn-64k", tcp, load.TCPBW, 64*kib),
		c.program("exec-rstream-64k", outside.ExecRstreamBW, 64*kib),
		bw("write-64k", engine, load.WriteBW, 64*kib, 64),
		c.program("exec-write-64k", outside.ExecWrite, 64*kib),
		c.program("ucx-put-64k", outside.UCXPutBW, 64*kib),
		c.program("ucx-tag-64k", outside.UCXTagBW, 64*kib),
		bw("tcp-4k", tcp, load.TCPBW, 4*kib, 0),
		bw("write-4k", engine, load.WriteBW, 4*kib, 64),
		bw("tcp-64b", tcp, load.TCPBW, 64, 0),
		list("write-64b", load.WriteBW, 64),
		list("write-64b-list32", load.WriteBW, 32),
		list("send-64b", load.SendBW, 64),
		lat("tcp-rtt-spin", tcp, load.TCPLat, load.Spin),
		lat("send-rtt-spin", engine, load.SendLat, load.Spin),
		c.program("exec-send-rtt", outside.ExecSendPP, 64),
		c.program("ucx-rtt", outside.UCXTagLat, 64),
		c.program("libfabric-rtt", outside.FabricPing, 64),
		lat("tcp-rtt-block", tcp, load.TCPLat, load.Block),
		blocking("stream-rtt", stream(engine), load.TCPLat, 64),
		c.program("exec-rstream-rtt", outside.ExecRstreamLat, 64),
		lat("send-rtt-block", engine, load.SendLat, load.Block),
		lat("send-rtt-sleep", sleeps(engine), load.SendLat, load.Block),

		bw("siw-write-1m", kernel, load.WriteBW, mib, 16),
		bw("guest-write-1m-nocrc", noCRC(engine), load.WriteBW, mib, 16),
		c.program("perftest-write-1m", outside.VerbsWrite, mib),
		bridgeNoCRC(c.program("guest-exec-write-1m", outside.ExecWrite, mib)),
		bw("siw-crc-write-64k", kernel, load.WriteBW, 64*kib, 64),
		bw("guest-write-64k", engine, load.WriteBW, 64*kib, 64),
		c.program("perftest-crc-write-64k", outside.VerbsWrite, 64*kib),
		c.program("guest-exec-write-64k", outside.ExecWrite, 64*kib),
		lat("siw-send-rtt", kernel, load.SendLat, load.Spin),
		lat("guest-send-rtt", noCRC(engine), load.SendLat, load.Spin),
		c.program("perftest-send-rtt", outside.VerbsSendPP, 64),
		bridgeNoCRC(c.program("guest-exec-send-rtt", outside.ExecSendPP, 64)),
		c.program("rstream-1m", outside.RstreamBW, mib),
		blocking("guest-stream-1m-nocrc", stream(noCRC(engine)), load.TCPBW, mib),
		c.program("rstream-rtt", outside.RstreamLat, 64),
		blocking("guest-stream-rtt", stream(noCRC(engine)), load.TCPLat, 64),
	}
	many := func(m measure, qps int) measure { m.Spec.QPs = qps; return m }
	return append(measures,
		many(bw("tcp-64k-qp64", tcp, load.TCPBW, 64*kib, 0), 64),
		many(bw("write-64k-qp64", engine, load.WriteBW, 64*kib, 4), 64),
		many(bw("write-64k-qp1000", engine, load.WriteBW, 64*kib, 4), 1000))
}

// program is a run of a program of others that takes about c.Time: those programs count
// messages, not time. siw's perftest runs in the guest, whose CPU is emulated.
func (c Config) program(name, program string, size int) measure {
	octetsPerSecond, perMessage := 2e9, 4*time.Microsecond
	if strings.HasPrefix(program, "perftest") || strings.HasPrefix(program, "rstream") ||
		strings.HasPrefix(name, "guest-") {
		octetsPerSecond, perMessage = 1e8, 100*time.Microsecond
	} else if strings.HasPrefix(program, "exec-") {
		octetsPerSecond = 8e9 // perftest has no messages before those that count
	}
	each := max(perMessage, time.Duration(float64(size)/octetsPerSecond*float64(time.Second)))
	n := min(max(int(c.Time/each), 20), 1_000_000)
	return measure{Name: name, Test: &outside.Test{Program: program, Size: size, Iters: n, Warmup: max(n/20, 1)}}
}

func bridgeNoCRC(m measure) measure {
	m.Test.NoCRC = true
	return m
}

// fewRounds is how many rounds points of curves get: there are many of them, and
// no goal depends on one.
const fewRounds = 3

// chosen are the measures that the requested figures and curves need, each once.
func chosen(c Config) []measure {
	needed := make(map[string]bool)
	for _, f := range formulas {
		if c.wants(f.id) && c.lacks(f.needs) == "" {
			needed[f.of], needed[f.to] = true, f.to != ""
		}
	}
	if c.wants("allocs_per_op") {
		for _, name := range allocating {
			needed[name] = true
		}
	}
	list := slices.DeleteFunc(base(c), func(m measure) bool { return !needed[m.Name] })
	for _, s := range sweeps(c) {
		if !c.wants(s.id) {
			continue
		}
		for _, p := range s.points {
			m := p.measure
			m.Rounds = fewRounds
			list = append(list, m)
		}
	}
	return list
}

// wants reports whether --only is for a figure or a curve.
func (c Config) wants(id string) bool {
	if c.Only == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(c.Only, ","), func(pattern string) bool {
		ok, _ := path.Match(pattern, id) // checked by Check
		return ok
	})
}

// lacks returns what a figure needs that is missing.
func (c Config) lacks(need string) string {
	switch {
	case need == "":
		return ""
	case c.Kernel == nil:
		return "siw is measured in the guest (make bench-vm)"
	case need == "siw" && c.Kernel.CRC:
		return "siw has CRC on here; it is measured in a guest whose siw has not (make bench-vm)"
	case need == "siw-crc" && !c.Kernel.CRC:
		return "siw has CRC off here; it is measured in a guest whose siw requires it (make bench-vm)"
	}
	return ""
}
