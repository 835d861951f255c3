// Package replay plays one side of a captured connection to a provider, which takes the other, and
// compares what it places and answers with the capture.
//
// The side that is played is a scripted peer (package rawpeer), which sends the FPDUs of the
// capture in their order. Each message of the other side that the capture has is waited for
// before the next is sent. What the provider's program did follows from the capture: its regions,
// receives, Sends, Writes, Reads, and who ended the connection.
//
// # What is rewritten
//
//   - STags of the provider's memory, in what the peer sends: the provider chooses its own. Tagged
//     offsets stay, because the regions are registered at the addresses that they had.
//   - CRCs, because they cover the STags. A wrong CRC stays wrong.
//
// Start-up frames of the peer and all payload go out octet for octet, private data included. What a
// program sends about its memory in private data or messages is not looked at, because nothing in a
// replay acts on it.
//
// # Limitations
//
//   - The connection has to be in the capture from its start-up to the last message.
//   - The provider's messages follow one another: a replay does not show that several were under
//     way.
//   - Octets of the provider's memory that the peer neither read nor wrote count as zero.
//   - Rejected connections are refused with an error, and so are connections of the RDMA
//     Consortium's version, with Markers in one direction, or with messages of RFC 7306.
package replay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// Config says what is replayed, and to which provider.
type Config struct {
	Conn *wire.Conn
	Play conformance.Role // the side of the capture that the scripted peer plays

	// Open opens the provider that takes the other side, with the options crc=on or off and
	// markers=on or off, as the capture's side had them, and rtr=send, write or read if it asked
	// for a peer-to-peer connection.
	Open conformance.Opener

	// Wait is how long each answer may take. Zero means 2 s.
	Wait time.Duration

	// Record, if not empty, is a pcapng file that the replayed connection is written to.
	Record string
}

// A Result is what a replay has shown.
type Result struct {
	Conn *wire.Conn // as it was replayed
	Rows []wire.Row // the capture's messages beside it

	// Problems are what is not on the wire: memory, receives and completions that are not as in the
	// capture, and where the replay stopped.
	Problems []string

	Played   int // FPDUs that the peer sent
	Answered int // messages that the provider sent
	Compared int // octets of memory and receives that were compared
}

// Same reports whether everything was as in the capture.
func (r *Result) Same() bool {
	for _, row := range r.Rows {
		if len(row.Differences) > 0 {
			return false
		}
	}
	return len(r.Problems) == 0
}

// Run replays a connection. The error is about a capture that can't be replayed, and about a
// provider or a file that can't be opened; what the provider does is in the Result.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	p, err := newPlan(cfg.Conn, cfg.Play)
	if err != nil {
		return nil, fmt.Errorf("the connection can't be replayed: %w", err)
	}
	if cfg.Wait == 0 {
		cfg.Wait = 2 * time.Second
	}
	ep, err := cfg.Open(p.options())
	if err != nil {
		return nil, fmt.Errorf("opening the provider: %w", err)
	}
	record := cfg.Record
	if record == "" {
		dir, err := os.MkdirTemp("", "govs-replay-")
		if err != nil {
			return nil, errors.Join(err, ep.Context.Close())
		}
		defer os.RemoveAll(dir)
		record = filepath.Join(dir, "replay.pcapng")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{plan: p, cfg: &cfg, ep: ep, ctx: ctx, tap: &capture.Tap{},
		tags: make(map[uint32]uint32)}
	runErr := s.run(record)
	cancel()
	s.cleanUp()
	if err := errors.Join(runErr, ep.Context.Close()); err != nil {
		return nil, err
	}
	return s.compared(record)
}

// options returns the provider's options, as the capture's side had them.
func (p *plan) options() []string {
	own := p.conn.Reply
	if p.peers == wire.ToInitiator {
		own = p.conn.Request
	}
	onOff := func(name string, on bool) string {
		if on {
			return name + "=on"
		}
		return name + "=off"
	}
	out := []string{onOff("crc", own.CRC), onOff("markers", own.Markers)}
	if e, _, err := own.SplitPrivateData(); err == nil && own.UsesEnhanced() && e.A &&
		p.peers == wire.ToInitiator {
		switch {
		case e.B:
			out = append(out, "rtr=send")
		case e.C:
			out = append(out, "rtr=write")
		case e.D:
			out = append(out, "rtr=read")
		}
	}
	return out
}

// compared sets the capture beside what was recorded.
func (s *session) compared(record string) (*Result, error) {
	trace, err := wire.ReadFile(record, 0)
	if err != nil {
		return nil, fmt.Errorf("reading what was recorded: %w", err)
	}
	if len(trace.Conns) == 0 {
		return nil, errors.New("nothing was recorded")
	}
	r := &s.result
	r.Conn = trace.Conns[len(trace.Conns)-1]
	r.Rows = withoutEnds(wire.Align(&wire.Trace{Conns: []*wire.Conn{s.conn}},
		&wire.Trace{Conns: []*wire.Conn{r.Conn}}))
	return r, nil
}

// withoutEnds leaves out how a direction ended where the capture does not show its end.
func withoutEnds(rows []wire.Row) []wire.Row {
	for i := range rows {
		rows[i].Differences = slices.DeleteFunc(rows[i].Differences, func(d wire.Difference) bool {
			return strings.HasSuffix(d.Key, ":end:how") && d.Reference == wire.EndNone
		})
	}
	return rows
}

// listen makes the responder listen, and returns its address.
func (s *session) listen() (netip.AddrPort, error) {
	at := netip.AddrPortFrom(s.ep.Addr, 0)
	if s.peers == wire.ToInitiator {
		l, err := rawpeer.Listen(at, s.tap)
		if err != nil {
			return at, fmt.Errorf("the peer can't listen: %w", err)
		}
		s.accepting = l
		return l.Addr(), nil
	}
	return s.program.listen(s, at)
}
