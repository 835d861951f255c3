package figures

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
)

// The path is what the network of users is like: the ends are in two network namespaces, joined by
// Ethernets whose MTU bounds the MSS. The namespaces have no names: each exists as long as the end
// that is in it, however that ends, and the links exist as long as the namespaces.

// A link is an Ethernet of the path, a veth pair.
type link struct {
	name  string // in ids
	mtu   int
	delay time.Duration // of each direction
}

const linkDelay = 100 * time.Microsecond

var links = []link{
	{"1500", 1500, 0}, {"9000", 9000, 0},
	{"1500-delay", 1500, linkDelay}, {"9000-delay", 9000, linkDelay},
}

// linkOf returns the number of the link that a device is over.
func linkOf(d load.Device) int {
	for i, l := range links {
		if l.name == d.Link {
			return i
		}
	}
	panic("no link " + d.Link) // the plan names a link that is none
}

// near and far are the addresses of the two ends of link i.
func near(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(4*i + 1)}) }
func far(i int) netip.Addr  { return near(i).Next() }

func (l link) String() string {
	if l.delay == 0 {
		return fmt.Sprintf("MTU %d", l.mtu)
	}
	return fmt.Sprintf("MTU %d, %g ms each way", l.mtu, l.delay.Seconds()*1e3)
}

// A pathRow compares two measures of each link. Its figures are a ratio of bandwidths or round
// trips, and one of CPU time.
type pathRow struct {
	id, what string
	of, to   string // ends of the names of the measures
	lat      bool
	noCRC    bool
	sleeps   bool // the bandwidth of ends that sleep is not what they are measured for
}

var pathRows = []pathRow{
	{id: "write-1m", what: "Writes of 1 MiB", of: "write-1m", to: "tcp-1m"},
	{id: "write-1m-nocrc", what: "Writes of 1 MiB without CRC", of: "write-1m-nocrc", to: "tcp-1m", noCRC: true},
	{id: "read-1m", what: "Reads of 1 MiB", of: "read-1m", to: "tcp-1m"},
	{id: "read-1m-nocrc", what: "Reads of 1 MiB without CRC", of: "read-1m-nocrc", to: "tcp-1m", noCRC: true},
	{id: "write-1m-sleep", what: "Writes of 1 MiB, ends that sleep / net.Conn", of: "write-1m-sleep",
		to: "netconn-1m", sleeps: true},
	{id: "write-64k", what: "Writes of 64 KiB", of: "write-64k", to: "tcp-64k"},
	{id: "write-64k-nocrc", what: "Writes of 64 KiB without CRC", of: "write-64k-nocrc", to: "tcp-64k", noCRC: true},
	{id: "read-64k", what: "Reads of 64 KiB", of: "read-64k", to: "tcp-64k"},
	{id: "read-64k-nocrc", what: "Reads of 64 KiB without CRC", of: "read-64k-nocrc", to: "tcp-64k", noCRC: true},
	{id: "write-64k-qp64", what: "Writes of 64 KiB on 64 QPs / 64 connections", of: "write-64k-qp64", to: "tcp-64k-qp64"},
	{id: "rtt-spin", what: "round trip of 64 bytes, spinning", of: "send-rtt-spin", to: "tcp-rtt-spin", lat: true},
	{id: "rtt-block", what: "round trip of 64 bytes, blocking / net.Conn", of: "send-rtt-block",
		to: "tcp-rtt-block", lat: true},
}

