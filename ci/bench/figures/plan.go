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
	Rounds int // the number of rounds that it is made in, at most; 0: all
}

// A row of the tables compares two measures, or has the value of one.
type row struct {
	id, what string
	link     string // of the path, by its name; empty if the row is not over the path
	of, to   string // names of measures; without to, the row has the value of of
	value    quantity
	goal     float64 // the goal of the median; 0 for none
	cpuGoal  float64 // the goal of the median of the CPU times' ratios; 0 for none
	needs    string  // siw or siw-crc: what the row requires
}

// The rows of no measure or of several.
const (
	idleID   = "idle-memory"
	allocsID = "allocations"
)

// allRows are the rows in the order of the tables.
var allRows = slices.Concat(pathRows(), hostRows)

var hostRows = []row{
	{id: "write-1m", what: "Writes of 1 MiB / raw TCP", of: "write-1m", to: "tcp-1m", value: gbps,
		goal: 0.82, cpuGoal: 1.25},
	{id: "write-1m-nocrc", what: "Writes of 1 MiB without CRC / raw TCP", of: "write-1m-nocrc",
		to: "tcp-1m", value: gbps, goal: 0.9},
	{id: "read-1m", what: "Reads of 1 MiB / raw TCP", of: "read-1m", to: "tcp-1m", value: gbps,
		goal: 0.78},
	{id: "send-1m", what: "Sends of 1 MiB / raw TCP", of: "send-1m", to: "tcp-1m", value: gbps,
		goal: 0.78},
	{id: "write-64k", what: "Writes of 64 KiB / raw TCP", of: "write-64k", to: "tcp-64k",
		value: gbps},
	{id: "write-64k-ucx", what: "Writes of 64 KiB / UCX tag", of: "write-64k", to: "ucx-tag-64k",
		value: gbps},
	{id: "write-4k", what: "Writes of 4 KiB / raw TCP, a call each", of: "write-4k", to: "tcp-4k",
		value: gbps, goal: 2.4},
	{id: "write-64b", what: "Writes of 64 bytes", of: "write-64b", value: mops, goal: 8},
	{id: "send-64b", what: "Sends of 64 bytes", of: "send-64b", value: mops},
	{id: "write-64k-qp1000", what: "Writes of 64 KiB on 1,000 QPs / on one", of: "write-64k-qp1000",
		to: "write-64k", value: gbps, goal: 0.85},
	{id: "rtt-spin", what: "round trip of 64 bytes, spinning / raw TCP", of: "send-rtt-spin",
		to: "tcp-rtt-spin", value: rtt, goal: 1.08},
	{id: "rtt-ucx", what: "round trip of 64 bytes, spinning / UCX tag", of: "send-rtt-spin",
		to: "ucx-rtt", value: rtt},
	{id: "rtt-libfabric", what: "round trip of 64 bytes, spinning / libfabric (its mean)",
		of: "send-rtt-spin", to: "libfabric-rtt", value: rtt},
	{id: "rtt-block", what: "round trip of 64 bytes, blocking / net.Conn", of: "send-rtt-block",
		to: "tcp-rtt-block", value: rtt, goal: 1.05},
	{id: "rtt-sleep", what: "round trip of 64 bytes, sleeping at once / net.Conn",
		of: "send-rtt-sleep", to: "tcp-rtt-block", value: rtt},
	{id: "exec-write-1m", what: "Writes of 1 MiB, ib_write_bw over exec / perf write-bw",
		of: "exec-write-1m", to: "write-1m", value: gbps, goal: 0.9},
	{id: "exec-write-64k", what: "Writes of 64 KiB, ib_write_bw over exec / perf write-bw",
		of: "exec-write-64k", to: "write-64k", value: gbps, goal: 0.9},
	{id: "exec-rtt", what: "round trip of 64 bytes, ib_send_lat over exec / perf send-lat",
		of: "exec-send-rtt", to: "send-rtt-spin", value: rtt, goal: 1.1},
	{id: "stream-1m", what: "stream, writes of 1 MiB / net.Conn", of: "stream-1m", to: "netconn-1m",
		value: gbps},
	{id: "stream-64k", what: "stream, writes of 64 KiB / net.Conn", of: "stream-64k",
		to: "netconn-64k", value: gbps},
	{id: "stream-rtt", what: "stream, round trip of 64 bytes / net.Conn", of: "stream-rtt",
		to: "tcp-rtt-block", value: rtt, goal: 1},
	{id: idleID, what: "memory of an idle connection, each end", value: kibOfEach, goal: 6},
	{id: allocsID, what: "allocations per operation", value: counted},

	{id: "guest-write-1m", what: "Writes of 1 MiB / siw", of: "guest-write-1m", to: "siw-write-1m",
		value: gbps, goal: 1.2, needs: "siw"},
	{id: "guest-exec-write-1m", what: "Writes of 1 MiB, ib_write_bw over exec / over siw",
		of: "guest-exec-write-1m", to: "perftest-write-1m", value: gbps, needs: "siw"},
	{id: "guest-rtt", what: "round trip of 64 bytes / siw", of: "guest-send-rtt",
		to: "siw-send-rtt", value: rtt, goal: 1, needs: "siw"},
	{id: "guest-exec-rtt", what: "round trip of 64 bytes, ib_send_lat over exec / over siw",
		of: "guest-exec-send-rtt", to: "perftest-send-rtt", value: rtt, needs: "siw"},
	{id: "guest-write-64k-crc", what: "Writes of 64 KiB / siw", of: "guest-write-64k",
		to: "siw-crc-write-64k", value: gbps, goal: 1.2, needs: "siw-crc"},
	{id: "guest-exec-write-64k-crc", what: "Writes of 64 KiB, ib_write_bw over exec / over siw",
		of: "guest-exec-write-64k", to: "perftest-crc-write-64k", value: gbps, needs: "siw-crc"},
}

