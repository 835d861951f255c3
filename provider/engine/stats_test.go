package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestStatsTraffic counts one message of each kind at both ends, and checks that what a
// QP has counted stays among the sums of its device when it is closed.
func TestStatsTraffic(t *testing.T) {
	for _, n := range []int{64, 200000} { // short path, and many FPDUs
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
			src, dst := a.reg(n, provider.AccessLocalWrite), b.reg(n, allRights)
			sges := []provider.SGE{src.sge(0, n)}
			b.recv(provider.RecvWR{SGList: []provider.SGE{dst.sge(0, n)}}, provider.RecvWR{},
				provider.RecvWR{})
			a.send(
				provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: sges, RemoteAddr: dst.to(0),
					RKey: dst.m.STag()},
				provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: sges, RemoteAddr: dst.to(0),
					RKey: dst.m.STag()},
				provider.SendWR{Opcode: provider.WRSend, SGList: sges},
				provider.SendWR{Opcode: provider.WRRDMARead, SGList: sges, RemoteAddr: dst.to(0),
					RKey: dst.m.STag(), Flags: provider.SendSignaled},
			)
			pollBoth(t, 2, a.cq, b.cq)
			octets := uint64(n)
			want := provider.Traffic{
				Send:        provider.OpCount{Messages: 1, Octets: octets},
				Write:       provider.OpCount{Messages: 2, Octets: 2 * octets},
				ReadRequest: provider.OpCount{Messages: 1, Octets: octets},
			}
			answer := provider.Traffic{ReadResponse: provider.OpCount{Messages: 1, Octets: octets}}
			as, bs := testkit.Must(a.qp.Stats())(t), testkit.Must(b.qp.Stats())(t)
			if as.Sent != want || as.Received != answer {
				t.Errorf("a sent\n%+v and received\n%+v", as.Sent, as.Received)
			}
			if bs.Received != want || bs.Sent != answer {
				t.Errorf("b received\n%+v and sent\n%+v", bs.Received, bs.Sent)
			}
			if bs.LowestRecvs != 2 || bs.RecvsPosted != 2 || as.LowestRecvs != -1 {
				t.Errorf("receives: lowest %d, posted %d, at the other end lowest %d",
					bs.LowestRecvs, bs.RecvsPosted, as.LowestRecvs)
			}
			if as.TCP == nil || as.TCP.BytesAcked < 3*octets || as.Remote != bs.Local {
				t.Errorf("TCP %+v, peer %v", as.TCP, as.Remote)
			}
			testkit.OK(t, b.qp.Close())
			d := testkit.Must(b.dev.Stats())(t)
			if d.Received != want || d.Sent != answer || d.FlushedRecvs != 2 || d.QPs != 0 || d.Connections != 1 {
				t.Errorf("after Close: %+v", d)
			}
			if _, err := b.qp.Stats(); err == nil {
				t.Error("a closed QP has Stats")
			}
		})
	}
}

// TestIdleCountsNothing: a connection over which nothing is sent has no memory for counts.
func TestIdleCountsNothing(t *testing.T) {
	onTCP(t, Options{}, func(t *testing.T, w *cmWorld) {
		client, server := w.established()
		for _, id := range []*cm.ID{client, server} {
			q := qpOf(id)
			st := testkit.Must(q.Stats())(t)
			if q.counts.Load() != nil || st.Sent != (provider.Traffic{}) || st.LowestRecvs != -1 {
				t.Errorf("an idle QP has counts: %+v", st)
			}
		}
	})
}

// TestStatsHeld: work that is posted before the peer has spoken is held.
func TestStatsHeld(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var log bytes.Buffer
		to := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))
		_, b := pair(t, memnet.New(nil), memAddr, Options{Logger: to}, sideOptions{}, params(true))
		b.send(provider.SendWR{Opcode: provider.WRSend}, provider.SendWR{Opcode: provider.WRSend})
		if st := testkit.Must(b.qp.Stats())(t); !st.HeldForPeer || st.SendsHeld != 2 || st.SendsPosted != 2 {
			t.Errorf("%+v", st)
		}
		b.dev.log.draining.Wait()
		const text = "held until the peer's first message"
		if got := log.String(); strings.Contains(got, text) != (level == slog.LevelDebug) {
			t.Errorf("logged at %s: %q", level, got)
		}
	}
}

// TestStatsPending: a listener whose places are all taken says so.
func TestStatsPending(t *testing.T) {
	for _, places := range []int{1, 2, 3} {
		inMemory(t, Options{MaxPending: places}, func(t *testing.T, w *cmWorld) {
			l := w.server.listen()
			for n := range places + 2 {
				w.moment()
				st := testkit.Must(l.ListenerStats())(t)
				if want := min(n, places); st.Pending != want || st.MaxPending != places {
					t.Errorf("%d peers have sent requests: %d of %d places are taken, want %d of %d", n,
						st.Pending, st.MaxPending, want, places)
				}
				w.dialRaw(l.LocalAddr()).trySend(rawRequest(nil))
			}
		})
	}
}

