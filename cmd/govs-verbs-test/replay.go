package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/replay"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

type replayCmd struct {
	File       string        `arg:"" help:"The capture file: pcap or pcapng."`
	Port       uint16        `help:"Only connections to or from this TCP port. Default: all." placeholder:"PORT"`
	Connection int           `help:"Only this connection, counted from 1 as decode counts them. Default: all." placeholder:"N"`
	Play       string        `enum:"initiator,responder,both" default:"both" help:"The side of the capture that is played to the engine: initiator, responder, or one after the other (both). Default both." placeholder:"SIDE"`
	Addr       netip.Addr    `default:"127.0.0.1" help:"Address of both sides. Default 127.0.0.1." placeholder:"ADDR"`
	Wait       time.Duration `default:"2s" help:"How long each answer may take. Default 2s." placeholder:"TIME"`
	Record     string        `help:"Write the replayed connection to this pcapng file; only with one connection and one side." placeholder:"FILE" type:"path"`
}

// Help implements kong's HelpProvider.
func (*replayCmd) Help() string {
	return `A scripted peer sends what one side of a captured connection sent, frame for ` +
		`frame, and the engine takes the other side: its program registers the ` +
		`memory, posts the receives, and sends what the capture's program did. What the engine ` +
		`answers is compared with the capture as ` + name + ` diff does, ` +
		`what it places and receives byte for byte.

The engine chooses the STags of its memory itself, so these are rewritten, and the CRCs ` +
		`with them; a wrong CRC stays wrong. Tagged offsets, private data and payload ` +
		`go out as they were. The capture has to begin with the connection's start-up.

The exit status is 0 if all was as in the capture, 1 if something was not, and 2 if a connection ` +
		`could not be replayed.`
}

// Validate implements kong's check.
func (c *replayCmd) Validate() error {
	switch {
	case c.Connection < 0:
		return fmt.Errorf("--connection %d: they are counted from 1", c.Connection)
	case c.Wait <= 0:
		return fmt.Errorf("--wait %v: has to be above 0", c.Wait)
	case c.Record != "" && c.Play == "both":
		return errors.New("--record holds one side's replay: add --play initiator or --play " +
			"responder")
	}
	return nil
}

// Run replays. It fails if something differs from the capture.
func (c *replayCmd) Run(ctx context.Context, out *output) error {
	trace, err := wire.ReadFile(c.File, c.Port)
	if err != nil {
		return unable(err)
	}
	conns := trace.IWARP().Conns
	switch {
	case len(conns) == 0:
		return unable(fmt.Errorf("%s: no iWARP to replay: none of %d TCP connections begins "+
			"with an MPA Request", c.File, len(trace.Conns)))
	case c.Connection > len(conns):
		return unable(fmt.Errorf("--connection %d: %s has %d", c.Connection, c.File, len(conns)))
	case c.Record != "" && c.Connection == 0 && len(conns) > 1:
		return unable(fmt.Errorf("--record: %s has %d connections: choose one with --connection",
			c.File, len(conns)))
	}
	for _, note := range trace.Notes {
		fmt.Fprintf(out.errors, "note: %s: %s\n", c.File, note)
	}
	tried, refused, same := 0, 0, true
	for i, conn := range conns {
		if c.Connection != 0 && c.Connection != i+1 {
			continue
		}
		fmt.Fprintf(out, "connection %d: %s -> %s\n", i+1, conn.Initiator, conn.Responder)
		for _, side := range []conformance.Role{conformance.RoleInitiator,
			conformance.RoleResponder} {
			if c.Play != "both" && c.Play != string(side) {
				continue
			}
			r, err := c.replay(ctx, conn, side)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			if err != nil {
				fmt.Fprintf(out, "  %s played: not replayed: %v\n", side, err)
				refused++
				continue
			}
			tried++
			same = same && r.Same()
			printReplay(out, conn, side, r)
		}
	}
	switch {
	case tried == 0:
		return unable(fmt.Errorf("%s: nothing could be replayed", c.File))
	case !same:
		return errFailed
	case refused > 0:
		return unable(fmt.Errorf("%s: %d of %d replays could not be made; --connection and --play "+
			"choose others", c.File, refused, tried+refused))
	}
	return nil
}

func (c *replayCmd) replay(ctx context.Context, conn *wire.Conn,
	side conformance.Role) (*replay.Result, error) {
	return replay.Run(ctx, replay.Config{
		Conn: conn, Play: side, Wait: c.Wait, Record: c.Record,
		Open: onengine.Side{Name: "engine", Addr: c.Addr}.Opener(),
	})
}

// printReplay prints the result of a replay: one line if nothing differed from the capture.
func printReplay(out *output, conn *wire.Conn, side conformance.Role, r *replay.Result) {
	verdict := "as in the capture"
	if !r.Same() {
		verdict = "not as in the capture"
	}
	fmt.Fprintf(out, "  %s played: %d FPDUs sent, %d messages answered, %d bytes compared: %s\n",
		side, r.Played, r.Answered, r.Compared, verdict)
	for _, p := range r.Problems {
		fmt.Fprintf(out, "  %s\n", p)
	}
	ladders := [2][]string{
		withoutTimes((&wire.Trace{Conns: []*wire.Conn{conn}}).Ladder()),
		withoutTimes((&wire.Trace{Conns: []*wire.Conn{r.Conn}}).Ladder()),
	}
	rows := diffRows(r.Rows, ladders, false)
	for i := range rows {
		rows[i].print(out)
	}
}
