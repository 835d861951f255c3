package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

type decodeCmd struct {
	File string `arg:"" optional:"" help:"The capture file: pcap or pcapng."`

	Interface string `short:"i" help:"Decode what passes this network interface now, instead of a file, until a signal ends it. lo is for connections between addresses of this host. Needs --port, and CAP_NET_RAW." placeholder:"NAME"`
	Count     int    `help:"With --interface: end after this many frames." placeholder:"N"`

	Port uint16 `help:"Only connections to or from this TCP port. Default: all." placeholder:"PORT"`
	All  bool   `help:"Also list TCP connections that are not iWARP."`
	JSON bool   `name:"json" help:"Print JSON: the connections with their frames, and notes on what could not be read."`
}

// Help implements kong's HelpProvider.
func (*decodeCmd) Help() string {
	return `Each line is one frame: the seconds since the connection began, an arrow to the right if the initiator sent it and to the left ` +
		`if the responder did, the frame, and after "!!" what is wrong with it.

In start-up frames (MPA Request and Reply, RFC 5044) C asks for CRCs, M for markers, R rejects, S says that the enhanced start-up of RFC 6581 is used, ` +
		`with IRD and ORD and its flags A to D. In other frames L marks the last segment of a message. An RDMA Write or Read Response has the STag (the key) and the ` +
		`TO (tagged offset, the address) of the memory; the rest have the QN (queue number), the MSN (message sequence number) and the MO (message offset). ` +
		`A Terminate has layer, type and code of the error (RFC 5040 section 4.8), and of the segment that caused it the length (M), the DDP header (D) and the header of an RDMA Read Request (R).

The capture must have the connection's beginning, because the start-up frames say whether there are CRCs and markers. ` +
		`With --interface, begin before the connection is made; the line of a frame is printed as soon as the frame is complete, after the line of its connection. ` +
		`If open connections have buffered more than 64 MiB together, the one with the most is not decoded any further.

The exit status is 1 ` +
		`if the capture has no iWARP in it, and 2 if the file is not a capture, or the interface can't be captured on.`
}

// decoded is the output of decode --json.
type decoded struct {
	Conns []decodedConn `json:"connections"`
	Notes []string      `json:"notes,omitempty"` // what was wrong with the file
}

type decodedConn struct {
	Initiator string         `json:"initiator"`
	Responder string         `json:"responder"`
	CRC       bool           `json:"crc"`
	Frames    []decodedFrame `json:"frames"`
	Notes     []string       `json:"notes,omitempty"` // what could not be decoded, and why
}

type decodedFrame struct {
	Seconds   float64 `json:"seconds"` // since the connection began
	Direction string  `json:"direction"`
	Kind      string  `json:"kind"`
	Offset    uint64  `json:"offset"` // in the direction's stream, bytes
	Length    int     `json:"length"` // bytes
	Text      string  `json:"text"`
	Error     string  `json:"error,omitempty"`
}

var kindNames = map[wire.Kind]string{
	wire.KindStartup: "startup", wire.KindFPDU: "fpdu", wire.KindFIN: "fin", wire.KindRST: "rst", wire.KindUndecoded: "undecoded",
}

// Run decodes. It fails if the file contains no iWARP.
func (c *decodeCmd) Run(ctx context.Context, out *output) error {
	switch {
	case (c.File == "") == (c.Interface == ""):
		return unable(errors.New("decode: give either a capture file, or --interface NAME with --port PORT"))
	case c.Interface != "":
		return c.live(ctx, out)
	case c.Count != 0:
		return unable(errors.New("decode: --count is for --interface"))
	}
	trace, err := wire.ReadFile(c.File, c.Port)
	if err != nil {
		return unable(err)
	}
	seen := len(trace.Conns)
	if !c.All {
		trace = trace.IWARP()
	}
	if c.JSON {
		if err := out.json(decoded{decodedConns(trace), trace.Notes}); err != nil {
			return err
		}
	}
	if len(trace.Conns) == 0 {
		for _, n := range trace.Notes {
			fmt.Fprintf(out.errors, "note: %s\n", n)
		}
		return c.nothing(seen)
	}
	if c.JSON {
		return nil
	}
	if len(trace.Conns) == 1 { // with more connections, the ladder says this
		fmt.Fprintf(out, "%s -> %s\n", trace.Conns[0].Initiator, trace.Conns[0].Responder)
	}
	for _, line := range trace.Ladder() {
		fmt.Fprintln(out, line)
	}
	return nil
}

