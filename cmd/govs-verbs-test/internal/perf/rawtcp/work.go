package rawtcp

import (
	"cmp"
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

// A stream is a data connection. A spinning one may transfer fewer bytes, or none, without an
// error.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error
	deadliner
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
			err = fmt.Errorf("a %T can't poll for data; use --poll block", c)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		all = append(all, x)
		defer until(ctx, x)()
	}
	return do(all)
}

// spinning is a socket outside of Go's netpoller.
type spinning int

// newSpinning takes the socket of c, and closes c.
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

func (s spinning) CloseWrite() error { return unix.Shutdown(int(s), unix.SHUT_WR) }
func (s spinning) Close() error      { return unix.Close(int(s)) }

// SetDeadline ends the connection; until calls it.
func (s spinning) SetDeadline(time.Time) error { return unix.Shutdown(int(s), unix.SHUT_RDWR) }

func (s spinning) Read(b []byte) (int, error) {
	n, e := s.call(unix.SYS_READ, b)
	switch {
	case e == unix.EAGAIN || e == unix.EINTR:
		return 0, nil
	case e != 0:
		return 0, e
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write writes as many bytes as the socket accepts, perhaps none.
func (s spinning) Write(b []byte) (int, error) {
	n, e := s.call(unix.SYS_WRITE, b)
	switch e {
	case 0:
		return n, nil
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	}
	return 0, e
}

// call makes a system call without notifying the scheduler: the call does not wait, and notifying
// costs as much as a small write.
func (s spinning) call(number uintptr, b []byte) (int, syscall.Errno) {
	at := unsafe.Pointer(unsafe.SliceData(b))
	n, _, e := syscall.RawSyscall(number, uintptr(s), uintptr(at), uintptr(len(b)))
	return int(n), e
}

// lead does the client's part of a run. The server answers when it has all connections, on each of
// them when it has received the warm-up, and at the end. Without the answers on each connection, 64
// connections had 0.75 of the bandwidth.
func lead(all []stream, s load.Spec, answers reader) (r load.Result, err error) {
	message, hist := make([]byte, s.Size), new(load.Histogram)
	part := func(n uint64, limit time.Duration) (uint64, error) {
		return each(s, all, func(some []stream) (uint64, error) {
			return send(some, message, n, limit, s.Op == Lat, hist)
		})
	}
	var a answer
	if err := answers.Decode(&a); err != nil {
		return r, err
	}
	if _, err := part(uint64(max(s.Warmup, 0)), 0); err != nil {
		return r, fmt.Errorf("warming up: %w", err)
	}
	for _, x := range all {
		if _, err := io.ReadFull(x, message[:1]); err != nil {
			return r, err
		}
	}
	hist.Reset()
	m := load.StartMeter()
	if r.Ops, err = part(uint64(s.Iters), s.Duration); err != nil {
		return r, err
	}
	for _, x := range all {
		if err := x.CloseWrite(); err != nil {
			return r, err
		}
	}
	if err := answers.Decode(&a); err != nil {
		return r, err
	}
	r.Elapsed, r.Client = m.Stop(r.Ops)
	r.Lat, r.Octets, r.Server = hist.Latency(), r.Ops*uint64(s.Size), a.Usage
	r.Server.AllocsPerOp /= float64(max(r.Ops, 1))
	if a.Bytes != r.Octets {
		err = fmt.Errorf("%d bytes were sent, and %d came", r.Octets, a.Bytes)
	}
	return r, err
}

// headStart is how long the server does not read, at the beginning of the warm-up. Linux makes a
// receive buffer longer only if data waits in it (tcp_rcv_space_adjust). If the reader is always
// faster, the buffer stays short for 100 ms or more, during which a blocking end had 0.6 of the
// bandwidth.
const headStart = 2 * time.Millisecond

// follow does the server's part of a run.
func follow(all []stream, s load.Spec, answers *json.Encoder) error {
	part := func(most uint64) (uint64, error) {
		return each(s, all, func(some []stream) (uint64, error) {
			return receive(some, s.Size, most, s.Op == Lat)
		})
	}
	if err := answers.Encode(answer{}); err != nil {
		return err
	}
	time.Sleep(headStart)
	if _, err := part(uint64(max(s.Warmup, 0)) * uint64(s.Size)); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	for _, x := range all {
		if n, err := x.Write([]byte{0}); n == 0 {
			return cmp.Or(err, io.ErrShortWrite)
		}
	}
	m := load.StartMeter()
	n, err := part(math.MaxUint64)
	if err != nil {
		return err
	}
	_, usage := m.Stop(1)
	return answers.Encode(answer{Bytes: n, Usage: usage})
}

// each calls do once for all streams if calls do not wait, otherwise for each stream on its own
// goroutine. It returns the sum.
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
// with one call if the socket accepts it. With back it waits for each message to be sent back. It
// returns the number of messages.
func send(streams []stream, message []byte, n uint64, limit time.Duration, back bool,
	hist *load.Histogram,
) (all uint64, err error) {
	began, look := time.Now(), uint64(load.LookEvery(len(message)))
	var last time.Duration
	var buf []byte // allocated only if used, because a garbage collection would stop the loop
	if back {
		buf = make([]byte, len(message))
	}
	if limit > 0 {
		n = math.MaxUint64
	}
	sent, rest := make([]uint64, len(streams)), make([][]byte, len(streams))
	for left, next := len(streams), look; left > 0; {
		left = 0
		for i, s := range streams {
			if len(rest[i]) == 0 {
				if sent[i] >= n {
					continue
				}
				rest[i] = message
			}
			left++
			k, err := s.Write(rest[i])
			if err != nil {
				return all, err
			}
			if rest[i] = rest[i][k:]; len(rest[i]) > 0 {
				continue
			}
			sent[i]++
			if all++; back {
				if _, err := io.ReadFull(s, buf); err != nil {
					return all, err
				}
				now := time.Since(began)
				hist.Add(now - last)
				last = now
			} else if all == next {
				last, next = time.Since(began), all+look
			}
			if limit > 0 && last >= limit {
				n = 1 // the current message is the last
			}
		}
	}
	return all, nil
}

// receive reads from each stream until its end, or up to most bytes, and with back sends messages
// back. It returns the number of bytes received.
func receive(streams []stream, size int, most uint64, back bool) (all uint64, err error) {
	room := 256 << 10
	if back {
		room = size
	}
	buf := make([]byte, room)
	rest := make([]uint64, len(streams))
	for i := range rest {
		rest[i] = most
	}
	for left := len(streams); left > 0; {
		left = 0
		for i, s := range streams {
			if rest[i] == 0 {
				continue
			}
			left++
			n, err := s.Read(buf[:min(uint64(len(buf)), rest[i])])
			if back && n > 0 && err == nil {
				var more int
				more, err = io.ReadFull(s, buf[n:])
				n += more
				for rest := buf; err == nil && len(rest) > 0; {
					var k int
					k, err = s.Write(rest)
					rest = rest[k:]
				}
			}
			all += uint64(n)
			switch {
			case errors.Is(err, io.EOF) && most == math.MaxUint64:
				rest[i] = 0
			case err != nil:
				return all, err
			default:
				rest[i] -= uint64(n)
			}
		}
	}
	return all, nil
}