// TestStatsTerminate counts a Terminate in both directions, and logs it.
func TestStatsTerminate(t *testing.T) {
	log := new(recorder)
	a, b := pair(t, memnet.New(nil), memAddr, Options{Logger: slog.New(log)}, sideOptions{}, params(true))
	src := a.reg(8, provider.AccessLocalWrite)
	a.send(provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 8)}, RKey: 7})
	a.wantTerm("at the writer", true, 1, 1, 0)
	b.wantTerm("at the reader", false, 1, 1, 0)
	for i, s := range []*side{a, b} {
		st := testkit.Must(s.dev.Stats())(t)
		want := provider.TerminateCount{Remote: i == 0, Layer: 1, EType: 1, Count: 1}
		if len(st.Terminates) != 1 || st.Terminates[0] != want {
			t.Errorf("side %d: %+v", i, st.Terminates)
		}
	}
	a.dev.log.draining.Wait()
	b.dev.log.draining.Wait()
	if got := log.String(); strings.Count(got, "Terminate sent") != 1 || strings.Count(got,
		"Terminate received") != 1 {
		t.Errorf("log:\n%s", got)
	}
}

// TestStatsTerminateCodes: a peer that chooses codes doesn't make the counts grow.
func TestStatsTerminateCodes(t *testing.T) {
	var tl tally
	for i := range 1000 {
		tl.terminate(&provider.TerminateError{Remote: true, ECode: uint8(i), EType: uint8(i >> 8)})
	}
	if len(tl.terminates) != maxTermCodes || tl.others != 1000-maxTermCodes {
		t.Errorf("%d codes and %d others", len(tl.terminates), tl.others)
	}
}

// TestStatsCQ counts completions, losses, and the least free places.
func TestStatsCQ(t *testing.T) {
	log := new(recorder)
	s := newSide(t, Options{Network: memnet.New(nil), Logger: slog.New(log)}, sideOptions{cqe: 4})
	var wc [8]provider.WC
	push := func(n int) {
		for range n {
			s.cq.push(provider.WC{Status: provider.WCWRFlushErr}, false)
		}
	}
	push(3)
	testkit.Must(s.cq.Poll(wc[:]))(t)
	push(1)
	got := testkit.Must(s.cq.Stats())(t)
	if want := (provider.CQStats{Completions: 4, Errors: 4, CQE: 4, Waiting: 1,
		MostWaiting: 3}); got != want || got.LowestFree() != 1 {
		t.Errorf("%+v", got)
	}
	push(5)
	if got = testkit.Must(s.cq.Stats())(t); got.Lost != 2 || got.LowestFree() != 0 {
		t.Errorf("%+v", got)
	}
	testkit.Equal(t, "losses of all CQs", testkit.Must(s.dev.Stats())(t).CQLost, 2)
	s.dev.log.draining.Wait()
	testkit.Equal(t, "records of one overflow", strings.Count(log.String(), "CQ overflow"), 1)
}

// TestLogBound: a peer that causes any number of records gets logPerSecond of them a
// second into the log, and the next record has the number of the others.
func TestLogBound(t *testing.T) {
	rec := new(recorder)
	l := logger{to: slog.New(rec)}
	peer := netip.MustParseAddrPort("192.0.2.1:1")
	for range 10000 {
		l.limit("MaxAccepted", peer)
	}
	l.draining.Wait()
	n := strings.Count(rec.String(), "\n")
	// The loop may be slow enough for a new second.
	testkit.Within(t, "records of 10000", n, logPerSecond, 3*logPerSecond)
	l.mu.Lock()
	l.began = l.began.Add(-time.Second)
	dropped := l.warnings.dropped
	l.mu.Unlock()
	l.limit("MaxAccepted", peer)
	l.draining.Wait()
	if want := fmt.Sprintf("dropped=%d", dropped); dropped == 0 || !strings.Contains(rec.String(), want) {
		t.Errorf("no %s in\n%s", want, rec)
	}
}

// TestLogSlowHandler: a Handler that doesn't return holds up nobody, and the queue is
// bounded.
func TestLogSlowHandler(t *testing.T) {
	release := make(chan struct{})
	l := logger{to: slog.New(&recorder{wait: release})}
	for i := range 10 * logKept {
		l.mu.Lock()
		l.warnings.n = 0 // however many seconds pass
		l.mu.Unlock()
		l.add(slog.LevelInfo, "record", slog.Int("i", i))
	}
	l.mu.Lock()
	queued := len(l.queue)
	l.mu.Unlock()
	testkit.Within(t, "records that are queued", queued, 0, logKept)
	close(release)
	l.draining.Wait()
}

