package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// session is a replay under way.
type session struct {
	*plan
	cfg *Config
	ep  *conformance.Endpoint
	ctx context.Context
	tap *capture.Tap

	accepting *rawpeer.Listener
	peer      *rawpeer.Peer
	program   program
	connected bool              // Dial or Accept has returned
	tags      map[uint32]uint32 // the provider's STags for those of the capture
	writes    uint64            // RDMA Writes that were played to their end
	opens     bool              // the provider sends the first message by itself, for peer-to-peer mode

	result Result
}

// cleanUp closes what is open. ctx has ended.
func (s *session) cleanUp() {
	s.program.close()
	if s.peer != nil {
		_ = s.peer.Close()
	}
	if s.accepting != nil {
		_ = s.accepting.Close()
	}
}

// stopped notes why the replay goes no further.
func (s *session) stopped(format string, args ...any) {
	s.result.Problems = append(s.result.Problems, "stopped: "+fmt.Sprintf(format, args...))
}

// run replays, and writes what the tap saw to a file.
func (s *session) run(record string) error {
	at, err := s.listen()
	if err != nil {
		return err
	}
	recording, err := s.tap.Start(at.Port())
	if err != nil {
		return err
	}
	s.program.connect(s, at)
	if s.startUp(at) && s.steps() {
		s.settle()
	}
	if err := recording.Stop(record); err != nil {
		return fmt.Errorf("writing what was replayed: %w", err)
	}
	return nil
}

// startUp exchanges the start-up frames.
func (s *session) startUp(at netip.AddrPort) bool {
	var err error
	own, kind := s.conn.Request, mpa.KindReply // the peer's, and the provider's
	if s.peers == wire.ToResponder {
		s.peer, err = rawpeer.Dial(s.ctx, at, s.tap)
	} else {
		own, kind = s.conn.Reply, mpa.KindRequest
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Wait)
		s.peer, err = s.accepting.Accept(ctx)
		cancel()
	}
	if err != nil {
		s.stopped("no TCP connection: %v", err)
		return false
	}
	octets := own.AppendTo(nil)
	if s.peers == wire.ToResponder {
		err = s.peer.Send(octets)
	}
	var theirs mpa.Frame
	if err == nil {
		theirs, err = s.peer.ReadFrame(kind, s.cfg.Wait)
	}
	if err == nil && s.peers == wire.ToInitiator {
		err = s.peer.Send(octets)
	}
	if err != nil {
		s.stopped("the start-up did not succeed: %v", err)
		return false
	}
	s.peer.CRC = own.CRC || theirs.CRC
	if own.Markers && theirs.Markers {
		s.peer.Mark()
	}
	if e, _, err := theirs.SplitPrivateData(); err == nil && theirs.UsesEnhanced() {
		s.opens = s.peers == wire.ToInitiator && e.A
	}
	select {
	case <-s.program.prepared:
		return true
	case <-time.After(s.cfg.Wait):
		s.stopped("the program has not prepared its memory")
	}
	return false
}

// steps plays the events, and reports whether it came to their end.
func (s *session) steps() bool {
	for i := range s.events {
		if err := s.step(&s.events[i]); err != nil {
			s.stopped("step %d of %d: %v", i+1, len(s.events), err)
			return false
		}
	}
	return true
}

func (s *session) step(e *event) error {
	switch {
	case e.play != nil:
		return s.play(e.play)
	case e.set != nil:
		return s.set(e.set)
	case e.want != nil:
		return s.want(e.want)
	}
	return s.wantEnd()
}

// play makes the peer send a frame.
func (s *session) play(f *wire.Frame) error {
	switch f.Kind {
	case wire.KindFIN:
		return s.peer.CloseWrite()
	case wire.KindRST:
		return s.peer.Reset()
	}
	s.result.Played++
	octets, err := s.peer.Frame(s.rewritten(f))
	if err != nil {
		return err
	}
	if err := s.peer.Send(octets); err != nil && !s.refused {
		return fmt.Errorf("sending a %v: %w", f.Opcode(), err)
	}
	if f.Opcode() == rdmap.OpWrite && f.Header.Last {
		s.writes++
	}
	return nil
}

