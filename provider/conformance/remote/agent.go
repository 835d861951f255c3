package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// Agent serves the devices of its host to one session at a time.
type Agent struct {
	Secret []byte // the clients' secret; may be empty on a loopback address, see [CheckSecret]

	// Host describes the host. Serve sets its Clock.
	Host Host

	// Open opens a provider with the client's options; the error may be an
	// [*provider.UnsupportedError].
	Open func(name string, options []string) (provider.Provider, error)

	// Capture records the packets of a TCP port until stop is called; stop returns the bytes of the
	// capture file. Capture itself must limit how much it records. Nil means that the agent takes
	// no captures.
	Capture func(port uint16) (stop func() ([]byte, error), err error)

	// Patience has the meaning of [Options].Patience.
	Patience time.Duration

	// MaxMemory limits the memory that the agent holds for a client, in bytes; 0 means 1 GiB. It
	// covers the client's regions (the agent has two copies of each), its open objects with their
	// queues, its capture files, and the completions that were polled and are not sent yet. A
	// device counts as 256 KiB, a running capture as 512 KiB. What earlier runs had counts, too,
	// until their providers have returned from all calls. Above the limit, calls fail with ENOMEM.
	// Poll does not fail: the agent then returns fewer completions at a time.
	MaxMemory uint64

	// Log, if not nil, is called with messages for a person who watches the agent, one at a time.
	// While it blocks, the agent goes on; 64 messages wait, and further ones are only counted.
	Log func(format string, args ...any)
}

// Limits of what an agent holds for clients.
const (
	maxStrangers = 32          // connections that have not proved that they know the secret
	maxUnderWay  = 4096        // unanswered requests, which a client does not exceed
	maxHeads     = 2 * maxHead // total bytes of their heads; further requests wait
	maxBlocks    = 1 << 17     // including the blocks for which there was no memory
	captureBytes = 512 << 10   // a running capture without its packets
	defaultBytes = 1 << 30
)

// The first and the longest pause of Serve when it cannot accept a connection because the process
// is out of descriptors or memory, as in net/http. New connections wait in the backlog.
const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// exhausted reports whether err of Accept means that this process or system is temporarily out of a
// resource.
func exhausted(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Serve accepts connections until ctx ends or accepting fails; if descriptors run out, it waits
// until some are free. Before it returns, it closes l, ends the run, and frees everything that
// clients have made.
// The exceptions are calls of providers and of Log that do not return within Patience. The error is
// nil if ctx has ended.
//
// It returns EINVAL if l needs a secret that the agent lacks ([CheckSecret]).
//
// A connection has 5 seconds to prove that it knows the secret. If more than 32 connections have
// not done so, each new one displaces the oldest of the address with most of them.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	if l == nil {
		return fmt.Errorf("remote.Agent: the listener is nil: %w", syscall.EINVAL)
	}
	if a == nil || a.Open == nil {
		_ = l.Close()
		return fmt.Errorf("nil remote.Agent, or one whose Open is nil: %w", syscall.EINVAL)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		if err := CheckSecret(a.Secret, tcp.AddrPort().Addr()); err != nil {
			_ = l.Close()
			return fmt.Errorf("remote.Agent: %w: %w", err, syscall.EINVAL)
		}
	}
	one := &serving{journal: newJournal(a.Log)}
	defer one.close(patienceOr(a.Patience))
	var running sync.WaitGroup
	defer running.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end() // the run, which would keep Serve from returning why it accepts no more
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	unproven := &strangers{most: maxStrangers}
	pause := acceptPauseMin
	for {
		c, err := l.Accept()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case exhausted(err):
			one.log("accepting control connections: %v; trying again in %v", err, pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, acceptPauseMax)
		case err != nil:
			_ = l.Close()
			return fmt.Errorf("accepting control connections: %w", err)
		default:
			pause = acceptPauseMin
			unproven.add(c)
			running.Go(func() { a.welcome(ctx, c, one, unproven) })
		}
	}
}

// serving is the client that an agent serves, and what the agent logs.
type serving struct {
	*journal

	mu    sync.Mutex
	whom  string // empty: nobody
	since time.Time

	left atomic.Uint64 // bytes of ended runs whose providers have not returned from a call
}

// take begins to serve a client, or returns why it does not.
func (s *serving) take(whom string) (refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.whom != "" {
		return fmt.Sprintf("it serves a run of %s since %s", s.whom,
			s.since.UTC().Format("15:04:05 MST"))
	}
	s.whom, s.since = whom, time.Now()
	return ""
}

func (s *serving) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whom = ""
}