// recorder is a slog.Handler that keeps a line of each record.
type recorder struct {
	wait chan struct{}
	mu   sync.Mutex
	b    strings.Builder
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }

func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	if r.wait != nil {
		<-r.wait
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b.WriteString(rec.Message)
	rec.Attrs(func(a slog.Attr) bool { r.b.WriteString(" " + a.String()); return true })
	r.b.WriteByte('\n')
	return nil
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// TestStatsFlushes: the work request that ends a connection is not flushed; those after it are.
func TestStatsFlushes(t *testing.T) {
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	src, dst := a.reg(64, provider.AccessLocalWrite), b.reg(1, allRights)
	b.recv(provider.RecvWR{SGList: []provider.SGE{dst.sge(0, 1)}}, provider.RecvWR{})
	send := provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 64)}}
	a.send(send) // longer than the receive
	if wc := b.poll(); wc.Status == provider.WCSuccess || wc.Status == provider.WCWRFlushErr {
		t.Fatalf("a receive that is too short: %v", wc.Status)
	}
	testkit.Equal(t, "the receive after it", b.poll().Status, provider.WCWRFlushErr)
	testkit.Equal(t, "receives that were flushed", testkit.Must(b.qp.Stats())(t).FlushedRecvs, 1)

	c, d := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	sink, peer := c.reg(64, allRights), d.reg(64, allRights)
	read := provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
		SGList: []provider.SGE{sink.sge(0, 64)}, RemoteAddr: peer.to(0), RKey: ^peer.m.STag()}
	c.send(read, read)
	flushed := uint64(0)
	for end, n := time.Now().Add(patience), 0; n < 2; { // both ends have to be polled
		var wc [1]provider.WC
		if testkit.Must(c.cq.Poll(wc[:]))(t) == 1 {
			n++
			if wc[0].Status == provider.WCWRFlushErr {
				flushed++
			}
		}
		_ = testkit.Must(d.cq.Poll(wc[:]))(t)
		if time.Now().After(end) {
			t.Fatal("no completion")
		}
	}
	if st := testkit.Must(c.qp.Stats())(t); flushed == 2 || st.FlushedSends != flushed {
		t.Errorf("%d Reads were flushed, of which FlushedSends counts %d", flushed, st.FlushedSends)
	}
}

// TestLogWithoutWRIDs: a Terminate for a work request is logged without its WRID, which may be one
// that the program has not given.
func TestLogWithoutWRIDs(t *testing.T) {
	log := new(recorder)
	a, _ := pair(t, memnet.New(nil), memAddr, Options{Logger: slog.New(log)}, sideOptions{}, params(true))
	a.send(provider.SendWR{WRID: 0xabcdef, Opcode: provider.WRSend, SGList: []provider.SGE{{Length: 1, LKey: 7}}})
	a.wantTerm("at the sender", false, 0, 0, 0xff)
	a.dev.log.draining.Wait()
	if got := log.String(); !strings.Contains(got, "IBV_WR_SEND, SGE 0: no region has lkey 0x7") ||
		strings.Contains(got, "abcdef") {
		t.Errorf("logged %q", got)
	}
}

// TestLogKeepsErrors: records that peers cause don't displace the overflow of a CQ, which is the
// program's own fault, and of another level.
func TestLogKeepsErrors(t *testing.T) {
	var out bytes.Buffer
	l := &logger{to: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))}
	for range 3 * logPerSecond {
		l.add(slog.LevelWarn, "Terminate received")
	}
	l.overflow(64)
	l.draining.Wait()
	if !strings.Contains(out.String(), "CQ overflow") {
		t.Errorf("logged %q, without the overflow", out.String())
	}
}

// TestLogReadSink: the first Read into a region that RNICs would not let the peer's answer into is
// logged, and no other.
//
//rfc:5040 RDMAP-5.2.2-08 Sink of a Read needs no remote-write right
func TestLogReadSink(t *testing.T) {
	log := new(recorder)
	a, b := pair(t, memnet.New(nil), memAddr, Options{Logger: slog.New(log)}, sideOptions{}, params(true))
	from := b.reg(8, allRights)
	read := func(access provider.Access) string {
		t.Helper()
		sink := a.reg(8, access)
		a.send(provider.SendWR{
			Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{sink.sge(0, 8)}, RemoteAddr: from.to(0), RKey: from.m.STag(),
		})
		testkit.Equal(t, "the Read's status", a.poll().Status, provider.WCSuccess)
		a.dev.log.draining.Wait()
		return log.String()
	}
	const want = "ibverbs.AccessReadSink"
	testkit.Equal(t, "the log of a sink that the peer may write",
		read(provider.AccessLocalWrite|provider.AccessRemoteWrite), "")
	for i := range 2 {
		if got := read(provider.AccessLocalWrite); strings.Count(got, want) != 1 {
			t.Errorf("log after Read %d, want %q once:\n%s", i, want, got)
		}
	}
}
