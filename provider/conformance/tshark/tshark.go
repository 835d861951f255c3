// Package tshark has Wireshark's command-line tool decode a capture, as a
// witness that nobody here wrote, and compares what it found with what package
// wire found.
//
// What tshark 4.0 can't see is not compared: the fields of MPA revision 2, and
// anything behind a frame that is illegal on purpose, where its dissector may
// lose the FPDU boundaries.
package tshark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// Version returns the first line of tshark --version, or why it can't be used
// and what installs it.
func Version() (string, error) {
	out, err := exec.Command("tshark", "--version").Output()
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			err = errors.New("tshark is not installed (apt-get install tshark)")
		}
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSuffix(strings.TrimSpace(line), "."), nil
}

// found is what tshark found in one direction of all connections to a port, in
// the order of the file.
type found struct {
	startups int
	lengths  []int    // ULPDU_Length of each FPDU
	opcodes  []int    // of each FPDU that has one
	badCRCs  int      // FPDUs whose CRC it calls wrong
	layers   []string // of each Terminate: the Layer nibble
}

// columns are the fields that are asked for, in this order.
var columns = []string{
	"tcp.dstport", "iwarp_mpa.req", "iwarp_mpa.rep", "iwarp_mpa.ulpdulength", "iwarp_rdma.opcode", "iwarp_rdma.term_layer", "_ws.expert.message",
}

// decode runs tshark over a file.
func decode(ctx context.Context, file string, port uint16) (map[wire.Direction]*found, error) {
	args := []string{
		"-n", "-r", file, "-Y", fmt.Sprintf("tcp.port==%d && iwarp_mpa", port),
		"-o", "tcp.try_heuristic_first:TRUE",
		// These two take iWARP's payload for their own.
		"--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct",
		"-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,", "-E", "separator=/t",
	}
	for _, c := range columns {
		args = append(args, "-e", c)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "tshark", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tshark: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	res := map[wire.Direction]*found{wire.ToResponder: {}, wire.ToInitiator: {}}
	for line := range strings.Lines(string(out)) {
		if err := parseRow(res, strings.TrimRight(line, "\n"), port); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func parseRow(res map[wire.Direction]*found, line string, port uint16) error {
	cells := strings.Split(line, "\t")
	if len(cells) < len(columns) {
		return fmt.Errorf("tshark printed %d columns instead of %d: %q", len(cells), len(columns), line)
	}
	dir := wire.ToInitiator
	if cells[0] == strconv.Itoa(int(port)) {
		dir = wire.ToResponder
	}
	f := res[dir]
	f.startups += count(cells[1]) + count(cells[2])
	for _, s := range list(cells[3]) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("tshark printed a ULPDU_Length of %q", s)
		}
		f.lengths = append(f.lengths, n)
	}
	for _, s := range list(cells[4]) {
		n, err := strconv.ParseInt(s, 0, 16)
		if err != nil {
			return fmt.Errorf("tshark printed an opcode of %q", s)
		}
		f.opcodes = append(f.opcodes, int(n))
	}
	f.layers = append(f.layers, list(cells[5])...)
	f.badCRCs += strings.Count(cells[6], "CRC32 is incorrect") + strings.Count(cells[6], "Bad CRC32")
	return nil
}

func list(cell string) []string {
	if cell == "" {
		return nil
	}
	return strings.Split(cell, ",")
}

func count(cell string) int { return len(list(cell)) }

// Witness asks tshark about a capture of which ours is our own reading. It is a
// conformance.Judge's Witness.
func Witness(ctx context.Context, file string, port uint16, ours *wire.Trace) conformance.Witness {
	w := conformance.Witness{Asked: true}
	theirs, err := decode(ctx, file, port)
	if err != nil {
		w.Why = err.Error()
		return w
	}
	for _, f := range theirs {
		w.Frames += f.startups + len(f.lengths)
	}
	for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
		if why := compare(legal(ours, dir), theirs[dir]); why != "" {
			w.Why = dir.String() + ": " + why
			return w
		}
	}
	w.Agrees = true
	return w
}

// legal collects what we found in one direction, up to the first frame of each
// connection, in either direction, that is not legal.
func legal(t *wire.Trace, dir wire.Direction) *found {
	f := &found{}
	for _, c := range t.Conns {
		f.addConn(c, dir)
	}
	return f
}

func (f *found) addConn(c *wire.Conn, dir wire.Direction) {
	for i := range c.Frames {
		fr := &c.Frames[i]
		if fr.Dir != dir {
			continue
		}
		if fr.Err != nil {
			return
		}
		switch fr.Kind {
		case wire.KindStartup:
			f.startups++
		case wire.KindFPDU:
			f.lengths = append(f.lengths, fr.Header.Len()+len(fr.Payload))
			f.opcodes = append(f.opcodes, int(fr.Opcode()))
			if fr.Terminate != nil {
				f.layers = append(f.layers, fmt.Sprintf("0x%02x", fr.Terminate.Raw[0]>>4))
			}
		}
	}
}

// compare says in what tshark's finding contradicts ours, nothing if in nothing.
// It may have more: what stands behind an illegal frame.
func compare(ours, theirs *found) string {
	switch {
	case theirs.startups < ours.startups:
		return fmt.Sprintf("we see %d start-up frames, tshark %d", ours.startups, theirs.startups)
	case len(theirs.lengths) < len(ours.lengths):
		return fmt.Sprintf("we see %d legal FPDUs, tshark %d", len(ours.lengths), len(theirs.lengths))
	}
	for i, n := range ours.lengths {
		if theirs.lengths[i] != n {
			return fmt.Sprintf("FPDU %d: our ULPDU_Length is %d, tshark's %d", i+1, n, theirs.lengths[i])
		}
	}
	for i, op := range ours.opcodes {
		if i >= len(theirs.opcodes) || theirs.opcodes[i] != op {
			return fmt.Sprintf("FPDU %d: tshark does not see opcode %d: %v", i+1, op, theirs.opcodes)
		}
	}
	for i, l := range ours.layers {
		if i >= len(theirs.layers) || theirs.layers[i] != l {
			return fmt.Sprintf("Terminate %d: tshark does not see layer %s: %v", i+1, l, theirs.layers)
		}
	}
	return ""
}

// versionOnce is for callers that ask often.
var versionOnce = sync.OnceValues(Version)

// Available reports whether tshark can be asked.
func Available() bool {
	_, err := versionOnce()
	return err == nil
}
