package engine

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// watching is a network whose pollers note which streams are watched for reading, and can be
// made to refuse.
type watching struct {
	transport.Network
	mu      sync.Mutex
	reading map[transport.Conn]bool
	refuse  error // what WantRead(c, true) returns
}

func newWatching() *watching {
	return &watching{Network: memnet.New(nil), reading: make(map[transport.Conn]bool)}
}

func (w *watching) NewPoller() (transport.Poller, error) {
	p, err := w.Network.NewPoller()
	return &watchingPoller{p, w}, err
}

type watchingPoller struct {
	transport.Poller
	w *watching
}

func (p *watchingPoller) Add(c transport.Conn, h transport.Handler) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.reading[c] = true
	return p.Poller.Add(c, h)
}

func (p *watchingPoller) WantRead(c transport.Conn, on bool) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if on && p.w.refuse != nil {
		return p.w.refuse
	}
	p.w.reading[c] = on
	return p.Poller.WantRead(c, on)
}

// refuseOn has pollers refuse, with err, to watch for reading from now on.
func (w *watching) refuseOn(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

// reads reports whether the stream is watched for arrivals.
func (w *watching) reads(s *stream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reading[s.conn]
}

// watchedSide is a side with a scripted peer on such a network, in a bubble.
func watchedSide(t *testing.T, script func(w *watching, s *side, r *raw)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWatching()
		s := newSide(t, Options{Network: w}, sideOptions{})
		script(w, s, s.connectRaw(w))
	})
}

// TestUnwatchReasons: a stream is watched for arrivals while there is no reason against it, in
// whatever order the reasons come and go.
func TestUnwatchReasons(t *testing.T) {
	const depth = 6
	watchedSide(t, func(w *watching, s *side, r *raw) {
		st := s.qp.stream.Load()
		steps := []struct {
			name string
			do   func()
			set  unwatched
			gone unwatched
		}{
			{"store", func() { testkit.OK(t, st.unwatch(readStoring, true)) }, readStoring, 0},
			{"stored", func() { testkit.OK(t, st.unwatch(readStoring, false)) }, 0, readStoring},
			{"FIN", func() { testkit.OK(t, st.unwatch(readEnded, true)) }, readEnded, 0},
			{"no FIN", func() { testkit.OK(t, st.unwatch(readEnded, false)) }, 0, readEnded},
		}
		for n := 1; n < pow(len(steps), depth); n++ {
			var want unwatched
			var names []string
			for i := n; i > 0; i /= len(steps) {
				step := &steps[i%len(steps)]
				step.do()
				want = want&^step.gone | step.set
				names = append(names, step.name)
				testkit.Equal(t, fmt.Sprintf("%v: watched", names), w.reads(st), want == 0)
			}
			testkit.OK(t, st.unwatch(readStoring|readEnded, false))
		}
	})
}

func pow(n, e int) int {
	p := 1
	for range e {
		p *= n
	}
	return p
}

// TestCannotWatch: a stream ends if the poller refuses to watch it, because it would not see
// anything from its peer any more.
func TestCannotWatch(t *testing.T) {
	refused := errors.New("no room for watches")
	watchedSide(t, func(w *watching, s *side, r *raw) {
		o := &store{b: make([]byte, 1), gate: make(chan struct{})}
		om := s.object(o, 1, writable)
		r.send(rdmap.WriteHeader(om.STag(), om.Addr(), true), []byte{1})
		synctest.Wait()
		w.refuseOn(refused)
		o.gate <- struct{}{}
		synctest.Wait()
		testkit.OK(t, om.Close())
		testkit.WantErr(t, "the end", s.wantDown("an object has stored"), refused)
		r.wantReset("the peer's end")
	})
}

// TestTxMuIsGivenBack: only functions that then look for work that was left to the holder
// release tx.mu.
func TestTxMuIsGivenBack(t *testing.T) {
	entries := testkit.Must(os.ReadDir("."))(t)
	fset := token.NewFileSet()
	found := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file := testkit.Must(parser.ParseFile(fset, e.Name(), nil, 0))(t)
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, is := n.(*ast.SelectorExpr)
				if !is || call.Sel.Name != "Unlock" {
					return true
				}
				lock, is := call.X.(*ast.SelectorExpr)
				if !is || lock.Sel.Name != "mu" {
					return true
				}
				switch x := lock.X.(type) {
				case *ast.Ident: // tx.mu
					is = x.Name == "tx"
				case *ast.SelectorExpr: // s.tx.mu
					is = x.Sel.Name == "tx"
				}
				if is {
					if found++; f.Name.Name != "unlock" && f.Name.Name != "oneTurn" {
						t.Errorf("%s: %s releases tx.mu and does not look at tx.work: use tx.unlock",
							fset.Position(n.Pos()), f.Name.Name)
					}
				}
				return true
			})
		}
	}
	testkit.Equal(t, "places that release tx.mu", found, 2)
}

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