// rewritten returns an FPDU of the capture with the provider's STags. Its CRC is right or wrong, as
// in the capture.
func (s *session) rewritten(f *wire.Frame) rawpeer.FPDU {
	out := rawpeer.FPDU{Header: f.Header, Payload: f.Payload, NoDDP: f.HeaderCut}
	switch {
	case f.HeaderCut:
	case f.Header.Tagged:
		out.Header.STag = s.tag(f.Header.STag)
	case f.Read != nil:
		r := *f.Read
		r.SourceSTag = s.tag(r.SourceSTag)
		out.Payload = r.AppendTo(nil)
	case f.Opcode().Invalidates():
		out.Header.ULP32 = s.tag(f.Header.ULP32)
	}
	if f.CRCWrong {
		octets := out.Octets(true)
		n := len(octets) - mpa.CRCLen
		wrong := ^mpa.CRC(0, octets[:n])
		out.CRC = &wrong
	}
	return out
}

// tag returns the provider's STag for one of the capture. An STag of no region stays as it is.
func (s *session) tag(stag uint32) uint32 {
	if own, ok := s.tags[stag]; ok {
		return own
	}
	return stag
}

// join waits until the program is connected.
func (s *session) join() error {
	if s.connected {
		return nil
	}
	select {
	case err := <-s.program.result:
		s.connected = err == nil
		if err != nil {
			return fmt.Errorf("the program can't connect: %w", err)
		}
		return nil
	case <-time.After(s.cfg.Wait):
		return errors.New("the program's connect has not returned")
	}
}

// set makes the program change its memory, after what the peer wrote before has been placed.
func (s *session) set(c *change) error {
	if err := s.join(); err != nil {
		return err
	}
	for until := time.Now().Add(s.cfg.Wait); ; time.Sleep(100 * time.Microsecond) {
		stats, err := s.program.conn.QP().Stats()
		if err != nil {
			return fmt.Errorf("whether the peer's Writes have been placed is not known: %w", err)
		}
		if stats.Received.Write.Messages >= s.writes {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d of %d Writes have been placed", stats.Received.Write.Messages,
				s.writes)
		}
	}
	copy(c.region.first[c.at:], c.octets)
	// A poll that finds nothing looks for work of the connection. That orders the change before
	// whatever the provider does for it from now on.
	return s.program.poll()
}

// want makes the program post what sends a message, and waits for the message.
func (s *session) want(m *message) error {
	if s.opens { // the provider opens the stream by itself
		s.opens = false
	} else {
		if err := s.join(); err != nil {
			return err
		}
		if err := s.program.post(s, m); err != nil {
			return fmt.Errorf("posting a %v: %w", m.opcode(), err)
		}
	}
	for {
		seg, err := s.peer.ReadFPDU(s.cfg.Wait)
		if err != nil {
			return fmt.Errorf("instead of a %v: %w", m.opcode(), err)
		}
		got := rdmap.ParseControl(seg.Header.ULPCtl).Opcode
		if got == rdmap.OpTerminate && m.opcode() != got {
			return fmt.Errorf("instead of a %v a Terminate came", m.opcode())
		}
		if seg.Header.Last {
			s.result.Answered++
			return nil
		}
	}
}

// wantEnd waits for the end of what the provider sends. The program asks for the end, unless the
// peer or an error has ended the connection already.
func (s *session) wantEnd() error {
	if err := s.join(); err != nil {
		return err
	}
	if !s.peer.Finished() && !s.plan.refused {
		if err := s.program.conn.Disconnect(); err != nil {
			return fmt.Errorf("ending the connection: %w", err)
		}
	}
	rest, err := s.peer.Drain(s.cfg.Wait)
	switch {
	case errors.Is(err, rawpeer.ErrSilence):
		return errors.New("the provider does not end the connection")
	case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET):
		return err
	case len(rest) > 0:
		s.result.Problems = append(s.result.Problems, fmt.Sprintf("%d more octets before the end",
			len(rest)))
	}
	return nil
}