// allocating are the measures whose allocations are counted.
var allocating = []string{"write-1m", "write-64b", "read-1m", "send-1m", "send-rtt-spin", "send-rtt-block"}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// engine is the engine with its defaults.
var engine = load.Device{Provider: "engine", CRC: "on"}

func noCRC(d load.Device) load.Device  { d.CRC = "off"; return d }
func sleeps(d load.Device) load.Device { d.Sleeps = true; return d }
func stream(d load.Device) load.Device { d.Stream = true; return d }

// base are the measures that rows name. Compared measures follow each other.
func base(c Config) []measure { return append(pathMeasures(c), hostMeasures(c)...) }

// hostMeasures are the measures over the loopback.
func hostMeasures(c Config) []measure {
	tcp, kernel := load.Device{Provider: "tcp"}, load.Device{Provider: "kernel"}
	bw := func(name string, d load.Device, op load.Op, size, depth int) measure {
		return measure{Name: name, Device: &d, Spec: load.Spec{Op: op, Size: size, TxDepth: depth, Duration: c.Time}}
	}
	lat := func(name string, d load.Device, op load.Op, poll load.Poll) measure {
		m := measure{Name: name, Device: &d, Spec: load.Spec{Op: op, Size: 64, Poll: poll, Duration: c.Time}}
		if op == load.SendLat {
			m.Spec.Inline = 64 // as ib_send_lat does, up to 236 bytes or the device's limit
		}
		return m
	}
	// Streams, and net.Conns that block as these do.
	blocking := func(name string, d load.Device, op load.Op, size int) measure {
		return measure{Name: name, Device: &d,
			Spec: load.Spec{Op: op, Size: size, Poll: load.Block, Duration: c.Time}}
	}
	// Operations of 64 bytes, 64 in one post.
	list := func(name string, op load.Op) measure {
		m := bw(name, engine, op, 64, 128)
		m.Spec.PostList = 64
		return m
	}
	measures := []measure{
		bw("tcp-1m", tcp, load.TCPBW, mib, 0),
		blocking("stream-1m", stream(engine), load.TCPBW, mib),
		blocking("netconn-1m", tcp, load.TCPBW, mib),
		bw("write-1m", engine, load.WriteBW, mib, 16),
		c.program("exec-write-1m", outside.ExecWrite, mib),
		bw("write-1m-nocrc", noCRC(engine), load.WriteBW, mib, 16),
		bw("read-1m", engine, load.ReadBW, mib, 16),
		bw("send-1m", engine, load.SendBW, mib, 16),
		bw("tcp-64k", tcp, load.TCPBW, 64*kib, 0),
		blocking("stream-64k", stream(engine), load.TCPBW, 64*kib),
		blocking("netconn-64k", tcp, load.TCPBW, 64*kib),
		bw("write-64k", engine, load.WriteBW, 64*kib, 64),
		c.program("exec-write-64k", outside.ExecWrite, 64*kib),
		c.program("ucx-tag-64k", outside.UCXTagBW, 64*kib),
		bw("tcp-4k", tcp, load.TCPBW, 4*kib, 0),
		bw("write-4k", engine, load.WriteBW, 4*kib, 64),
		list("write-64b", load.WriteBW),
		list("send-64b", load.SendBW),
		lat("tcp-rtt-spin", tcp, load.TCPLat, load.Spin),
		lat("send-rtt-spin", engine, load.SendLat, load.Spin),
		c.program("exec-send-rtt", outside.ExecSendPP, 64),
		c.program("ucx-rtt", outside.UCXTagLat, 64),
		c.program("libfabric-rtt", outside.FabricPing, 64),
		lat("tcp-rtt-block", tcp, load.TCPLat, load.Block),
		blocking("stream-rtt", stream(engine), load.TCPLat, 64),
		lat("send-rtt-block", engine, load.SendLat, load.Block),
		lat("send-rtt-sleep", sleeps(engine), load.SendLat, load.Block),

		bw("siw-write-1m", kernel, load.WriteBW, mib, 16),
		bw("guest-write-1m", noCRC(engine), load.WriteBW, mib, 16),
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
	}
	many := bw("write-64k-qp1000", engine, load.WriteBW, 64*kib, 4)
	many.Spec.QPs = 1000
	return append(measures, many)
}

