package rawpeer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is for what must happen, and short for what must not.
const (
	long  = time.Minute
	short = 20 * time.Millisecond
)

// tape is a tap that keeps its records.
type tape struct {
	mu      sync.Mutex
	records []transport.TapRecord
}

func (t *tape) Tap(r transport.TapRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Data = bytes.Clone(r.Data)
	t.records = append(t.records, r)
}

// count returns how many records of an event and direction there are.
func (t *tape) count(event transport.TapEvent, sent bool) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range t.records {
		if r.Event == event && r.Sent == sent {
			n++
		}
	}
	return n
}

// pair connects two raw peers. The tap belongs to the peer that dials.
func pair(t *testing.T, tap transport.Tap) (dials, accepts *rawpeer.Peer) {
	t.Helper()
	const attempts = 20
	var l *rawpeer.Listener
	var addr netip.AddrPort
	var err error
	for port := uint16(23000); port < 23000+attempts; port++ { // another process may have one of them
		addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		if l, err = rawpeer.Listen(addr, nil); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if dials, err = rawpeer.Dial(t.Context(), addr, tap); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dials.Close() })
	if accepts, err = l.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepts.Close() })
	return dials, accepts
}

func TestConversation(t *testing.T) {
	tap := &tape{}
	i, p := pair(t, tap)
	request := rawpeer.Request(true, 1, 1, []byte("private"))
	// The first octets of an FPDU come with the frame, and stay for later.
	f := rawpeer.SendMessage(1, []byte("hello"))
	octets := f.Octets(true)
	if err := i.Send(append(request.AppendTo(nil), octets[:5]...)); err != nil {
		t.Fatal(err)
	}
	got, err := p.ReadFrame(mpa.KindRequest, long)
	if err != nil || !bytes.Equal(got.PrivateData, request.PrivateData) {
		t.Fatalf("request: %+v, %v", got, err)
	}
	if _, err := p.ReadFPDU(short); !errors.Is(err, rawpeer.ErrSilence) {
		t.Fatalf("half an FPDU is read as one: %v", err)
	}
	if err := i.SendPieces(octets[5:], 3, 0); err != nil {
		t.Fatal(err)
	}
	seg, err := p.ReadFPDU(long)
	if err != nil || string(seg.Payload) != "hello" || !seg.CRCRight() || !bytes.Equal(seg.Octets, octets) {
		t.Fatalf("FPDU: %+v, %v", seg, err)
	}
	if err := p.Poll(); err != nil {
		t.Errorf("the connection is there, and Poll says %v", err)
	}
	if n := tap.count(transport.TapData, true); n < 2 {
		t.Errorf("the tap has seen %d writes", n)
	}
}

