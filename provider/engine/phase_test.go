package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestPhases tries to enter each phase from each: it is entered, or a graceful end has begun
// before, or it is a fault of the engine.
func TestPhases(t *testing.T) {
	const (
		entered = iota
		kept
		panics
	)
	want := map[[2]phase]int{
		{phaseOpen, phaseClosing}: entered, {phaseOpen, phaseClosingNotify}: entered,
		{phaseClosing, phaseClosingNotify}: entered,
		{phaseClosing, phaseFINSent}:       entered, {phaseClosingNotify, phaseFINSent}: entered,

		{phaseClosing, phaseClosing}: kept, {phaseClosingNotify, phaseClosing}: kept,
		{phaseFINSent, phaseClosing}: kept, {phaseClosingNotify, phaseClosingNotify}: kept,
		{phaseFINSent, phaseClosingNotify}: kept,

		{phaseOpen, phaseFinished}: entered, {phaseClosing, phaseFinished}: entered,
		{phaseClosingNotify, phaseFinished}: entered, {phaseFINSent, phaseFinished}: entered,
		{phaseFinished, phaseLinger}: entered, {phaseFinished, phaseLingerFINSent}: entered,
		{phaseLinger, phaseLingerFINSent}: entered,
		{phaseLinger, phaseClosed}:        entered, {phaseLingerFINSent, phaseClosed}: entered,
	}
	// Released at the end: in schedules what a goroutine holds is known by a key that a later one
	// may have.
	s := (&stream{q: new(qp)}).link()
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.closer.mu.Lock()
	defer s.closer.mu.Unlock()
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	enter := func(to phase) (from phase, failed bool) {
		defer func() { failed = recover() != nil }()
		return s.enter(to), false
	}
	for from := phaseOpen; from <= phaseClosed; from++ {
		for to := phaseClosing; to <= phaseClosed; to++ {
			s.phase.Store(uint32(from))
			was, failed := enter(to)
			got := kept
			switch {
			case failed:
				got = panics
			case was != from:
				t.Errorf("%s to %s: the phase before was %s", from, to, was)
			case s.at() == to && (from != to || want[[2]phase{from, to}] == entered):
				got = entered
			}
			w, may := want[[2]phase{from, to}]
			if !may {
				w = panics
			}
			if got != w {
				t.Errorf("%s to %s: %s, want %s", from, to, []string{"entered", "kept", "panics"}[got],
					[]string{"entered", "kept", "panics"}[w])
			}
			if got != entered && s.at() != from {
				t.Errorf("%s to %s: now it is %s", from, to, s.at())
			}
		}
	}
	var names []string
	for p := phaseOpen; p <= phaseClosed; p++ {
		names = append(names, fmt.Sprint(p))
	}
	slices.Sort(names)
	testkit.Equal(t, "names of phases", len(slices.Compact(names)), int(phaseClosed)+1)
}

// TestPeerClosed: the peer's FIN may come in every phase, and changes none.
func TestPeerClosed(t *testing.T) {
	for p := phaseOpen; p <= phaseClosed; p++ {
		s := (&stream{q: new(qp)}).link()
		s.phase.Store(uint32(p))
		s.rx.mu.Lock()
		s.closer.mu.Lock()
		s.peerClosed()
		if !s.closer.eof || s.at() != p {
			t.Errorf("%s: eof is %t, the phase %s", p, s.closer.eof, s.at())
		}
		s.closer.mu.Unlock()
		s.rx.mu.Unlock()
	}
}