// program runs another project's program for about c.Time: those programs count messages, not time.
// siw's perftest runs in the guest, whose CPU is emulated.
func (c Config) program(name, program string, size int) measure {
	octetsPerSecond, perMessage := 2e9, 4*time.Microsecond
	if strings.HasPrefix(program, "perftest") || strings.HasPrefix(name, "guest-") {
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

// fewRounds is the number of rounds for points of curves: there are many of them, and no goal
// depends on one.
const fewRounds = 3

// rows returns the rows that are requested and can be measured.
func (c Config) rows() []row {
	return slices.DeleteFunc(slices.Clone(allRows), func(w row) bool {
		return !c.wants(w.id) || !c.has(w.needs)
	})
}

// chosen returns the measures that the requested rows and the plot need, each once.
func chosen(c Config) []measure {
	needed := make(map[string]bool)
	for _, w := range c.rows() {
		needed[w.of], needed[w.to] = true, true
		if w.id == allocsID {
			for _, name := range allocating {
				needed[name] = true
			}
		}
	}
	list := slices.DeleteFunc(base(c), func(m measure) bool { return !needed[m.Name] })
	for _, p := range c.points() {
		list = append(list, p.measure)
	}
	return list
}

// wants reports whether --only selects a row or the plot.
func (c Config) wants(id string) bool {
	if c.Only == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(c.Only, ","), func(pattern string) bool {
		ok, _ := path.Match(pattern, id) // checked by Check
		return ok
	})
}

// has reports whether the requirement of a row is met.
func (c Config) has(need string) bool {
	return need == "" || c.Kernel != nil && c.Kernel.CRC == (need == "siw-crc")
}
