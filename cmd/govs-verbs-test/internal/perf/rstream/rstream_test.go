package rstream

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs a test at two ends of a pipe, and returns their errors.
func both(t *testing.T, dialled, accepted *End, tests ...Test) (d, a error) {
	t.Helper()
	c, s := net.Pipe()
	accepted.Accepted = true
	done := make(chan error, 1)
	run := func(e *End, c net.Conn) (err error) {
		defer c.Close()
		for _, tc := range tests {
			r, err := e.Run(t.Context(), c, tc)
			if err != nil {
				return err
			}
			each := uint64(tc.Transfers * tc.Iterations)
			ops := 2 * each
			if tc.Latency() {
				ops = each
			}
			if r.Ops != ops || r.Octets != 2*each*uint64(tc.Size) || r.Elapsed <= 0 ||
				(r.Lat != nil) != tc.Latency() {
				t.Errorf("%+v: %+v", tc, r)
			}
		}
		return nil
	}
	go func() { done <- run(accepted, s) }()
	d = run(dialled, c)
	return d, <-done
}

// TestBothEnds runs tests one after the other, over two connections: the pattern goes on.
func TestBothEnds(t *testing.T) {
	d, a := &End{Verify: true}, &End{Verify: true}
	for range 2 {
		dErr, aErr := both(t, d, a, Test{1, 1, 1}, Test{1000, 7, 3}, Test{65537, 2, 2},
			Test{3, 1, 50}, Test{1, 300, 1})
		if dErr != nil || aErr != nil {
			t.Errorf("the one that dialled: %v, the other: %v", dErr, aErr)
		}
	}
}

// scripted is the other end's bytes, and takes what is sent to it.
type scripted struct {
	in   io.Reader
	sent []byte
}

func (s *scripted) Read(b []byte) (int, error) { return s.in.Read(b) }

func (s *scripted) Write(b []byte) (int, error) {
	s.sent = append(s.sent, b...)
	return len(b), nil
}

func (*scripted) SetDeadline(time.Time) error { return nil }

// counting are n bytes that count up.
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// TestPattern: the bytes count up from 0 and go on after 255, in sync messages, too.
func TestPattern(t *testing.T) {
	in := counting(2*16 + 300 + 40)
	s := &scripted{in: strings.NewReader(string(in))}
	e := &End{Verify: true}
	for _, tc := range []Test{{100, 3, 1}, {40, 1, 1}} {
		if _, err := e.Run(t.Context(), s, tc); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(s.sent, in) {
		t.Errorf("sent %x", s.sent)
	}
	in[200]++
	s = &scripted{in: strings.NewReader(string(in))}
	_, err := (&End{Verify: true}).Run(t.Context(), s, Test{100, 3, 1})
	if err == nil || !strings.Contains(err.Error(), "a byte is 0xc9, and not 0xc8") {
		t.Errorf("a byte that is wrong: %v", err)
	}
	s = &scripted{in: strings.NewReader(string(in))}
	if _, err := new(End).Run(t.Context(), s, Test{100, 3, 1}); err != nil {
		t.Errorf("a byte that is wrong, and not verified: %v", err)
	}
}

// TestEnds: the peer ends, is silent, or the context ends.
func TestEnds(t *testing.T) {
	_, err := new(End).Run(t.Context(), &scripted{in: strings.NewReader("too short")}, Test{1, 1, 1})
	if !errors.Is(err, ErrEnded) {
		t.Errorf("a peer that ends: %v", err)
	}
	c, s := net.Pipe()
	defer s.Close()
	e := &End{Accepted: true, Patience: 20 * time.Millisecond}
	if _, err := e.Run(t.Context(), c, Test{1, 1, 1}); !errors.Is(err, ErrQuiet) {
		t.Errorf("a peer that is silent: %v", err)
	}
	c, s = net.Pipe()
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = (&End{Accepted: true}).Run(ctx, c, Test{1, 1, 1})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends: %v", err)
	}
	for _, bad := range []Test{{}, {1, 1, 0}, {1, 0, 1}, {0, 1, 1}, {MaxSize + 1, 1, 1}, {-1, 1, 1}} {
		if _, err := new(End).Run(t.Context(), c, bad); err == nil {
			t.Errorf("%+v is possible", bad)
		}
	}
}

// TestSizes are those that rstream prints, with their numbers.
func TestSizes(t *testing.T) {
	if got := Sizes(false); !slices.Equal(got, []int{64, 4096, 65536, 1 << 20}) {
		t.Errorf("four sizes: %v", got)
	}
	if got := Sizes(true); !slices.Equal(got, []int{
		64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576,
		32768, 49152, 65536, 98304, 131072, 196608, 262144, 393216, 524288, 786432,
		1048576, 1572864, 2097152, 3145728, 4194304, 6291456}) {
		t.Errorf("%d sizes: %v", len(got), got)
	}
	for size, want := range map[int]int{
		64: 100_000, 768: 100_000, 1024: 10_000, 49152: 10_000, 65536: 1000, 786432: 1000,
		1 << 20: 100, 6 << 20: 100,
	} {
		l, b := LatencyOf(size), BandwidthOf(size)
		if l != (Test{size, 1, want}) || b != (Test{size, want, 1}) {
			t.Errorf("%d: %+v, %+v", size, l, b)
		}
	}
}
