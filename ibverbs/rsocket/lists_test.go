package rsocket_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// TestConnLists sends Writes of all lengths through buffers and queues in which a list of transfers
// just fits, does not fit, or wraps around. Some transfers are inline. If a deadline or CloseWrite
// ends a Write, the peer has got as many bytes as the Write returned.
func TestConnLists(t *testing.T) {
	total, inline := 512<<10, 512
	if testkit.Race { // ci/test also runs all of it without the race detector
		total = 128 << 10
	}
	if onKernel() {
		total, inline = 128<<10, 80 // siw's limit
	}
	vctx, addr := device(t)
	for i, cfg := range []rsocket.Config{
		{SendBuffer: 2048, ReceiveBuffer: 2048},
		{SendBuffer: 2049, ReceiveBuffer: 1 << 20, Inline: 4},
		{SendBuffer: 6145, ReceiveBuffer: 64 << 10, SendQueue: 16},
		{SendBuffer: 61_441, ReceiveBuffer: 8192 + 64, ReceiveQueue: 16},
		{SendBuffer: 1 << 20, ReceiveBuffer: 200_000, Inline: inline, SendQueue: 17, ReceiveQueue: 17},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c, s := pair(t, vctx, addr, cfg, cfg)
			sendLists(t, c, s, total, rand.New(rand.NewPCG(uint64(i), 3)))
		})
	}
}

// sendLists sends total bytes from c to s, and then ends c's direction in the middle of a Write.
func sendLists(t *testing.T, c, s *rsocket.Conn, total int, r *rand.Rand) {
	t.Helper()
	sent := make(chan int, 1)
	var group sync.WaitGroup
	defer func() {
		c.Close()
		group.Wait()
	}()
	group.Go(func() {
		defer c.CloseWrite()
		at := 0
		for at < total {
			p := make([]byte, 1+r.IntN(1<<r.IntN(19)))
			for i := range p {
				p[i] = pattern(at + i)
			}
			if r.IntN(4) == 0 {
				_ = c.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(200)) * time.Microsecond))
			} else {
				_ = c.SetWriteDeadline(time.Time{})
			}
			n, err := c.Write(p)
			if err == nil && n != len(p) || err != nil && !os.IsTimeout(err) {
				t.Errorf("Write of %d bytes: %d, %v", len(p), n, err)
				break
			}
			at += n
		}
		time.AfterFunc(time.Millisecond, func() { _ = c.CloseWrite() })
		_ = c.SetWriteDeadline(time.Time{})
		p := make([]byte, 16<<20)
		for i := range p {
			p[i] = pattern(at + i)
		}
		n, err := c.Write(p)
		if err == nil {
			t.Errorf("a Write behind CloseWrite: %d bytes of %d", n, len(p))
		}
		sent <- at + n
	})
	testkit.OK(t, s.SetReadDeadline(time.Now().Add(patience)))
	got, buf := 0, make([]byte, 50_000)
	for {
		n, err := s.Read(buf[:1+below(got, len(buf))])
		for i, b := range buf[:n] {
			if b != pattern(got+i) {
				t.Fatalf("byte %d is %#x, and should be %#x", got+i, b, pattern(got+i))
			}
		}
		got += n
		if err == io.EOF {
			break
		}
		testkit.OK(t, err)
	}
	if n := <-sent; n != got {
		t.Errorf("Write says that %d bytes are on their way, and %d came", n, got)
	}
}

func pattern(i int) byte { return byte(i ^ i>>8 ^ i>>15) }

// below returns a number below n.
func below(seed, n int) int { return seed * 7919 % n }
