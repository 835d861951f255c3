package p9

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// stream carries messages over a byte stream, one after the other.
type stream struct {
	conn    net.Conn
	max     int
	timeout time.Duration
	free    chan []byte   // buffers for replies
	writing chan struct{} // a token while nobody writes
	broken  error         // why a write failed; the holder of the token of writing uses it
}

// NewStream returns a Transport over a TCP connection or the like, or nil if conn is nil. Messages
// have up to max bytes, or 4096 if that is more. Up to replies replies, at least one, are made and
// sent at a time. timeout limits how long the rest of a message may take to come or go, once it has
// begun; 0 means no limit. The connection remains the caller's to close.
func NewStream(conn net.Conn, max, replies int, timeout time.Duration) Transport {
	if conn == nil {
		return nil
	}
	if replies < 1 {
		replies = 1
	}
	if max < minMsize {
		max = minMsize
	}
	s := &stream{conn: conn, max: max, timeout: timeout, free: make(chan []byte, replies),
		writing: make(chan struct{}, 1)}
	for range replies {
		s.free <- nil
	}
	s.writing <- struct{}{}
	return s
}

func (s *stream) MaxMessage() int { return s.max }

func (s *stream) deadline() (t time.Time) {
	if s.timeout > 0 {
		t = time.Now().Add(s.timeout)
	}
	return t
}

func (s *stream) Receive(ctx context.Context) (Message, error) {
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return Message{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })()
	var head [4]byte
	n, err := s.conn.Read(head[:])
	if err == nil {
		// A client that stops in the middle of a message must not keep its memory forever. If ctx
		// ends here, this deadline may replace ctx's, and Receive then lasts until the deadline.
		if err = s.conn.SetReadDeadline(s.deadline()); err == nil && ctx.Err() == nil {
			_, err = io.ReadFull(s.conn, head[n:])
		}
	}
	if err := errors.Join(left(err), ctx.Err()); err != nil {
		return Message{}, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size < headSize || uint64(size) > uint64(s.max) {
		return Message{}, fmt.Errorf("a message of %d bytes, there may be %d to %d: %w",
			size, headSize, s.max, errNotMessage)
	}
	data := make([]byte, size)
	copy(data, head[:])
	if _, err := io.ReadFull(s.conn, data[len(head):]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Message{}, errors.Join(err, ctx.Err())
	}
	return Message{data, func() error { return nil }}, nil
}

func (s *stream) Send(ctx context.Context, fill func(buf []byte) int) error {
	var buf []byte
	select {
	case buf = <-s.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	if buf == nil {
		buf = make([]byte, s.max)
	}
	defer func() { s.free <- buf }()
	n := fill(buf)
	if n < 0 {
		return nil
	}
	select {
	case <-s.writing:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.writing <- struct{}{} }()
	if s.broken != nil {
		// The client has only the beginning of a message, and would take this one for its rest.
		return s.broken
	}
	s.broken = s.write(ctx, buf[:n])
	return s.broken
}

func (s *stream) write(ctx context.Context, b []byte) error {
	if err := s.conn.SetWriteDeadline(s.deadline()); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetWriteDeadline(time.Unix(1, 0)) })()
	_, err := s.conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return left(err)
}

// left returns io.EOF for an error that says that the client has closed the connection.
func left(err error) error {
	for _, closed := range []error{io.ErrClosedPipe, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, closed) {
			return io.EOF
		}
	}
	return err
}