// welcome serves a connection until it ends.
func (a *Agent) welcome(ctx context.Context, c net.Conn, one *serving, unproven *strangers) {
	defer c.Close()
	from := c.RemoteAddr().String()
	_ = c.SetDeadline(time.Now().Add(handshakeLimit)) // before ctx may shorten it
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	taken := false
	k, err := receive(c, a.Secret, a.Host.Build, func() string {
		unproven.remove(c)
		refusal := one.take(from)
		taken = refusal == ""
		return refusal
	})
	stopped := !stop() // for every client, because ctx keeps what is not stopped
	if taken {         // even if the connection failed before the client was informed
		defer one.give()
	}
	if unproven.remove(c); errors.Is(err, net.ErrClosed) {
		err = errors.New("it has not proved that it knows the secret, and others came")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it has left before it proved that it knows the secret")
	}
	if err != nil {
		one.log("%s: refused: %v", from, err)
		return
	}
	if stopped {
		return
	}
	s := newServed(a, newConn(c, k.toAgent, k.toClient, a.Patience))
	s.earlier = &one.left
	one.log("%s: a run begins", from)
	one.finish(s, from, s.serve(ctx))
}

// finish frees what a run has left, and waits for that, at most for the patience.
func (s *serving) finish(run *served, from string, why error) {
	freed := make(chan []error, 1)
	go func() {
		left := run.disconnect()
		run.calls.Wait()
		freed <- append(left, run.free()...)
	}()
	select {
	case left := <-freed:
		s.log("%s: the run has ended: %v", from, why)
		for _, err := range left {
			s.log("%s: not freed: %v", from, err)
		}
	case <-time.After(run.conn.patience):
		held := run.holds()
		s.left.Add(held)
		go func() {
			<-freed
			s.left.Add(-held)
		}()
		s.log("%s: the run has ended: %v; after %v a provider has not returned from a call, so that "+
			"its devices stay open", from, why, run.conn.patience)
	}
}

// served is a session at the agent.
type served struct {
	agent *Agent
	conn  *conn
	done  chan struct{}
	calls sync.WaitGroup

	sending sync.Mutex // held while changes are collected and sent

	mu      sync.Mutex
	under   map[uint64]context.CancelFunc // unanswered requests
	heads   int                           // bytes of their heads
	room    chan struct{}                 // receives after a request is answered; has one place
	objects map[uint32]*thing             // open objects
	last    uint32                        // the last number that was given to an object

	mem   sync.Mutex      // locked after mu
	slots map[uint16]bool // of open devices: the upper halves of their blocks' numbers
	twins map[uint32]*twin

	refused twin // of blocks without memory; has the error of the last one

	counting sync.Mutex
	held     uint64         // bytes of twins, objects and recordings
	earlier  *atomic.Uint64 // bytes that earlier runs hold

	recordings map[uint16]func() ([]byte, error) // by port, under mu
}

// thing is an object of a session.
type thing struct {
	device uint32 // the device that it belongs to
	rank   int    // order in which objects are closed when the session ends
	object any
	cost   uint64 // bytes of it and its queues, included in served.held
	slot   uint16 // of a device: the upper half of its blocks' numbers

	sizing sync.Mutex // held while the size of its queue changes
}

func newServed(a *Agent, c *conn) *served {
	return &served{agent: a, conn: c, done: make(chan struct{}), room: make(chan struct{}, 1),
		under: make(map[uint64]context.CancelFunc), objects: make(map[uint32]*thing),
		slots: make(map[uint16]bool), twins: make(map[uint32]*twin), earlier: new(atomic.Uint64),
		recordings: make(map[uint16]func() ([]byte, error))}
}

// serve answers requests until the connection or ctx ends, and returns the reason.
func (s *served) serve(ctx context.Context) error {
	// Requests end with the connection, and not before the client knows that it ends.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	host := s.agent.Host
	host.Clock = time.Now()
	head, err := json.Marshal(host)
	if err != nil {
		return err
	}
	if err := s.conn.write(&message{kind: kindAnswer, head: head}); err != nil {
		return err
	}
	s.calls.Go(func() { s.conn.beat(s.done) })
	stop := context.AfterFunc(ctx, func() {
		s.conn.bye("it was stopped")
		_ = s.conn.nc.Close()
		cancel() // the reader may wait for room
	})
	why := s.listen(calls)
	if ctx.Err() != nil {
		why = errors.New("the agent was stopped")
	}
	stop()
	_ = s.conn.nc.Close()
	close(s.done)
	return why
}

func (s *served) listen(ctx context.Context) error {
	for {
		m, err := s.conn.read()
		if err != nil {
			return err
		}
		switch m.kind {
		case kindBeat:
			err = s.take(m.body)
		case kindBye:
			return errors.New("the client said so")
		case kindCancel:
			s.mu.Lock()
			if end := s.under[m.number]; end != nil {
				end()
			}
			s.mu.Unlock()
		case kindRequest:
			if err = s.take(m.body); err == nil {
				err = s.begin(ctx, &m)
			}
		default:
			err = fmt.Errorf("%w: kind %d from a client", errFrame, m.kind)
		}
		if err != nil {
			return err
		}
	}
}

