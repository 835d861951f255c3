package engine

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
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
		mine, theirs := connectTransport(t, w, memAddr)
		s.start(mine, params(true), nil)
		defer theirs.Close()
		framer, d := newFraming(true)
		script(w, s, &raw{t: t, c: theirs, framer: framer, d: d, sendMSN: 1, readMSN: 1})
	})
}

// TestUnwatchReasons: a stream is watched for arrivals while there is no reason against it, in
// whatever order the reasons come and go.
func TestUnwatchReasons(t *testing.T) {
	const depth = 6
	watchedSide(t, func(w *watching, s *side, r *raw) {
		st := s.qp.stream.Load()
		m := &s.dev.muting
		steps := []struct {
			name string
			do   func()
			set  unwatched
			gone unwatched
		}{
			{"mute", func() { m.mute(st) }, readMuted, 0},
			{"attend", s.dev.attend, 0, readMuted},
			{"store", func() { testkit.OK(t, st.unwatch(readStoring, true)) }, readStoring, 0},
			{"stored", func() { testkit.OK(t, st.unwatch(readStoring, false)) }, 0, readStoring},
			{"FIN", func() { testkit.OK(t, st.unwatch(readEnded, true)) }, readEnded, 0},
		}
		for n := 1; n < pow(len(steps), depth); n++ {
			var want unwatched
			var names []string
			for i := n; i > 0; i /= len(steps) {
				step := &steps[i%len(steps)]
				step.do()
				want = want&^step.gone | step.set
				names = append(names, step.name)
				if got := w.reads(st); got != (want == 0) {
					t.Fatalf("%v: watched: %v", names, got)
				}
			}
			s.dev.attend()
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

// TestStoreAndMute: while an object stores what has come, the stream is not watched, even if
// its owner goes to sleep meanwhile. And the end of the store does not have a muted stream
// watched.
func TestStoreAndMute(t *testing.T) {
	watchedSide(t, func(w *watching, s *side, r *raw) {
		const size = 100
		o := &store{b: make([]byte, size), gate: make(chan struct{})}
		om := testkit.Must(s.pd.RegObject(o, size,
			provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*mr)
		defer func() { testkit.OK(t, om.Close()) }()
		st := s.qp.stream.Load()
		write := func() { r.send(rdmap.WriteHeader(om.stag, om.base, true), make([]byte, size)) }
		s.dev.muting.mute(st)
		write()
		write()
		st.look(policy.TurnMost)
		if !st.rx.storing() {
			t.Fatal("nothing is being stored")
		}
		s.dev.attend()
		if w.reads(st) {
			t.Error("it is watched while it stores")
		}
		synctest.Wait() // never returns if a goroutine spins
		s.dev.muting.mute(st)
		o.gate <- struct{}{} // and the next is stored
		o.gate <- struct{}{}
		if !s.isMuted() || w.reads(st) {
			t.Error("it is watched although it is muted")
		}
		time.Sleep(4 * policy.LookEvery)
		synctest.Wait()
		if !w.reads(st) {
			t.Error("nobody looks, and it is not watched")
		}
	})
}

// TestCannotWatch: a stream ends if the poller refuses to watch it, because it would not see
// anything from its peer any more.
func TestCannotWatch(t *testing.T) {
	refused := errors.New("no room for watches")
	for name, lose := range map[string]func(w *watching, s *side, r *raw){
		"the owner, which has spun, sleeps": func(w *watching, s *side, r *raw) {
			s.dev.muting.mute(s.qp.stream.Load())
			w.refuseOn(refused)
			s.dev.attend()
		},
		"the owner, which has spun, does not look any more": func(w *watching, s *side, r *raw) {
			s.dev.muting.mute(s.qp.stream.Load())
			w.refuseOn(refused)
		},
		"an object has stored": func(w *watching, s *side, r *raw) {
			o := &store{b: make([]byte, 1), gate: make(chan struct{})}
			om := testkit.Must(s.pd.RegObject(o, 1,
				provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*mr)
			r.send(rdmap.WriteHeader(om.stag, om.base, true), []byte{1})
			synctest.Wait()
			w.refuseOn(refused)
			o.gate <- struct{}{}
			synctest.Wait()
			testkit.OK(t, om.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			watchedSide(t, func(w *watching, s *side, r *raw) {
				lose(w, s, r)
				if err := s.wantDown(name); !errors.Is(err, refused) {
					t.Errorf("ended with %v", err)
				}
				r.wantReset("the peer's end")
			})
		})
	}
}

// TestPostMeetsGiveBack: a work request that is posted while its stream gives back what it has
// kept is sent.
func TestPostMeetsGiveBack(t *testing.T) {
	watchedSide(t, func(w *watching, s *side, r *raw) {
		st := s.qp.stream.Load()
		s.dev.muting.mute(st)
		s.send(provider.SendWR{Opcode: provider.WRSend})
		r.next("the first Send")
		batches := &s.dev.prog.batches
		if st.tx.b == nil {
			t.Fatal("nothing is kept")
		}
		posted := false
		batches.Idle = func(b *txBatch) bool { // with txMu held
			if !posted {
				posted = true
				s.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled})
			}
			return b.idle()
		}
		s.dev.attend()
		if !posted {
			t.Fatal("nothing was given back")
		}
		r.next("the second Send")
		s.wantWC("the second Send", provider.WC{WRID: 2, Opcode: provider.WCSend})
		if n := batches.Lent(); n != 0 {
			t.Errorf("%d batches are lent", n)
		}
	})
}

// TestGiveBackMeetsLook: a stream that is unmuted while another goroutine looks at it keeps
// nothing afterwards.
func TestGiveBackMeetsLook(t *testing.T) {
	watchedSide(t, func(w *watching, s *side, r *raw) {
		st := s.qp.stream.Load()
		s.dev.muting.mute(st)
		st.look(policy.TurnMost)
		st.rxMu.Lock() // the look is past the point where it gives back
		if st.rx.c == nil {
			t.Fatal("nothing is kept")
		}
		go s.dev.attend()
		for st.keeps.Load() {
			// not synctest.Wait: a goroutine that waits for a lock is not idle to it
			runtime.Gosched()
		}
		st.rxMu.Unlock()
		synctest.Wait()
		if n := s.dev.prog.contexts.Lent(); n != 0 {
			t.Errorf("%d contexts are lent", n)
		}
	})
}

// TestTxMuIsGivenBack: only functions that then look for work that was left to the holder
// release txMu.
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
				if lock, is := call.X.(*ast.SelectorExpr); is && lock.Sel.Name == "txMu" {
					if found++; f.Name.Name != "unlockTx" && f.Name.Name != "txTurn" {
						t.Errorf("%s: %s releases txMu and does not look at txWork: use unlockTx",
							fset.Position(n.Pos()), f.Name.Name)
					}
				}
				return true
			})
		}
	}
	if found != 2 {
		t.Errorf("%d places release txMu, want 2", found)
	}
}

// isMuted reports whether the side's stream is taken out of what is watched.
func (s *side) isMuted() bool {
	m := &s.dev.muting
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.qp.stream.Load().unwatched&readMuted != 0
}