// nothing returns the error for a file without iWARP; seen is its number of TCP connections.
func (c *decodeCmd) nothing(seen int) error {
	where := ""
	if c.Port != 0 {
		where = fmt.Sprintf(" with port %d", c.Port)
	}
	if seen == 0 {
		return fmt.Errorf("%s: no iWARP: there is no TCP connection%s in it", c.File, where)
	}
	return fmt.Errorf("%s: no iWARP: none of %d TCP connections%s begins with an MPA Request", c.File, seen, where)
}

func decodedConns(trace *wire.Trace) []decodedConn {
	conns := make([]decodedConn, 0, len(trace.Conns))
	for _, conn := range trace.Conns {
		d := decodedConn{
			Initiator: conn.Initiator.String(), Responder: conn.Responder.String(), CRC: conn.CRC(),
			Frames: make([]decodedFrame, 0, len(conn.Frames)), Notes: conn.Notes,
		}
		lines := conn.Ladder() // one line per frame
		for i := range conn.Frames {
			f := &conn.Frames[i]
			row := decodedFrame{
				Seconds: f.Time.Sub(conn.Start).Seconds(), Direction: f.Dir.String(), Kind: kindNames[f.Kind],
				Offset: f.Offset, Length: len(f.Octets),
			}
			if f.Err != nil {
				row.Error = f.Err.Error()
			}
			row.Text = afterArrow(lines[i], row.Error)
			d.Frames = append(d.Frames, row)
		}
		conns = append(conns, d)
	}
	return conns
}

// afterArrow returns a ladder line's description of the frame, without wrong.
func afterArrow(line, wrong string) string {
	if _, text, ok := strings.Cut(line, "-- "); ok {
		line = text
	} else if _, text, ok := strings.Cut(line, "--> "); ok {
		line = text
	}
	return strings.TrimSuffix(line, "  !! "+wrong)
}

// liveEvery is the shortest time between two decodings, because each decodes all of a connection
// again.
const liveEvery = 50 * time.Millisecond

// live decodes an interface's packets until ctx ends, or until --count frames are printed.
func (c *decodeCmd) live(ctx context.Context, out *output) (err error) {
	switch {
	case c.Port == 0:
		return unable(errors.New("decode: --interface needs --port, the TCP port of the connections"))
	case c.JSON:
		return unable(errors.New("decode: --json is for a file; record one with dumpcap or tcpdump"))
	case c.Count < 0:
		return unable(fmt.Errorf("decode: --count %d: has to be above 0, or left out for no limit", c.Count))
	}
	follower, err := (&capture.Wire{Interface: c.Interface}).Follow(c.Port)
	if err != nil {
		return unable(fmt.Errorf("decode: %w", err))
	}
	fmt.Fprintf(out.errors, "decoding port %d on %s\n", c.Port, c.Interface)
	live := wire.NewLive(c.Port)
	live.All = c.All
	frames, enough := 0, false
	printed := func(lines []string) (enough bool) {
		for _, line := range lines {
			fmt.Fprintln(out, line)
			if isFrame(line) {
				frames++
			}
			if frames == c.Count && c.Count > 0 {
				return true
			}
		}
		return false
	}
	for err == nil {
		err = follower.Packets(ctx, live.Packet)
		if enough = printed(live.Lines()); enough {
			break
		}
		select {
		case <-time.After(liveEvery):
		case <-ctx.Done():
		}
	}
	dropped, closeErr := follower.Close()
	if !enough {
		printed(live.End())
	}
	if dropped > 0 {
		fmt.Fprintf(out.errors, "note: the kernel dropped %d packets, because decoding did not keep up\n", dropped)
	}
	if err = errors.Join(c.liveError(ctx, err), closeErr); err == nil && frames == 0 {
		err = fmt.Errorf("%s: no iWARP passed at port %d", c.Interface, c.Port)
	}
	return err
}

// liveError returns the error with which live ends; a signal is not an error.
func (c *decodeCmd) liveError(ctx context.Context, err error) error {
	switch {
	case err == nil, ctx.Err() != nil:
		return nil
	case errors.Is(err, syscall.ENETDOWN):
		err = fmt.Errorf("is down or has been removed: %w", err)
	}
	return unable(fmt.Errorf("decode: interface %s: %w", c.Interface, err))
}

// isFrame reports whether a line of a ladder is a frame, not a heading or a note.
func isFrame(line string) bool {
	return strings.Contains(line, " --> ") || strings.Contains(line, " <-- ")
}