// begin starts a request, once there is room for it.
func (s *served) begin(ctx context.Context, m *message) error {
	ctx, cancel := context.WithCancel(ctx)
	number, size := m.number, len(m.head)
	if err := s.admit(ctx, number, size, cancel); err != nil {
		cancel()
		return err
	}
	var r request
	if err := json.Unmarshal(m.head, &r); err != nil {
		s.answered(number, size)
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	s.calls.Go(func() {
		defer s.answered(number, size)
		slot := s.slotOf(r.On) // read first, because the verb may close the object
		res, err := s.perform(ctx, &r)
		if err := s.answer(number, &r, slot, res, err); err != nil {
			_ = s.conn.nc.Close()
		}
	})
	return nil
}

// admit counts a request as unanswered. If it does not fit beside the requests under way, admit
// waits until enough of them are answered, at most for the patience, because a program may make
// several large posts at once. A post waits for nothing that the client would have to send, so the
// agent may stop reading until then. The wait ends with ctx, and when a message cannot be sent,
// because the agent would not read that the client has left.
func (s *served) admit(ctx context.Context, number uint64, size int,
	cancel context.CancelFunc) error {
	var late <-chan time.Time
	for {
		fits, err := s.tryAdmit(number, size, cancel)
		if fits || err != nil {
			return err
		}
		if late == nil {
			late = time.After(s.conn.patience)
		}
		select {
		case <-s.room:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.conn.broken:
			return fmt.Errorf("a message to the client could not be sent: %w", s.conn.why)
		case <-late:
			return fmt.Errorf("a request had no room beside unanswered ones for %v", s.conn.patience)
		}
	}
}

// tryAdmit admits a request if it fits.
func (s *served) tryAdmit(number uint64, size int,
	cancel context.CancelFunc) (fits bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.under[number]; twice {
		return false, fmt.Errorf("%w: request %d comes twice", errFrame, number)
	}
	if len(s.under) >= maxUnderWay || s.heads+size > maxHeads {
		return false, nil
	}
	s.under[number] = cancel
	s.heads += size
	return true, nil
}

// answered makes room for other requests after the end of an admitted one.
func (s *served) answered(number uint64, size int) {
	s.mu.Lock()
	s.under[number]()
	delete(s.under, number)
	s.heads -= size
	s.mu.Unlock()
	select {
	case s.room <- struct{}{}:
	default: // the reader already has a reason to look again
	}
}

// perform runs a request. It turns a panic of a provider into an error of the call.
func (s *served) perform(ctx context.Context, r *request) (res any, err error) {
	defer func() {
		if p := recover(); p != nil {
			res, err = nil, fmt.Errorf("%s: the agent's provider panics: %v", r.Verb, p)
		}
	}()
	v, ok := verbs[r.Verb]
	if !ok {
		return nil, fmt.Errorf("the agent does not know the request %q", r.Verb)
	}
	return v.do(ctx, s, r)
}

// A charged result counts in served.held until it is sent.
type charged interface{ bytes() uint64 }

// rawResult is a result that is not changes of memory.
type rawResult []byte

func (r rawResult) bytes() uint64 { return uint64(len(r)) }

// answer sends the answer to a request. If programs read memory after this request, the answer
// includes what the slot's device has changed in its copies.
func (s *served) answer(number uint64, r *request, slot uint16, res any, failure error) error {
	if c, ok := res.(charged); ok {
		defer s.refund(c.bytes())
	}
	s.sending.Lock() // before anything is encoded, because other answers may have to wait for long
	defer s.sending.Unlock()
	a := answer{Err: encodeError(failure)}
	var body []byte
	if raw, ok := res.(rawResult); ok {
		a.Raw, body, res = true, raw, none{}
	}
	if res != nil {
		var err error
		if a.Result, err = json.Marshal(res); err != nil {
			a.Err = encodeError(fmt.Errorf("%s: the result can't be sent: %w", r.Verb, err))
		}
	}
	if p, ok := res.(polled); verbs[r.Verb].moves && !(ok && len(p.WCs) == 0) {
		from, _ := res.(position)
		body, a.Next = s.changes(slot, from)
	}
	head, err := json.Marshal(a)
	if err == nil && len(head) > maxHead { // errors quote the client's arguments
		a.Result, a.Err = nil, encodeError(fmt.Errorf("%.64s: the answer has %d bytes, and a message has "+
			"room for %d; pass shorter arguments: %w", r.Verb, len(head), maxHead, syscall.EMSGSIZE))
		head, err = json.Marshal(a)
	}
	if err != nil {
		return err
	}
	return s.conn.write(&message{kind: kindAnswer, number: number, head: head, body: body})
}

// slotOf returns the slot of an object's device.
func (s *served) slotOf(h uint32) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.objects[h]; t != nil {
		if d := s.objects[t.device]; d != nil {
			return d.slot
		}
	}
	return 0
}