// pathMeasures are the measures of all links. Those that are compared follow each other.
func pathMeasures(c Config) []measure {
	var list []measure
	for _, l := range links {
		add := func(name string, d load.Device, s load.Spec) {
			d.Link = l.name
			s.Duration = c.Time
			list = append(list, measure{Name: "path-" + l.name + "-" + name, Device: &d, Spec: s})
		}
		tcp := load.Device{Provider: "tcp"}
		for _, size := range []struct {
			name        string
			size, depth int
		}{{"1m", mib, 16}, {"64k", 64 * kib, 64}} {
			add("tcp-"+size.name, tcp, load.Spec{Op: load.TCPBW, Size: size.size})
			for _, d := range []struct {
				name string
				load.Device
			}{{"", engine}, {"-nocrc", noCRC(engine)}} {
				s := load.Spec{Op: load.WriteBW, Size: size.size, TxDepth: size.depth}
				add("write-"+size.name+d.name, d.Device, s)
				s.Op = load.ReadBW
				add("read-"+size.name+d.name, d.Device, s)
			}
		}
		add("netconn-1m", tcp, load.Spec{Op: load.TCPBW, Size: mib, Poll: load.Block})
		add("write-1m-sleep", sleeps(engine), load.Spec{Op: load.WriteBW, Size: mib, TxDepth: 16, Poll: load.Block})
		add("tcp-64k-qp64", tcp, load.Spec{Op: load.TCPBW, Size: 64 * kib, QPs: 64})
		add("write-64k-qp64", engine, load.Spec{Op: load.WriteBW, Size: 64 * kib, TxDepth: 4, QPs: 64})
		for _, poll := range []load.Poll{load.Spin, load.Block} {
			add("tcp-rtt-"+string(poll), tcp, load.Spec{Op: load.TCPLat, Size: 64, Poll: poll})
			add("send-rtt-"+string(poll), engine, load.Spec{Op: load.SendLat, Size: 64, Inline: 64, Poll: poll})
		}
	}
	return list
}

// pathFigures are the two figures of a row over a link.
type pathFigures struct {
	link link
	row  pathRow
	// The bandwidth or the round trip, and the CPU time.
	main, cpu formula
}

// pathTable has all rows for one link after the other.
func pathTable() []pathFigures {
	var list []pathFigures
	for _, l := range links {
		for _, row := range pathRows {
			prefix := "path-" + l.name + "-"
			f := formula{id: prefix + row.id, of: prefix + row.of, to: prefix + row.to, value: gbps}
			cpu := f
			cpu.id, cpu.value = f.id+"-cpu-per-gib", cpuPerGiB
			if row.lat {
				f.value, cpu.id, cpu.value = rtt, f.id+"-cpu-per-op", cpuPerOp
			}
			f.reach, cpu.reach = row.goals(l)
			list = append(list, pathFigures{l, row, f, cpu})
		}
	}
	return list
}

// pathFormulas are the formulas of the table.
func pathFormulas() []formula {
	var list []formula
	for _, f := range pathTable() {
		list = append(list, f.main, f.cpu)
	}
	return list
}

// goals are what the two figures of a row are to reach, 0 for none.
func (row pathRow) goals(l link) (value, cpu float64) {
	switch {
	case row.lat:
		return 1.1, 0
	case l.mtu < 9000 && row.noCRC:
		value, cpu = 0.75, 1.5
	case l.mtu < 9000:
		value, cpu = 0.6, 1.8
	case row.noCRC:
		value, cpu = 0.85, 1.3
	default:
		value, cpu = 0.7, 1.6
	}
	if row.sleeps {
		value = 0
	}
	return value, cpu
}

// pathPair is two ends that the links join.
type pathPair struct {
	*pair
	err     error            // why there are none
	missing map[string]error // why links are missing, by name
}

func startPath(ctx context.Context, c Config) *pathPair {
	p, err := startPair(ctx, c, true)
	if err != nil {
		return &pathPair{err: fmt.Errorf("ends in network namespaces of their own, for which root is needed: %w", err)}
	}
	missing := make(map[string]error)
	for i, l := range links {
		if err := l.up(ctx, i, p.client.PID(), p.server.PID()); err != nil {
			missing[l.name] = err
		}
	}
	return &pathPair{pair: p, missing: missing}
}

func (p *pathPair) close() error {
	if p == nil || p.err != nil {
		return nil
	}
	return p.pair.close()
}

// up makes link i between the network namespaces of two processes.
func (l link) up(ctx context.Context, i, client, server int) error {
	veth := func(name string) string { return fmt.Sprintf("%s%d mtu %d", name, i, l.mtu) }
	if err := inNamespace(ctx, client, fmt.Sprintf("ip link add %s type veth peer name %s netns %d",
		veth("near"), veth("far"), server)); err != nil {
		return err
	}
	for _, end := range []struct {
		pid  int
		dev  string
		addr netip.Addr
	}{{client, fmt.Sprint("near", i), near(i)}, {server, fmt.Sprint("far", i), far(i)}} {
		commands := []string{
			fmt.Sprintf("ip addr add %v/30 dev %s", end.addr, end.dev),
			fmt.Sprintf("ip link set %s up", end.dev),
		}
		if l.delay > 0 { // a queue that is as long as what a TCP sender may have under way
			commands = append(commands, fmt.Sprintf("tc qdisc add dev %s root netem limit 100000 delay %dus",
				end.dev, l.delay.Microseconds()))
		}
		for _, command := range commands {
			if err := inNamespace(ctx, end.pid, command); err != nil {
				if strings.Contains(command, "netem") {
					err = fmt.Errorf("%w (a delay needs the kernel's sch_netem)", err)
				}
				return err
			}
		}
	}
	return nil
}

