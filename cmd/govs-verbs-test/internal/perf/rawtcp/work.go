package rawtcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// A stream is a connection for data. One that spins may move nothing without an error.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// withStreams makes the connections of a run, and closes them after do.
func withStreams(ctx context.Context, s load.Spec, connect func() (net.Conn, error),
	do func([]stream) error,
) (err error) {
	all := make([]stream, 0, s.QPs)
	defer func() {
		for _, x := range all {
			err = errors.Join(err, x.Close())
		}
	}()
	for range s.QPs {
		c, err := connect()
		if err != nil {
			return err
		}
		x, ok := c.(stream)
		if tcp, is := c.(*net.TCPConn); s.Poll == load.Spin && is {
			x, err = newSpinning(tcp)
		} else if s.Poll == load.Spin || !ok {
			err = fmt.Errorf("%T can't do this", c)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		all = append(all, x)
		defer until(ctx, c)()
	}
	return do(all)
}

// spinning is a socket that Go's netpoller does not know.
type spinning int

// newSpinning takes the socket of c, which is closed.
func newSpinning(c *net.TCPConn) (s spinning, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return s, err
	}
	var fd int
	outer := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(outer, err); err != nil {
		return s, err
	}
	return spinning(fd), c.Close()
}

func (s spinning) Read(b []byte) (int, error)  { return s.call(unix.SYS_READ, b, io.EOF) }
func (s spinning) Write(b []byte) (int, error) { return s.call(unix.SYS_WRITE, b, nil) }
func (s spinning) CloseWrite() error           { return unix.Shutdown(int(s), unix.SHUT_WR) }
func (s spinning) Close() error                { return unix.Close(int(s)) }

// call does not notify the scheduler: it does not wait, and notifying costs as much as a small
// write.
func (s spinning) call(number uintptr, b []byte, none error) (int, error) {
	at := unsafe.Pointer(unsafe.SliceData(b))
	n, _, e := syscall.RawSyscall(number, uintptr(s), uintptr(at), uintptr(len(b)))
	switch {
	case e == unix.EAGAIN || e == unix.EINTR:
		return 0, nil
	case e != 0:
		return 0, e
	case n == 0:
		return 0, none
	}
	return int(n), nil
}

