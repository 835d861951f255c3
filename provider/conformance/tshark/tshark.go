// Package tshark makes Wireshark's command-line tool decode a capture, as an independent
// witness. It compares the decoding of tshark with the decoding of package wire: every frame of
// each connection and direction in order, and every field that the witness shows.
//
// # What the witness can't see
//
// Wireshark's MPA dissector (read and tried in 4.0) finds iWARP by its start-up frames
// and decodes in one pass. Frames that it can't decode because of the following rules,
// and all frames after them in the same direction, are not compared. Any other difference is
// a disagreement.
//
//   - A start-up frame has to begin a TCP segment with at least 20 octets of it.
//     A connection whose Request tshark can't see is not iWARP to tshark. If it can't
//     see the Reply, it decodes no FPDU. Of a Request or Reply with a PD_Length
//     above 512 it shows the header, where package wire shows nothing.
//   - tshark passes over FPDUs in the segment of a start-up frame, and FPDUs that
//     come before the Reply.
//   - tshark has to see 8 octets of an FPDU in the segment in which the FPDU begins, or
//     it loses FPDU boundaries. With fewer it can go on only if the whole FPDU before
//     lies in the same segment.
//   - If connections in one file use the same addresses and ports one after another,
//     tshark takes the later ones for more FPDUs of the first. Only the first is
//     compared, up to its end.
//   - With Markers, tshark takes each segment for one FPDU. No FPDU of a connection
//     with Markers in either direction is compared.
//   - A direction is compared up to where package wire stops decoding.
//
// To tshark, an FPDU without a whole DDP header, a Read Request whose length is not 28
// octets and a Terminate without a control field are malformed; only the parts of them
// before that are compared. tshark knows the bits of a Terminate as the RFC defines them.
// So a Terminate of siw is compared bit by bit as what it looks like in that layout. The
// fields of MPA revision 2 are private data and reserved bits to tshark, and compared as
// such. CRCs cover the octets of payloads, if CRCs are on.
package tshark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
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

// available caches the answer, because callers ask often.
var available = sync.OnceValue(func() bool {
	_, err := Version()
	return err == nil
})

// Available reports whether tshark can be asked.
func Available() bool { return available() }

// others are the protocols that guess from a packet's octets whether it is theirs, in TCP segments
// or in what RDMAP carries, except for MPA. They are turned off for two reasons: any of them may
// take a packet before MPA, and one that finds what RDMAP carries malformed keeps the rest of the
// segment from being decoded. MPA is asked first, so port numbers select no protocol, not even
// 20000, which is otherwise DNP3's.
var others = sync.OnceValues(func() ([]string, error) {
	out, err := exec.Command("tshark", "-G", "heuristic-decodes").Output()
	if err != nil {
		return nil, fmt.Errorf("tshark -G heuristic-decodes: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if cells := strings.Split(line, "\t"); len(cells) > 2 && (cells[0] == "tcp" || cells[0] == "iwarp_ddp_rdmap") && cells[1] != "iwarp_mpa" {
			names = append(names, cells[1])
		}
	}
	return names, nil
})

// run makes tshark print the MPA, DDP and RDMAP details of a file's packets.
func run(ctx context.Context, file string) (string, error) {
	args := []string{
		"-n", "-r", file, "-Y", "iwarp_mpa", "-O", "iwarp_mpa,iwarp_ddp_rdmap",
		"-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.desegment_tcp_streams:TRUE", "-o", "tcp.check_checksum:FALSE",
		// siw sends from several CPUs: packets on lo overtake each other.
		"-o", "tcp.reassemble_out_of_order:TRUE",
	}
	off, err := others()
	if err != nil {
		return "", err
	}
	for _, name := range off {
		args = append(args, "--disable-protocol", name)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "tshark", args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// The user's preferences must not change what it decodes.
	cmd.Env = append(os.Environ(), "WIRESHARK_CONFIG_DIR=/nonexistent", "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("tshark: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