// inNamespace runs a command in the network namespace of a process.
func inNamespace(ctx context.Context, pid int, command string) error {
	args := append([]string{"--target", strconv.Itoa(pid), "--net"}, strings.Fields(command)...)
	if text, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w", command, errors.Join(err, said(text)))
	}
	return nil
}

// A pathLine is a row over a link with its figures, or a whole link that is missing.
type pathLine struct {
	pathFigures
	id, what      string
	fig, figOfCPU Figure
	missing       string
}

// pathLines are those that were asked for.
func (rep *Report) pathLines() []pathLine {
	var list []pathLine
	for table := range slices.Chunk(pathTable(), len(pathRows)) {
		var lines []pathLine
		for _, f := range table {
			fig, asked := rep.More[f.main.id]
			cpu, too := rep.More[f.cpu.id]
			if asked || too {
				missing := oneLine(cmp.Or(fig.Missing, cpu.Missing))
				lines = append(lines, pathLine{f, f.main.id, f.row.what, fig, cpu, missing})
			}
		}
		if len(lines) > 1 && lines[0].missing != "" &&
			!slices.ContainsFunc(lines, func(l pathLine) bool { return l.missing != lines[0].missing }) {
			lines = lines[:1]
			lines[0].id, lines[0].what = "path-"+lines[0].link.name+"-*", "all"
		}
		list = append(list, lines...)
	}
	return list
}

// pathMarkdown is the section of the path, and the heading of what follows it.
func (rep *Report) pathMarkdown() string {
	var b strings.Builder
	for _, l := range rep.pathLines() {
		if l.missing != "" {
			fmt.Fprintf(&b, "| %v | %s | missing: %s | | | | | | | |\n", l.link, l.what, l.missing)
			continue
		}
		fmt.Fprintf(&b, "| %v | %s | %s | %s |\n", l.link, l.what, l.main.cells(l.fig), l.cpu.cells(l.figOfCPU))
	}
	if b.Len() == 0 {
		return ""
	}
	return "## The path\n\n" +
		"Two network namespaces, joined by a veth pair for each link, with one end in each: a process with a CPU of its\n" +
		"own, spinning unless a row says otherwise. Offloads are as Linux sets them, so veth carries segments of up to\n" +
		"64 KiB. FPDUs still follow the connection's MSS: 1,448 bytes at MTU 1500, and 8,948 at MTU 9000. Each ratio is\n" +
		"the median of the rounds' ratios of the engine to raw TCP over the same link. CPU time is that of both ends per\n" +
		"GiB, or per round trip. Where ends spin, it follows from the bandwidth; ends that sleep show what work costs.\n" +
		"16 messages of 1 MiB are outstanding, 64 of 64 KiB, and 4 on each of 64 QPs.\n\n" +
		"| link | engine / raw TCP | medians | ratio | range | goal | CPU time | ratio | range | goal |\n" +
		"|---|---|--:|--:|--:|---|--:|--:|--:|---|\n" + b.String() + "\n## The loopback\n\n"
}

// cells are the medians, the ratio, its range, and what it is to reach; all empty for a figure that
// was not asked for.
func (f formula) cells(fig Figure) string {
	if fig.Rounds == 0 {
		return " | | | "
	}
	bound, standing := f.standing(fig)
	if standing == "missed" {
		bound += " missed"
	}
	return fmt.Sprintf("%s | %s | %s to %s | %s", medians(fig, f.value), digits(fig.Median), digits(fig.Min),
		digits(fig.Max), bound)
}

// standing says what a figure of the path is to reach, and whether it does.
func (f formula) standing(fig Figure) (bound, standing string) {
	if f.reach == 0 {
		return "", "beside"
	}
	g := Goal{Lower: f.value.name != gbps.name, Reach: f.reach, Aim: math.Inf(1)}
	if g.Lower {
		g.Aim = 0
	}
	return g.bound(f.reach), g.Standing(fig)
}
