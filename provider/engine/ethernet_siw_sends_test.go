//go:build linux

package engine_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/kernel"
)

const (
	sendsWrites = 32       // of a connection
	sendsSize   = 16 << 10 // of a Write, which is several FPDUs
	sendsTime   = 2 * time.Second
)

// sentBySiw counts the FPDUs that siw sent.
type sentBySiw struct {
	fpdus, wrong int
}

// siwSends makes siw send Writes to plain TCP sockets, and checks each CRC. While TCP's send buffer
// is too small for the posted work, siw may send from two threads at once, and a CRC may cover the
// payload twice (kernel-notes/siw-two-senders.md). The guest's scheduler decides whether that
// happens: once in about ten seconds. Nothing else may be wrong.
func siwSends(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(kernel.New(), "siw0"))(t)
	defer vctx.Close()
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("198.51.100.1:0"), nil))(t)
	defer l.Close()
	dial, results := make(chan struct{}), make(chan error, 1)
	var sum sentBySiw
	go takeWrites(l.Addr(), dial, results, &sum)
	defer close(dial)
	conns := 0
	for begin := time.Now(); sum.wrong == 0 && time.Since(begin) < sendsTime; conns++ {
		dial <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), siwPatience)
		got := make(chan error, 1)
		go func() {
			err := <-results
			if err != nil {
				cancel() // the peer has not connected, or is gone
			}
			got <- err
		}()
		sent := sendWrites(ctx, l)
		if err := errors.Join(<-got, sent); err != nil {
			t.Fatalf("connection %d: %v", conns, err)
		}
		cancel()
	}
	if sum.fpdus < conns*sendsWrites {
		t.Errorf("%d FPDUs of %d connections with %d Writes each", sum.fpdus, conns, sendsWrites)
	}
	t.Logf("%d connections, %d FPDUs, %d with a CRC over the payload twice", conns, sum.fpdus, sum.wrong)
}

// sendWrites accepts a connection and posts Writes, one after the other. The last one is empty.
func sendWrites(ctx context.Context, l *rdmacm.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	c, err := req.Accept(ctx, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	defer c.Close()
	mr, err := c.PD().AllocMR(sendsSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	for i := range sendsWrites + 1 {
		wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, RemoteAddr: 1 << 20, RKey: 1}
		if i < sendsWrites {
			wr.SGList = []ibverbs.SGE{{Addr: mr.Addr(), Length: sendsSize, LKey: mr.LKey()}}
		}
		if err := c.QP().PostSend(wr); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
		var wc [1]ibverbs.WC
		if _, err := c.SendCQ().PollWait(ctx, wc[:]); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
		if err := wc[0].Err(); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
	}
	return c.Disconnect()
}

// takeWrites connects once for each value of dial, takes what comes, and adds it to sum. It runs
// in the peer's network namespace.
func takeWrites(at netip.AddrPort, dial <-chan struct{}, results chan<- error, sum *sentBySiw) {
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	ns, err := os.Open("/run/netns/far")
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		_ = ns.Close()
	}
	for range dial {
		if err == nil {
			results <- sum.take(at)
		} else {
			results <- err
		}
	}
}

// take is one connection, as initiator.
func (sum *sentBySiw) take(at netip.AddrPort) error {
	c, err := net.DialTimeout("tcp", at.String(), siwPatience)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(siwPatience))
	request, first := rawpeer.Request(true, 1, 1, nil), rawpeer.WriteMessage(0, 0, nil)
	if _, err := c.Write(request.AppendTo(nil)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 256<<10)
	reply := make([]byte, mpa.FrameHeaderLen)
	if _, err := io.ReadFull(r, reply); err != nil {
		return fmt.Errorf("the Reply: %w", err)
	}
	if _, err := r.Discard(int(binary.BigEndian.Uint16(reply[len(reply)-2:]))); err != nil {
		return fmt.Errorf("the Reply: %w", err)
	}
	if _, err := c.Write(first.Octets(true)); err != nil {
		return err
	}
	fpdu := make([]byte, mpa.MaxFPDULen)
	for n := 0; ; n++ {
		switch last, err := sum.next(r, fpdu); {
		case err != nil:
			return fmt.Errorf("FPDU %d, %d of this connection: %w", sum.fpdus, n, err)
		case last:
			// siw may have sent the last Write and not completed it yet, and fails it if the
			// connection ends before: it is siw that disconnects.
			_, _ = io.Copy(io.Discard, r)
			return nil
		case n == 0:
			// siw may have left the first FPDU in its socket (kernel-notes/siw-first-fpdu.md), and
			// would reset the connection at its end (kernel-notes/siw-close-resets.md), which loses
			// what it has sent. It reads that FPDU with another one.
			if _, err := c.Write(first.Octets(true)); err != nil {
				return err
			}
		}
	}
}

// next takes an FPDU. The last one is empty.
func (sum *sentBySiw) next(r io.Reader, fpdu []byte) (last bool, err error) {
	if _, err := io.ReadFull(r, fpdu[:mpa.HeaderLen]); err != nil {
		return false, err
	}
	length, n, _ := mpa.ParseHeader(fpdu)
	if _, err := io.ReadFull(r, fpdu[mpa.HeaderLen:n]); err != nil {
		return false, err
	}
	_, payload, err := ddp.Parse(fpdu[mpa.HeaderLen:][:length])
	if err != nil {
		return false, err
	}
	sum.fpdus++
	crc := mpa.CRC(0, fpdu[:n-mpa.CRCLen])
	if mpa.CheckCRC(crc, fpdu[n-mpa.CRCLen:n]) != nil {
		sum.wrong++
		if mpa.CheckCRC(mpa.CRC(crc, payload), fpdu[n-mpa.CRCLen:n]) != nil {
			return false, errors.New("the CRC is wrong, and not because it covers the payload twice")
		}
	}
	return len(payload) == 0, nil
}