// text is the content of all messages: bytes with a long period.
func text(size int) []byte {
	b := make([]byte, size)
	x := uint32(size)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// spins counts turns in which nothing moved, and asks now and then whether to go on.
type spins int

func (n *spins) idle(ctx context.Context) error {
	if *n++; *n%(1<<14) == 0 {
		return ctx.Err()
	}
	return nil
}

// lead does the client's part of a run. The server answers when it has the warm-up, and at the end.
func lead(ctx context.Context, all []stream, s load.Spec, answers *json.Decoder) (r load.Result, err error) {
	message, warmup := text(s.Size), uint64(max(s.Warmup, 0))
	hist, peak := new(load.Histogram), new(load.Peak)
	part := func(n uint64, limit time.Duration) (uint64, error) {
		if s.Op == Lat {
			return exchange(ctx, all[0], message, n, limit, hist)
		}
		return each(s, all, func(some []stream) (uint64, error) {
			own := peak
			if len(some) < len(all) { // their peaks don't come at the same time: there is none of all
				own = new(load.Peak)
			}
			return send(ctx, some, message, n, limit, own)
		})
	}
	var got answer
	if _, err := part(warmup, 0); err != nil {
		return r, fmt.Errorf("warming up: %w", err)
	}
	if err := answers.Decode(&got); err != nil {
		return r, err
	}
	hist.Reset()
	*peak = load.Peak{}
	m := load.StartMeter()
	if r.Ops, err = part(uint64(s.Iters), s.Duration); err != nil {
		return r, err
	}
	if s.Op == Lat {
		r.Elapsed, r.Client = m.Stop(r.Ops)
	}
	for _, x := range all {
		if err := x.CloseWrite(); err != nil {
			return r, err
		}
	}
	if err := answers.Decode(&got); err != nil {
		return r, err
	}
	if s.Op == BW {
		r.Elapsed, r.Client = m.Stop(r.Ops)
		r.Peak = peak.Best()
	}
	r.Lat, r.Octets, r.Server = hist.Latency(), r.Ops*uint64(s.Size), got.Usage
	r.Server.AllocsPerOp /= float64(max(r.Ops, 1))
	if got.Bytes != r.Octets {
		err = fmt.Errorf("%d bytes were sent, and %d came", r.Octets, got.Bytes)
	}
	return r, err
}

// answer is what the server says at the end of a part.
type answer struct {
	Bytes uint64 // received
	Usage load.Usage
}

// follow does the server's part of a run.
func follow(ctx context.Context, all []stream, s load.Spec, answers *json.Encoder) error {
	message := text(s.Size)
	part := func(most uint64) (uint64, error) {
		if s.Op == Lat {
			return echo(ctx, all[0], message, most)
		}
		return each(s, all, func(some []stream) (uint64, error) {
			return receive(ctx, some, message, most)
		})
	}
	if _, err := part(uint64(max(s.Warmup, 0)) * uint64(s.Size)); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	m := load.StartMeter()
	if err := answers.Encode(answer{}); err != nil {
		return err
	}
	n, err := part(math.MaxUint64)
	if err != nil {
		return err
	}
	_, usage := m.Stop(1)
	return answers.Encode(answer{n, usage})
}

// each calls do for all streams where calls don't wait, otherwise for each on a goroutine of its
// own. It returns the sum.
func each(s load.Spec, all []stream, do func([]stream) (uint64, error)) (sum uint64, err error) {
	if s.Poll == load.Spin || len(all) == 1 {
		return do(all)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range all {
		wg.Go(func() {
			n, e := do(all[i : i+1])
			mu.Lock()
			sum, err = sum+n, errors.Join(err, e)
			mu.Unlock()
		})
	}
	wg.Wait()
	return sum, err
}

// send writes n messages to each stream, or as many as fit into the time and at least one, each
// with one call if the socket takes it. It returns how many there were.
func send(ctx context.Context, streams []stream, message []byte, n uint64, limit time.Duration,
	peak *load.Peak,
) (all uint64, err error) {
	if limit > 0 {
		n = math.MaxUint64
	}
	began, look := time.Now(), load.LookEvery(len(message))
	sent, rest := make([]uint64, len(streams)), make([][]byte, len(streams))
	var idle spins
	unlooked := 0
	for over := false; !over; {
		moved := false
		over = true
		for i, s := range streams {
			if len(rest[i]) == 0 {
				if sent[i] >= n && (limit == 0 || sent[i] > 0) {
					continue
				}
				rest[i] = message
			}
			over = false
			k, err := s.Write(rest[i])
			if err != nil {
				return all, err
			}
			moved = moved || k > 0
			if rest[i] = rest[i][k:]; len(rest[i]) > 0 {
				continue
			}
			sent[i]++
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
	return all, nil
}

// receive reads from each stream until its end, or as many bytes of messages, of which the last
// have to be what is sent. It returns how many came.
func receive(ctx context.Context, streams []stream, message []byte, most uint64) (all uint64, err error) {
	const readSize = 256 << 10
	buf := make([]byte, readSize)
	got, over := make([]uint64, len(streams)), make([]bool, len(streams))
	var idle spins
	for left := len(streams); left > 0; {
		moved := false
		for i, s := range streams {
			if over[i] {
				continue
			}
			if got[i] == most {
				over[i], left = true, left-1
				continue
			}
			k, err := s.Read(buf[:min(readSize, most-got[i])])
			switch at := int(got[i] % uint64(len(message))); {
			case errors.Is(err, io.EOF) && most == math.MaxUint64:
				over[i], left = true, left-1
			case err != nil:
				return all, err
			case got[i]+uint64(k) == most && !same(buf[:k], message, at):
				return all, errors.New("what came is not what was sent")
			}
			got[i] += uint64(k)
			all += uint64(k)
			moved = moved || k > 0
		}
		if !moved {
			if err := idle.idle(ctx); err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// same reports whether b is what messages have from an offset on.
func same(b, message []byte, at int) bool {
	for len(b) > 0 {
		n := min(len(b), len(message)-at)
		if !bytes.Equal(b[:n], message[at:][:n]) {
			return false
		}
		b, at = b[n:], 0
	}
	return true
}

// exchange does n round trips, or as many as fit into the time, and returns how many.
func exchange(ctx context.Context, s stream, message []byte, n uint64, limit time.Duration,
	hist *load.Histogram,
) (uint64, error) {
	buf := make([]byte, len(message))
	began := time.Now()
	var last time.Duration
	for i := uint64(0); limit > 0 || i < n; i++ {
		if _, err := whole(ctx, s.Write, message); err != nil {
			return i, err
		}
		if _, err := whole(ctx, s.Read, buf); err != nil {
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

// echo sends back what it receives, until the end or as many bytes. It returns how many came.
func echo(ctx context.Context, s stream, message []byte, most uint64) (all uint64, err error) {
	buf := make([]byte, len(message))
	for all < most {
		n, err := whole(ctx, s.Read, buf)
		if all += uint64(n); n == 0 && errors.Is(err, io.EOF) && most == math.MaxUint64 {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if _, err := whole(ctx, s.Write, buf); err != nil {
			return all, err
		}
	}
	return all, nil
}

// whole calls f until it has done all of b.
func whole(ctx context.Context, f func([]byte) (int, error), b []byte) (done int, err error) {
	var idle spins
	for done < len(b) {
		n, err := f(b[done:])
		if done += n; err != nil {
			return done, err
		}
		if n == 0 {
			if err := idle.idle(ctx); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}
