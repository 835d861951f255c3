package rawtcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// readSize is the receiver's buffer.
const readSize = 256 << 10

// text is the content of all messages: octets with a long period.
func text(size int) []byte {
	b := make([]byte, size)
	x := uint32(size)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// spins counts turns in which nothing moved, and asks now and then whether to go
// on.
type spins int

func (n *spins) idle(ctx context.Context) error {
	if *n++; *n%(1<<14) == 0 {
		return ctx.Err()
	}
	return nil
}

// outgoing is a stream that is written to.
type outgoing struct {
	stream
	rest []byte // of the message under way
	sent uint64 // messages
	over bool
}

// send writes n messages to each stream, or as many as fit into the time and at least one, each
// with one call if the socket takes it. When the last one is written the stream's
// sending half is closed if closing says so. It returns how many there were when
// the receiver has answered.
func send(ctx context.Context, streams []stream, message []byte, n uint64, limit time.Duration, closing bool, peak *load.Peak) (uint64, error) {
	if limit > 0 {
		n = math.MaxUint64
	}
	out := make([]outgoing, len(streams))
	for i, s := range streams {
		out[i] = outgoing{stream: s, rest: message}
	}
	began := time.Now()
	look := load.LookEvery(len(message))
	var idle spins
	var unlooked int
	var all uint64
	for over := 0; over < len(out); {
		moved := false
		for i := range out {
			o := &out[i]
			if o.over {
				continue
			}
			if o.sent >= max(n, 1) && len(o.rest) == len(message) {
				o.over, over = true, over+1
				if closing {
					if err := o.closeWrite(); err != nil {
						return all, err
					}
				}
				continue
			}
			k, err := o.write(o.rest)
			if err != nil {
				return all, err
			}
			moved = moved || k > 0
			if o.rest = o.rest[k:]; len(o.rest) > 0 {
				continue
			}
			o.rest = message
			o.sent++
			all++
			if unlooked++; unlooked == look {
				now := time.Since(began)
				peak.Add(now, unlooked*len(message))
				unlooked = 0
				if limit > 0 && now >= limit {
					n = 0 // what is under way is the last
				}
			}
		}
		if !moved {
			if err := idle.idle(ctx); err != nil {
				return all, err
			}
		}
	}
	return all, answers(ctx, streams)
}

// answers waits for the receiver's octet on each stream.
func answers(ctx context.Context, streams []stream) error {
	var idle spins
	var b [1]byte
	for _, s := range streams {
		for {
			n, err := s.read(b[:])
			if err != nil {
				return fmt.Errorf("waiting for the receiver's answer: %w", err)
			}
			if n > 0 {
				break
			}
			if err := idle.idle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// incoming is a stream that is read from.
type incoming struct {
	stream
	got  uint64 // octets
	over bool
}

// receive reads octets octets from each stream, or until its end if that is 0,
// and answers each with an octet. Where the number is known what was read last
// has to be what is sent.
func receive(ctx context.Context, streams []stream, message []byte, octets uint64) error {
	in := make([]incoming, len(streams))
	for i, s := range streams {
		in[i].stream = s
	}
	buf := make([]byte, readSize)
	var idle spins
	for over := 0; over < len(in); {
		moved := false
		for i := range in {
			s := &in[i]
			if s.over {
				continue
			}
			part := buf
			if octets > 0 {
				part = buf[:min(uint64(len(buf)), octets-s.got)]
			}
			k, err := s.read(part)
			s.got += uint64(k)
			moved = moved || k > 0
			ended := octets == 0 && errors.Is(err, io.EOF)
			switch {
			case ended || octets > 0 && s.got == octets:
				s.over, over = true, over+1
				if err := answer(s, message, buf[:k]); err != nil {
					return err
				}
			case err != nil:
				return err
			}
		}
		if !moved {
			if err := idle.idle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer reports that all octets have arrived. last has the octets read last, none at the
// end of a stream.
func answer(s *incoming, message, last []byte) error {
	if s.got == 0 || s.got%uint64(len(message)) != 0 {
		return fmt.Errorf("%d octets came, in messages of %d", s.got, len(message))
	}
	at := (s.got - uint64(len(last))) % uint64(len(message))
	for len(last) > 0 {
		n := min(len(last), len(message)-int(at))
		if !bytes.Equal(last[:n], message[at:][:n]) {
			return errors.New("what came is not what was sent")
		}
		last, at = last[n:], 0
	}
	for {
		if n, err := s.write([]byte{1}); n > 0 || err != nil {
			return err
		}
	}
}

// exchange does n round trips, or as many as fit into the time.
func exchange(ctx context.Context, s stream, message []byte, n uint64, limit time.Duration, hist *load.Histogram) (uint64, error) {
	buf := make([]byte, len(message))
	began := time.Now()
	var last time.Duration
	for i := uint64(0); limit > 0 || i < n; i++ {
		if err := all(ctx, s.write, message); err != nil {
			return i, err
		}
		if err := all(ctx, s.read, buf); err != nil {
			return i, err
		}
		now := time.Since(began)
		hist.Add(now - last)
		last = now
		if limit > 0 && now >= limit {
			n = i + 1
			break
		}
	}
	if n > 0 && !bytes.Equal(buf, message) {
		return n, errors.New("what came back is not what was sent")
	}
	return n, nil
}

// echo sends back what it receives, until the end.
func echo(ctx context.Context, s stream, size int) error {
	buf := make([]byte, size)
	for {
		err := all(ctx, s.read, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := all(ctx, s.write, buf); err != nil {
			return err
		}
	}
}

// all calls f until it has done all of b.
func all(ctx context.Context, f func([]byte) (int, error), b []byte) error {
	var idle spins
	for len(b) > 0 {
		n, err := f(b)
		if err != nil {
			return err
		}
		if b = b[n:]; n == 0 {
			if err := idle.idle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
