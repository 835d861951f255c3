package p9

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
)

// Transport carries messages of one connection. Receive is called by one goroutine at a time, the
// others concurrently.
type Transport interface {
	// Receive waits for the next message until ctx ends. io.EOF says that the client has left.
	Receive(ctx context.Context) (Message, error)
	// Send waits for a buffer of MaxMessage bytes, makes fill write a message there, and sends as
	// many bytes as fill returns, or nothing if that is negative. Messages whose Send begins later
	// arrive later. Send fails when ctx ends, or if the client does not take the message within a
	// time that the transport defines. io.EOF says that the client has left.
	Send(ctx context.Context, fill func(buf []byte) int) error
	// MaxMessage returns the length in bytes of the longest message, either way.
	MaxMessage() int
}

// Message is a received message.
type Message struct {
	Data    []byte       // valid until Release
	Release func() error // gives the memory back, so that the client may send one more; may be nil
}

func (m *Message) release() error {
	if m.Release == nil {
		return nil
	}
	return m.Release()
}

// Limits bound what one client makes the server hold. A field that is 0 means its default.
type Limits struct {
	Requests  int // served at a time; 16
	Fids      int // 262,144
	OpenFiles int // 1,024
	Entries   int // of directories that are being read; 1,048,576
}

// Server serves an FS. All its clients see each other's renames. NewServer makes one; Serve may be
// called concurrently.
type Server struct {
	fs     FS
	limits Limits
	tree   *tree
}

// NewServer makes a server of fs. Limits apply to each client by itself.
func NewServer(fs FS, limits Limits) *Server {
	for _, l := range []struct {
		value    *int
		standard int
	}{
		{&limits.Requests, 16}, {&limits.Fids, 1 << 18},
		{&limits.OpenFiles, 1024}, {&limits.Entries, 1 << 20},
	} {
		if *l.value <= 0 {
			*l.value = l.standard
		}
	}
	return &Server{fs, limits, newTree()}
}

// Serve serves one client until it leaves, breaks the protocol or ctx ends. It returns when no
// request is under way and all files are closed. It does not close t. The error is nil if the
// client left or ctx ended; EINVAL: the server, its FS or t is nil.
func (s *Server) Serve(ctx context.Context, t Transport) error {
	switch {
	case s == nil || s.tree == nil:
		return fmt.Errorf("nil or zero p9.Server, which p9.NewServer makes: %w", syscall.EINVAL)
	case s.fs == nil:
		return fmt.Errorf("p9.Server: the FS is nil: %w", syscall.EINVAL)
	case t == nil:
		return fmt.Errorf("p9.Server: the transport is nil: %w", syscall.EINVAL)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &session{
		Server: s, transport: t, cancel: cancel,
		fids: newFids(s.tree, &s.limits), places: make(chan struct{}, s.limits.Requests),
		requests: make(map[uint16]*request),
	}
	cancel(c.receive(ctx))
	c.underWay.Wait()
	c.fids.clear()
	err := context.Cause(ctx)
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// session is one client.
type session struct {
	*Server
	transport Transport
	cancel    context.CancelCauseFunc
	fids      *fids
	msize     int           // 0: no Tversion yet
	places    chan struct{} // a token for each request that is served
	underWay  sync.WaitGroup

	mu       sync.Mutex
	requests map[uint16]*request // by tag, until the reply is sent
}

// request is a request that the client waits for.
type request struct {
	replied bool          // the reply is being sent: the client may use the tag again
	done    chan struct{} // closed when the reply is sent
}

// receive serves requests until the client leaves, breaks the protocol or ctx ends.
func (c *session) receive(ctx context.Context) error {
	for {
		m, err := c.transport.Receive(ctx)
		if err != nil {
			return err
		}
		select {
		case c.places <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		begun, err := c.begin(ctx, m)
		if !begun {
			<-c.places
		}
		if err != nil {
			return err
		}
	}
}

// begin serves a request in a new goroutine, which releases the message and frees the place, and
// returns true. It serves a Tversion itself.
func (c *session) begin(ctx context.Context, m Message) (bool, error) {
	kind, tag, err := Header(m.Data)
	if err != nil {
		return false, err
	}
	if kind%2 != 0 || kind > KindRemove {
		return false, fmt.Errorf("type %d is no request: %w", kind, errNotMessage)
	}
	if (kind == KindVersion) != (tag == NoTag) {
		return false, fmt.Errorf("type %d with tag %#x: %w", kind, tag, errNotMessage)
	}
	switch {
	case kind == KindVersion:
		c.underWay.Wait() // it ends the former session, and nothing else runs beside it
		c.fids.clear()
		c.msize = 0
	case c.msize == 0:
		return false, fmt.Errorf("type %d before Tversion: %w", kind, errNotMessage)
	case len(m.Data) > c.msize:
		return false, fmt.Errorf("a message of %d bytes, agreed were %d: %w", len(m.Data), c.msize, errNotMessage)
	}
	body := NewRequest(kind)
	if body != nil {
		if err := Decode(m.Data, body); err != nil {
			return false, err
		}
	}
	if v, ok := body.(*Tversion); ok {
		return false, c.version(ctx, m, v)
	}
	flush, _ := body.(*Tflush)
	c.mu.Lock()
	var flushed *request
	if flush != nil {
		flushed = c.requests[flush.OldTag]
	}
	if r := c.requests[tag]; r != nil && !r.replied {
		c.mu.Unlock()
		return false, fmt.Errorf("tag %#x is of a request that has no reply yet: %w", tag, errNotMessage)
	}
	r := &request{done: make(chan struct{})}
	c.requests[tag] = r
	c.mu.Unlock()
	c.underWay.Go(func() {
		defer func() { <-c.places }()
		if flushed != nil {
			<-flushed.done
		}
		if err := c.answer(ctx, tag, r, m, kind, body); err != nil {
			c.cancel(err)
		}
	})
	return true, nil
}

// version answers a Tversion. No other request is under way.
func (c *session) version(ctx context.Context, m Message, v *Tversion) error {
	if v.Msize < minMsize {
		return fmt.Errorf("msize %d, at least %d is needed: %w", v.Msize, minMsize, errNotMessage)
	}
	reply := Rversion{Msize: min(v.Msize, uint32(c.transport.MaxMessage())), Version: Version}
	c.msize = int(reply.Msize)
	if v.Version != Version {
		reply.Version, c.msize = "unknown", 0
	}
	if err := m.release(); err != nil {
		return err
	}
	return c.transport.Send(ctx, func(buf []byte) int {
		n, _ := Encode(buf, KindVersion+1, NoTag, &reply)
		return n
	})
}

// answer serves a request and sends the reply.
func (c *session) answer(ctx context.Context, tag uint16, r *request, m Message, kind uint8, body any) error {
	var failed error
	err := c.transport.Send(ctx, func(buf []byte) int {
		buf = buf[:c.msize]
		reply, err := c.serve(buf, kind, body)
		n := 0
		if err == nil {
			n, err = Encode(buf, kind+1, tag, reply)
		}
		if err != nil {
			n, _ = Encode(buf, KindError, tag, &Rlerror{uint32(errno(err))})
		}
		// Release the message first, because the reply allows the client to send again.
		if failed = m.release(); failed != nil {
			return -1
		}
		c.mu.Lock()
		r.replied = true
		c.mu.Unlock()
		return n
	})
	c.mu.Lock()
	if c.requests[tag] == r {
		delete(c.requests, tag)
	}
	c.mu.Unlock()
	close(r.done)
	return errors.Join(failed, err)
}
