package rsocket_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// TestConnDeadlinesUnderLoad makes readers and writers of both ends run into deadlines all the
// time: the call that polls for both leaves, and the other one has to take over. Nothing is lost,
// and no call waits forever.
func TestConnDeadlinesUnderLoad(t *testing.T) {
	total := 8 << 20
	if testkit.Race || onKernel() {
		total = 1 << 20
	}
	vctx, addr := device(t)
	cfg := rsocket.Config{ReceiveBuffer: 16 << 10, SendBuffer: 8 << 10}
	c, s := pair(t, vctx, addr, cfg, cfg)
	guard := time.AfterFunc(patience, func() {
		t.Errorf("it takes too long: %v; %v", c, s)
		c.Close()
		s.Close()
	})
	defer guard.Stop()
	var wg sync.WaitGroup
	sums := make([][]byte, 4)
	for i, end := range []*rsocket.Conn{c, s} {
		wg.Go(func() {
			p := make([]byte, total)
			_, _ = newRandom(byte(i)).Read(p)
			sum := sha256.Sum256(p)
			sums[i] = sum[:]
			sizes := rand.New(rand.NewPCG(uint64(i), 7))
			for len(p) > 0 {
				_ = end.SetWriteDeadline(time.Now().Add(time.Duration(sizes.IntN(300)) * time.Microsecond))
				n, err := end.Write(p[:min(len(p), 1+sizes.IntN(40000))])
				p = p[n:]
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
					return
				}
			}
			testkit.OK(t, end.CloseWrite())
		})
		wg.Go(func() {
			h, buf := sha256.New(), make([]byte, 40000)
			sizes := rand.New(rand.NewPCG(uint64(i), 8))
			for {
				_ = end.SetReadDeadline(time.Now().Add(time.Duration(sizes.IntN(300)) * time.Microsecond))
				n, err := end.Read(buf[:1+sizes.IntN(len(buf))])
				h.Write(buf[:n])
				if err == io.EOF {
					break
				}
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
					return
				}
			}
			sums[3-i] = h.Sum(nil)
		})
	}
	wg.Wait()
	if !bytes.Equal(sums[0], sums[2]) || !bytes.Equal(sums[1], sums[3]) {
		t.Error("what was received is not what was sent")
	}
}

// TestConnEndsAtRandom repeatedly closes ends that are active. Calls return, and nothing is left
// behind.
func TestConnEndsAtRandom(t *testing.T) {
	rounds := 100
	if onKernel() {
		rounds = 10
	}
	vctx, addr := device(t)
	r := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		cfg := rsocket.Config{ReceiveBuffer: 4096, SendBuffer: 4096, KeepAlive: time.Millisecond}
		c, s := pair(t, vctx, addr, cfg, cfg)
		var wg sync.WaitGroup
		for _, end := range []*rsocket.Conn{c, s} {
			wg.Go(func() { _, _ = io.Copy(io.Discard, plainConn{end}) })
			wg.Go(func() {
				for {
					if _, err := end.Write(make([]byte, 10000)); err != nil {
						return
					}
				}
			})
			wait, what := time.Duration(r.IntN(3000))*time.Microsecond, r.IntN(3)
			wg.Go(func() {
				time.Sleep(wait)
				if what == 0 {
					_ = end.CloseWrite()
				}
				if what == 1 {
					_ = end.CloseRead()
				}
				time.Sleep(wait)
				if err := end.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// TestNoGoroutines: a connection has no goroutine, idle or while a call waits.
func TestNoGoroutines(t *testing.T) {
	vctx, addr := device(t)
	before := runtime.NumGoroutine() // perhaps including goroutines of other tests, which end
	const n = 20
	var returned atomic.Int32
	for range n {
		c, s := pair(t, vctx, addr, rsocket.Config{KeepAlive: time.Hour}, rsocket.Config{})
		testkit.Must(c.Write([]byte("x")))(t)
		testkit.Must(io.ReadFull(s, make([]byte, 1)))(t)
		testkit.OK(t, c.SetDeadline(time.Now().Add(time.Hour)))
		go func() {
			_, _ = c.Read(make([]byte, 1))
			returned.Add(1)
		}()
	}
	now := 0
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		if now = runtime.NumGoroutine() - before; now <= n {
			if r := returned.Load(); r != 0 {
				t.Errorf("%d calls of Read have returned", r)
			}
			return
		}
	}
	t.Errorf("%d pairs of connections, of which one end waits in Read, have %d goroutines", n, now)
}
