package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/victim"
)

// perfVictimCmd measures what one peer does to another.
type perfVictimCmd struct {
	Kind       []string `short:"k" help:"Kinds of hostile peers, as below. Default: all." placeholder:"KIND"`
	Peers      []int    `short:"p" default:"1,64" help:"How many hostile peers there are. Default 1,64." placeholder:"N"`
	Time       seconds  `short:"D" default:"2s" help:"How long each measurement takes. Default 2s." placeholder:"TIME"`
	Rounds     int      `short:"r" default:"5" help:"How often everything is measured. Default 5." placeholder:"N"`
	Every      seconds  `default:"500us" help:"A request is due so often; 0s: as soon as the one before is answered. Default 500us." placeholder:"TIME"`
	Spin       bool     `xor:"poll" help:"Only with a server that spins for the victim's requests. Default: both."`
	Block      bool     `xor:"poll" help:"Only with a server that blocks."`
	CRC        string   `enum:"on,off" default:"on" help:"CRC of all connections. Default on." placeholder:"on|off"`
	Cong       string   `default:"cubic" help:"TCP congestion control of all sockets; system for the system's. Default cubic." placeholder:"NAME"`
	ServerCPU  int      `default:"1" help:"The server's CPU, which nobody else has. Default 1." placeholder:"N"`
	ClientCPU  int      `default:"0" help:"The CPU of the victim's client. Default 0." placeholder:"N"`
	HostileCPU int      `default:"-1" help:"The hostile peers' CPU. Default: a third one, or where there is none the client's." placeholder:"N"`
	Policy     string   `enum:"idle,normal" default:"idle" help:"The scheduler's policy for the hostile peers: idle (SCHED_IDLE) or normal. Default idle." placeholder:"POLICY"`
	JSON       string   `name:"json" help:"Write all that was measured to this file." placeholder:"FILE"`
	Markdown   string   `help:"Write the table to this file." placeholder:"FILE"`
	SVG        string   `name:"svg" help:"Write the plots into this folder." placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (*perfVictimCmd) Help() string {
	return `Measures round trips of one well-behaved connection, the victim, beside hostile peers, and divides p99 by p99 beside as many idle connections, ` +
		`measured just before. Three processes: a server with one device of the engine, pinned to a CPU of its own; the victim's client; and the hostile peers, ` +
		`plain TCP sockets that speak iWARP by hand, with the scheduler's lowest policy (SCHED_IDLE), so that where the two share a CPU they get what the client leaves. ` +
		`Requests are due at even times: those that fall due while one is under way count with it.

Limits are 3 beside one peer, and 10 beside up to 64. The exit status is 0 if the medians over the rounds are within them, otherwise 1. "Not quiet" counts as 1, too: something else ran on the machine, as server and client had to wait for a CPU for more than 5 % of the time beside idle connections.

Kinds:

` + victim.Meanings() + `
For instance:

    ` + name + ` perf victim --kind reader,tiny --peers 1,8,64 --block --json victim.json --svg plots`
}

func (c *perfVictimCmd) config() *victim.Config {
	v := &victim.Config{
		Kinds: victim.Kinds(), Peers: c.Peers, Polls: []load.Poll{load.Block, load.Spin},
		Rounds: c.Rounds, Time: time.Duration(c.Time), Every: time.Duration(c.Every),
		ServerCPU: c.ServerCPU, ClientCPU: c.ClientCPU, HostileCPU: c.hostileCPU(), CRC: c.CRC == "on", Cong: c.Cong, Normal: c.Policy == "normal",
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
	cpus, _ := pin.CPUs() // where that fails, so does the use of any
	for _, cpu := range cpus {
		if cpu != c.ServerCPU && cpu != c.ClientCPU {
			return cpu
		}
	}
	return c.ClientCPU
}

// Validate implements kong's check.
func (c *perfVictimCmd) Validate() error { return c.config().Check() }

// Run measures.
func (c *perfVictimCmd) Run(ctx context.Context, out *output) error {
	cfg := c.config()
	cfg.Say = func(format string, args ...any) { fmt.Fprintf(out.errors, format+"\n", args...) }
	if err := checkCongestion(cfg.Cong); err != nil {
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

// write writes the files that are asked for.
func (c *perfVictimCmd) write(rep *victim.Report) error {
	if c.JSON != "" {
		err := writeFile(c.JSON, func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", " ")
			enc.SetEscapeHTML(false)
			return enc.Encode(rep)
		})
		if err != nil {
			return err
		}
	}
	if c.Markdown != "" {
		if err := writeFile(c.Markdown, rep.Markdown); err != nil {
			return err
		}
	}
	if c.SVG != "" {
		return rep.WriteSVGs(c.SVG)
	}
	return nil
}

// perfVictimEndCmd is one of the processes of perf victim, which starts it and talks to
// it.
type perfVictimEndCmd struct {
	Role string `arg:"" enum:"server,client,peers"`
}

// Run does what it is told.
func (c *perfVictimEndCmd) Run(ctx context.Context, out *output) error {
	return victim.Serve(ctx, victim.Role(c.Role), os.Stdin, out)
}
