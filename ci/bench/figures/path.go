package figures

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
)

// The path is like a user's network: the ends are in two network namespaces, joined by Ethernets
// whose MTU bounds the MSS. The namespaces have no names: each exists as long as its end runs,
// however the end stops, and the links exist as long as the namespaces.

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
	panic("no link " + d.Link) // the plan names an unknown link
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

// pathRows are the rows of all links. Each link has the same rows, with goals that depend on its
// MTU.
func pathRows() (list []row) {
	for _, l := range links {
		add := func(id, what, of, to string, q quantity, goal, cpuGoal float64) {
			prefix := "path-" + l.name + "-"
			list = append(list, row{
				id: prefix + id, what: what, link: l.name, of: prefix + of, to: prefix + to,
				value: q, goal: goal, cpuGoal: cpuGoal,
			})
		}
		goal, cpu, bare, bareCPU := 0.6, 1.8, 0.75, 1.5 // with CRC, and without
		if l.mtu >= 9000 {
			goal, cpu, bare, bareCPU = 0.7, 1.6, 0.85, 1.3
		}
		for _, size := range []struct{ id, what string }{{"1m", "1 MiB"}, {"64k", "64 KiB"}} {
			for _, op := range []struct{ id, what string }{{"write", "Writes"}, {"read", "Reads"}} {
				id, what, tcp := op.id+"-"+size.id, op.what+" of "+size.what, "tcp-"+size.id
				add(id, what, id, tcp, gbps, goal, cpu)
				add(id+"-nocrc", what+" without CRC", id+"-nocrc", tcp, gbps, bare, bareCPU)
			}
		}
		add("write-1m-sleep", "Writes of 1 MiB, ends that sleep / net.Conn", "write-1m-sleep",
			"netconn-1m", gbps, 0, cpu)
		add("write-64k-qp64", "Writes of 64 KiB on 64 QPs / 64 connections", "write-64k-qp64",
			"tcp-64k-qp64", gbps, goal, cpu)
		add("rtt-spin", "round trip of 64 bytes, spinning", "send-rtt-spin", "tcp-rtt-spin",
			rtt, 1.1, 0)
		add("rtt-block", "round trip of 64 bytes, blocking / net.Conn", "send-rtt-block",
			"tcp-rtt-block", rtt, 1.1, 0)
	}
	return list
}

// pathMeasures are the measures of all links. Compared measures follow each other.
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

// pathPair has two ends that the links join.
type pathPair struct {
	*pair
	err     error            // why there are no ends
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
		if l.delay > 0 { // a queue as long as what a TCP sender may have under way
			commands = append(commands, fmt.Sprintf("tc qdisc add dev %s root netem limit 100000 delay %dus",
				end.dev, l.delay.Microseconds()))
		}
		for _, command := range commands {
			if err := inNamespace(ctx, end.pid, command); err != nil {
				if strings.Contains(err.Error(), "qdisc kind is unknown") {
					err = errors.New("the kernel lacks sch_netem, which a delay needs")
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

// path writes the section of the path. A link without any measurement takes one line.
func (rep *Report) path(b *strings.Builder) {
	var rows strings.Builder
	for _, link := range links {
		lines := slices.DeleteFunc(slices.Clone(rep.Lines), func(l Line) bool {
			return l.link != link.name
		})
		if len(lines) > 1 && lines[0].Value.Missing != "" && !slices.ContainsFunc(lines,
			func(l Line) bool { return l.Value.Missing != lines[0].Value.Missing }) {
			lines = lines[:1]
			lines[0].what = "all"
		}
		for _, l := range lines {
			fmt.Fprintf(&rows, "| %v | %s | %s |\n", link, l.what, l.cells())
		}
	}
	if rows.Len() > 0 {
		b.WriteString("## The path\n\n" +
			"Two network namespaces, joined by a veth pair for each link, with one end in\n" +
			"each: a process with a CPU of its own, spinning unless a row says otherwise.\n" +
			"Offloads are as Linux sets them, so veth carries segments of up to 64 KiB. FPDUs,\n" +
			"iWARP's frames, still follow the connection's MSS: 1,448 bytes at MTU 1500, and\n" +
			"8,948 at MTU 9000. Each row compares the engine with raw TCP over the same link.\n" +
			"16 messages of 1 MiB are outstanding, 64 of 64 KiB, and 4 on each of 64 QPs.\n\n" +
			"| link | engine / raw TCP | medians | ratio | range | goal | CPU time | ratio | goal |\n" +
			"|---|---|--:|--:|--:|---|--:|--:|---|\n" + rows.String() + "\n")
	}
}