func TestReadFrameRefusesWhatIsNone(t *testing.T) {
	i, p := pair(t, nil)
	if err := i.Send([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrame(mpa.KindRequest, long); !errors.Is(err, mpa.ErrKey) {
		t.Errorf("%v, not %v", err, mpa.ErrKey)
	}
}

func TestReadFPDUTellsWhatItCannotDecode(t *testing.T) {
	i, p := pair(t, nil)
	if err := i.SendFPDU(rawpeer.FPDU{NoDDP: true, Payload: []byte{0xc1, 0x40}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFPDU(long); !errors.Is(err, ddp.ErrShortSegment) {
		t.Errorf("%v, not %v", err, ddp.ErrShortSegment)
	}
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*rawpeer.Peer) error
		want error
	}{
		"FIN by CloseWrite": {(*rawpeer.Peer).CloseWrite, io.EOF},
		"FIN by Close":      {(*rawpeer.Peer).Close, io.EOF},
		"RST":               {(*rawpeer.Peer).Reset, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			tap := &tape{}
			i, p := pair(t, tap)
			if err := i.Send([]byte("last words")); err != nil {
				t.Fatal(err)
			}
			if rest, err := p.Drain(short); string(rest) != "last words" || !errors.Is(err, rawpeer.ErrSilence) {
				t.Fatalf("before the end: %q, %v", rest, err)
			}
			if err := c.end(i); err != nil {
				t.Fatal(err)
			}
			if err := c.end(i); err != nil {
				t.Errorf("ending it again: %v", err)
			}
			if rest, err := p.Drain(long); len(rest) != 0 || !errors.Is(err, c.want) {
				t.Errorf("%q, %v, not %v", rest, err, c.want)
			}
			if err := p.Poll(); !errors.Is(err, c.want) {
				t.Errorf("afterwards Poll says %v", err)
			}
			if _, err := p.ReadFPDU(long); !errors.Is(err, c.want) {
				t.Errorf("afterwards ReadFPDU says %v", err)
			}
			if n := tap.count(transport.TapFIN, true) + tap.count(transport.TapReset, true); n != 1 {
				t.Errorf("the tap has seen %d ends", n)
			}
		})
	}
}

func TestUnfinishedFPDU(t *testing.T) {
	i, p := pair(t, nil)
	f := rawpeer.SendMessage(1, []byte("hello"))
	octets := f.Octets(true)
	if err := i.Send(octets[:7]); err != nil {
		t.Fatal(err)
	}
	if err := i.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFPDU(long); !errors.Is(err, io.EOF) || errors.Is(err, rawpeer.ErrSilence) {
		t.Errorf("%v", err)
	}
}

func TestAcceptEndsWithContext(t *testing.T) {
	l, err := rawpeer.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestOver: a wait ends when its answer is not wanted any more.
func TestOver(t *testing.T) {
	dials, _ := pair(t, nil)
	over := make(chan struct{})
	dials.Over = over
	time.AfterFunc(short, func() { close(over) })
	began := time.Now()
	if _, err := dials.Drain(4 * long); !errors.Is(err, rawpeer.ErrSilence) {
		t.Errorf("a wait that is over: %v", err)
	}
	if took := time.Since(began); took > long {
		t.Errorf("it went on for %v", took)
	}
}

// TestOverBeforeOctetsEnd: a wait in which octets come one by one ends then, too.
func TestOverBeforeOctetsEnd(t *testing.T) {
	p, other := pair(t, nil)
	over := make(chan struct{})
	p.Over = over
	var sending sync.WaitGroup
	sending.Go(func() {
		for other.Send([]byte{0}) == nil {
			time.Sleep(time.Millisecond)
		}
	})
	time.AfterFunc(short, func() { close(over) })
	began := time.Now()
	if _, err := p.Drain(4 * long); !errors.Is(err, rawpeer.ErrSilence) {
		t.Errorf("a wait that is over: %v", err)
	}
	if took := time.Since(began); took > long {
		t.Errorf("it went on for %v", took)
	}
	_ = p.Reset()
	sending.Wait()
}

// TestEndless: a side that sends without end, fast or octet by octet, ends each wait. At most
// MostReceived of its octets are kept.
func TestEndless(t *testing.T) {
	const most = rawpeer.MostReceived + 1<<17 // and a read
	for name, tc := range map[string]struct {
		octets []byte
		pause  time.Duration
		wait   time.Duration
		want   error
	}{
		"fast":           {make([]byte, 1<<16), 0, time.Minute, rawpeer.ErrTooMuch},
		"octet by octet": {[]byte{0}, 100 * time.Microsecond, short, rawpeer.ErrSilence},
	} {
		t.Run(name, func(t *testing.T) {
			taps := &tape{}
			p, other := pair(t, taps)
			var sending sync.WaitGroup
			sending.Go(func() {
				for other.Send(tc.octets) == nil {
					time.Sleep(tc.pause)
				}
			})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if err := p.Poll(); tc.pause > 0 && err != nil {
					t.Errorf("Poll: %v", err)
				}
				for range 2 {
					if rest, err := p.Drain(tc.wait); !errors.Is(err, tc.want) || len(rest) > most {
						t.Errorf("%d octets, %v", len(rest), err)
					}
				}
			}()
			select {
			case <-ended:
			case <-time.After(4 * long):
				t.Error("the waits do not end")
			}
			_ = p.Reset()
			sending.Wait()
			<-ended
			if n := taps.octets(); n > most {
				t.Errorf("the tap got %d octets", n)
			}
		})
	}
}

// octets returns how many octets came.
func (t *tape) octets() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range t.records {
		if r.Event == transport.TapData && !r.Sent {
			n += len(r.Data)
		}
	}
	return n
}
