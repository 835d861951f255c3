package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// server has the table. mu serializes writes that the server makes for clients; clients that
// write by themselves do not take it.
type server struct {
	pd      *ibverbs.PD
	slots   *ibverbs.MR
	atomics bool

	mu     sync.Mutex
	table  table
	owners map[uint16]bool // of the connections
}

// serverOwner is the number that marks what the server writes.
const serverOwner = math.MaxUint16

// serve offers a table of n slots at address until ctx ends.
func serve(ctx context.Context, provider, address string, n int, atomics bool) (err error) {
	vctx, err := open(ctx, provider, address, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	has, err := hasAtomics(vctx)
	if err != nil {
		return err
	}
	s := &server{atomics: has && atomics, owners: map[uint16]bool{0: true, serverOwner: true}}
	s.table = table{memory: s, slots: n, owner: serverOwner}
	if s.pd, err = vctx.AllocPD(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.pd.Close()) }()
	access := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead
	if s.atomics {
		access |= ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteAtomic
	}
	if s.slots, err = s.pd.AllocMR(n*slotSize, access); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.slots.Close()) }()

	l, err := rdmacm.ListenName(ctx, vctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Println("listening on", l.Addr())
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "kv:", err) // of one request; the listener goes on
			continue
		}
		clients.Go(func() {
			if err := s.attend(ctx, req); err != nil {
				fmt.Fprintf(os.Stderr, "kv: %s: %v\n", req.RemoteAddr(), err)
			}
		})
	}
}

// attend accepts a client and does what it asks for, until it leaves or ctx ends.
func (s *server) attend(ctx context.Context, req *rdmacm.Request) error {
	owner, err := s.enter()
	if err != nil {
		return errors.Join(err, req.Reject([]byte(err.Error())))
	}
	// This runs last, when the client can't write any more.
	defer s.leave(owner)
	whole, err := s.slots.Remote(0, int(s.slots.Len()))
	if err != nil {
		return errors.Join(err, req.Close())
	}
	theirs := req.PrivateData()
	private, err := hello{whole, owner, s.atomics && len(theirs) > 0 && theirs[0] == 1}.marshal()
	if err != nil {
		return errors.Join(err, req.Close())
	}
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
		PD: s.pd, PrivateData: private, Receives: 1, ReceiveSize: maxRequest,
	})
	if err != nil {
		return err
	}
	return errors.Join(s.answer(ctx, conn), conn.Close())
}

// answer answers the client's requests until the client leaves or ctx ends. Clients that use atomic
// operations send none.
func (s *server) answer(ctx context.Context, conn *rdmacm.Conn) error {
	for {
		err := s.one(ctx, conn)
		var terminate *ibverbs.TerminateError
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil // the server is to stop
		case errors.As(err, &terminate):
			return err
		case errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, syscall.ENOTCONN):
			return nil // the client has left
		default:
			return err
		}
	}
}

// one receives a request and answers it.
func (s *server) one(ctx context.Context, conn *rdmacm.Conn) error {
	m, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	var r request
	if err = r.unmarshal(m.Data); err == nil {
		s.mu.Lock()
		err = s.table.put(ctx, r.key, r.value)
		s.mu.Unlock()
	}
	var text string
	if err != nil {
		text = err.Error()
	}
	// The client may send its next request as soon as it has the answer.
	if err := m.Release(); err != nil {
		return err
	}
	return conn.SendBytes(ctx, []byte(text[:min(len(text), maxRequest)]))
}

// enter returns an owner that no other connection has.
func (s *server) enter() (uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner := range uint16(serverOwner) {
		if !s.owners[owner] {
			s.owners[owner] = true
			return owner, nil
		}
	}
	return 0, errors.New("too many clients")
}

// leave frees the slots that a client has left locked, and its owner.
func (s *server) leave(owner uint16) {
	for i := range s.table.slots {
		word, err := s.slots.Load(i * slotSize)
		if err == nil && uint16(word) == owner {
			_, err = s.slots.CompareAndSwap(i*slotSize, word, word&^math.MaxUint16)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "kv: slot %d: %v\n", i, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owners, owner)
}

// read implements memory.
func (s *server) read(_ context.Context, i int) ([]byte, error) {
	return append([]byte(nil), s.slots.Bytes()[i*slotSize:][:slotSize]...), nil
}

// swap implements memory.
func (s *server) swap(_ context.Context, i int, old, new uint64) (bool, error) {
	was, err := s.slots.CompareAndSwap(i*slotSize, old, new)
	return was == old, err
}

// publish implements memory.
func (s *server) publish(_ context.Context, i, body int, content []byte, old, new uint64) error {
	copy(s.slots.Bytes()[i*slotSize+wordSize+body*bodySize:], content)
	_, err := s.slots.CompareAndSwap(i*slotSize, old, new)
	return err
}
