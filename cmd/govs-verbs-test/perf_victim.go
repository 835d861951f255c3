package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/victim"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/worker"
)

// perfVictimCmd measures what hostile peers do to another peer.
type perfVictimCmd struct {
	Kind       []string `short:"k" help:"Kinds of hostile peers, as above, comma-separated. Default: all." placeholder:"KIND"`
	Peers      []int    `short:"p" default:"1,64" help:"Numbers of hostile peers, comma-separated. Default 1,64." placeholder:"N"`
	Time       seconds  `short:"D" default:"2s" help:"How long each measurement takes. Default 2s." placeholder:"TIME"`
	Rounds     int      `short:"r" default:"5" help:"Measure everything N times. Default 5." placeholder:"N"`
	Every      seconds  `default:"500us" help:"Time from one request to the next; 0s: send each when the one before is answered. Default 500us." placeholder:"TIME"`
	Spin       bool     `xor:"poll" help:"Measure only a server that spins while it waits for requests. Default: both ways of waiting, one after the other."`
	Block      bool     `xor:"poll" help:"Measure only a server that sleeps while it waits for requests."`
	CRC        string   `enum:"on,off" default:"on" help:"CRC of all connections. Default on." placeholder:"on|off"`
	Cong       string   `default:"cubic" help:"TCP congestion control of all sockets; system: the system's default. Default cubic." placeholder:"NAME"`
	ServerCPU  int      `default:"1" help:"The server's CPU, which neither the client nor the peers may have. Default 1." placeholder:"N"`
	ClientCPU  int      `default:"0" help:"The CPU of the victim's client. Default 0." placeholder:"N"`
	HostileCPU int      `default:"-1" help:"The hostile peers' CPU. Default: a third CPU, or the client's if there is no third." placeholder:"N"`
	Policy     string   `enum:"idle,normal" default:"idle" help:"The scheduler's policy for the hostile peers: idle (SCHED_IDLE) or normal. Default idle." placeholder:"POLICY"`

	perfFiles
}

// Help implements kong's HelpProvider.
func (*perfVictimCmd) Help() string {
	return `Measures the round trips of one well-behaved connection, the victim, beside hostile peers, ` +
		`and divides their p99 by the p99 beside as many idle connections, measured just before.

There are three processes: a server with one device of the engine, pinned to a CPU of its own; ` +
		`the victim's client; and the hostile peers, plain TCP sockets that speak iWARP by hand. ` +
		`The peers have the scheduler's lowest policy (SCHED_IDLE): if they share a CPU with the client, ` +
		`they get the time that the client leaves. Requests are due at even intervals. One that falls due while another is ` +
		`under way is not sent, but counts as if it had been answered together with that one.

The limit of the ratio is 3 beside one peer and 10 beside up to 64 peers; beside more there is none. ` +
		`The exit status is 0 if all medians over the rounds are within their limits, otherwise 1. ` +
		`It is also 1 if the machine was "not quiet": p99 beside idle connections was more than 5 times p50, ` +
		`because something else ran on the machine or on its host; or if the peers did nothing ("peers idle"). ` +
		`A case that is not within its limit, for any of these reasons, is measured for as many rounds more, ` +
		`and all its rounds count. ` +
		`During the run all CPUs are kept awake (/dev/cpu_dma_latency) ` +
		`and other sessions give way (/proc/self/autogroup), ` +
		`if the process has the right to do so, as root has.

Columns: IDLE and BESIDE are round trips of the victim beside idle connections and beside the peers, ` +
		`in microseconds; REQUEST p99 counts from when a request was due; RATIO divides BESIDE by IDLE; ` +
		`CPU is that of the server's process; WAITED is how long threads of the server + of the victim's client ` +
		`were ready to run and had no CPU.

Kinds:

` + victim.Meanings() + `
For instance:

    ` + name + ` perf victim --kind reader,tiny --peers 1,8,64 --block --json victim.json --svg plots`
}

func (c *perfVictimCmd) config() *victim.Config {
	v := &victim.Config{
		Kinds: victim.Kinds(), Peers: c.Peers, Polls: []load.Poll{load.Block, load.Spin},
		Rounds: c.Rounds, Time: time.Duration(c.Time), Every: time.Duration(c.Every),
		ServerCPU: c.ServerCPU, ClientCPU: c.ClientCPU, HostileCPU: c.hostileCPU(),
		CRC: c.CRC == "on", Cong: c.Cong, Normal: c.Policy == "normal",
	}
	if len(c.Kind) > 0 {
		v.Kinds = nil
		for _, k := range c.Kind {
			v.Kinds = append(v.Kinds, victim.Kind(k))
		}
	}
	switch {
	case c.Spin:
		v.Polls = []load.Poll{load.Spin}
	case c.Block:
		v.Polls = []load.Poll{load.Block}
	}
	if c.Cong == "system" {
		v.Cong = ""
	}
	return v
}

// hostileCPU is the CPU for the hostile peers.
func (c *perfVictimCmd) hostileCPU() int {
	if c.HostileCPU >= 0 {
		return c.HostileCPU
	}
	cpus, _ := pin.CPUs() // if this fails, usableCPUs does, too, and reports it
	for _, cpu := range cpus {
		if cpu != c.ServerCPU && cpu != c.ClientCPU {
			return cpu
		}
	}
	return c.ClientCPU
}

// Validate implements kong's check.
func (c *perfVictimCmd) Validate() error {
	if err := c.config().Check(); err != nil {
		return err
	}
	return c.check()
}

// Run measures.
func (c *perfVictimCmd) Run(ctx context.Context, out *output) error {
	cfg := c.config()
	cfg.Say = func(format string, args ...any) { fmt.Fprintf(out.errors, format+"\n", args...) }
	if err := checkCongestion("--cong", cfg.Cong); err != nil {
		return unable(err)
	}
	if err := usableCPUs(cfg.ServerCPU, cfg.ClientCPU, cfg.HostileCPU); err != nil {
		return unable(err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.Worker = []string{self, "perf", "victim-end"}
	rep, err := victim.Run(ctx, *cfg)
	if err != nil {
		return interrupted(ctx, err)
	}
	rep.Conditions["govs"], rep.Conditions["kernel"] = version(), kernelRelease()
	if err := out.table(victim.Headings(), rep.Rows()); err != nil {
		return err
	}
	if err := c.write(rep); err != nil {
		return err
	}
	if !rep.Within() {
		return errFailed
	}
	return nil
}

// perfVictimEndCmd is one of the processes of perf victim, which starts it and talks to
// it.
type perfVictimEndCmd struct {
	Role string `arg:"" enum:"server,client,peers"`
}

// Run carries out orders.
func (c *perfVictimEndCmd) Run(ctx context.Context, out *output) error {
	in, err := worker.Stdin()
	if err != nil {
		return err
	}
	return victim.Serve(ctx, victim.Role(c.Role), in, out)
}
