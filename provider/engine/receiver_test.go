package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestReadLimit: a read takes what is left of the budget, with the rest of an FPDU that has come in
// part before the others; a budget that is nearly used up ends with that FPDU.
func TestReadLimit(t *testing.T) {
	const have = 1000
	for _, tc := range []struct {
		name         string
		need, budget int
		costShift    policy.CostShift
		want         int
	}{
		{"nothing is known to come", 0, policy.BudgetSole, 0, policy.ReadMost},
		{"the rest of a long FPDU, and more", have + 30000, policy.BudgetSole, 0, 30000 + policy.ReadMost},
		{"an eighth, as FPDUs are short", have + 1000, policy.BudgetLeast, 3, 1000 + policy.BudgetLeast/8},
		{"as much as a read takes", have + 10000, 400000, 0, 10000 + policy.ReadMost},
		{"three quarters of the budget", have + 30000, 200000, 0, 150000},
		{"a quarter, as FPDUs are short", have + 30000, 200000, 2, 80000},
		{"hardly more is left than the FPDU", have + 30000, 30100, 0, 30000 + policy.ReadAhead},
		{"the budget is used up, within an FPDU", have + 30000, -5000, 0, 30000 + policy.ReadAhead},
		{"the budget is used up", 0, 0, 0, policy.ReadLeast},
		{"very short FPDUs", 0, policy.BudgetLeast, 7, policy.ReadLeast},
	} {
		r := receiver{need: uint32(tc.need), r: 10, w: 10 + have, costShift: tc.costShift}
		testkit.Equal(t, tc.name, r.readLimit(tc.budget), tc.want)
	}
}

// sizedReads is a nowhere that keeps how many reads there are, and how long the longest is.
type sizedReads struct {
	*nowhere
	reads, most int
}

func (c *sizedReads) Readv(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	c.reads++
	c.most = max(c.most, n)
	return c.nowhere.Readv(bufs)
}

// newSizedReads returns a side whose stream reads from the second result, and a function that makes
// Writes to it of n bytes each, so many bytes in all.
func newSizedReads(t *testing.T, crc bool) (*side, *sizedReads, func(octets, n int) []byte) {
	_, y := tcpPair(t, Options{}, crc, sideOptions{})
	in := &sizedReads{nowhere: y.replaceConn()}
	dst := y.reg(60000, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	framer := mpa.NewFramer(false, crc)
	s := y.qp.stream.Load()
	set := func(c transport.Conn) {
		s.rx.mu.Lock()
		defer s.rx.mu.Unlock()
		s.conn = c
	}
	set(in)
	t.Cleanup(func() { set(in.nowhere) })
	return y, in, func(octets, n int) (b []byte) {
		h := rdmap.WriteHeader(dst.m.STag(), dst.to(0), true)
		for len(b) < octets {
			b = testkit.Must(framer.AppendFPDU(b, h.AppendTo(nil), dst.b[:n]))(t)
		}
		return b
	}
}

// TestReadsOfATurn: however long FPDUs are, a turn takes about its budget, with few reads.
func TestReadsOfATurn(t *testing.T) {
	for _, n := range []int{1400, 9000, 32000, 60000} {
		for _, budget := range []int{policy.BudgetLeast, policy.BudgetOne} {
			y, in, writes := newSizedReads(t, true)
			s := y.qp.stream.Load()
			in.in = writes(24*budget, n)
			for range 8 { // until it is known how long FPDUs are
				s.rx.poll(budget)
			}
			before := len(in.in)
			in.reads, in.most = 0, 0
			for range 8 {
				s.rx.poll(budget)
			}
			taken := (before - len(in.in)) / 8
			if taken < budget/2 || taken > budget+max(budget/4, n+100) || in.reads > 8*(4+2*budget/policy.ReadMost) {
				t.Errorf("FPDUs of %d bytes: 8 budgets of %d have taken %d each, with %d reads",
					n, budget, taken, in.reads)
			}
			if in.most > policy.ReadMost+n+100 {
				t.Errorf("FPDUs of %d bytes: the longest read was for %d", n, in.most)
			}
			testkit.OK(t, y.qp.Cause())
		}
	}
}

// TestShortAfterLong: where very short FPDUs follow long ones, the first read may be full of them,
// and the next ones are short.
func TestShortAfterLong(t *testing.T) {
	for _, n := range []int{1400, 9000, 32000, 60000} {
		y, in, writes := newSizedReads(t, true)
		s := y.qp.stream.Load()
		for in.in = writes(policy.BudgetSole, n); len(in.in) > 0; {
			s.rx.poll(policy.BudgetSole)
		}
		in.in = writes(policy.BudgetSole/2, 0)
		before := len(in.in)
		s.rx.poll(policy.BudgetSole)
		if taken := before - len(in.in); taken > policy.ReadMost+policy.ReadMost/8 {
			t.Errorf("after FPDUs of %d bytes a turn of %d took %d of empty ones", n, policy.BudgetSole, taken)
		}
		in.most = 0
		if s.rx.poll(policy.BudgetSole); in.most == 0 || in.most > policy.BudgetSole/16 {
			t.Errorf("after them the next turn had a read for %d bytes", in.most)
		}
		testkit.OK(t, y.qp.Cause())
	}
}

// TestCostlyReads: short FPDUs make the next reads shorter. The last short read of a turn, with the
// end of a long FPDU in it, does not.
func TestCostlyReads(t *testing.T) {
	for _, tc := range []struct {
		name      string
		n, fpdus  int
		before    policy.CostShift
		costShift policy.CostShift
	}{
		{"long FPDUs", 96 << 10, 3, 0, 0},
		{"the rest of an FPDU, and a short one", 1656, 2, 0, 0},
		{"the same, when FPDUs were short", 1656, 2, 5, 4},
		{"short ones", 1656, 3, 0, 1},
		{"one that is as short, in a longer read", 4 << 10, 9, 0, 1},
		{"very short ones", 2800, 100, 0, 5},
	} {
		r := receiver{costShift: tc.before}
		testkit.Equal(t, tc.name+": what a read costs", r.costShift.Spent(tc.n, tc.fpdus, true),
			tc.n+tc.fpdus*policy.FPDUCost)
		testkit.Equal(t, tc.name+": costShift", r.costShift, tc.costShift)
	}
}

// TestReadsGrow: reads become as long as the budget permits, however short it is, where all FPDUs
// are as long as an Ethernet permits.
func TestReadsGrow(t *testing.T) {
	y, in, writes := newSizedReads(t, true)
	s := y.qp.stream.Load()
	for _, budget := range []int{policy.BudgetLeast, policy.BudgetLeast / 2} {
		in.in = append(in.in, writes(30*budget, 1420)...)
		for range 10 {
			s.rx.poll(budget)
		}
		in.reads = 0
		for range 10 {
			s.rx.poll(budget)
		}
		if in.reads > 60 || len(in.in) == 0 {
			t.Errorf("%d reads with 10 budgets of %d, want at most 60; costShift is %d", in.reads, budget, s.rx.costShift)
		}
		s.rx.costShift = policy.CostShiftFirst
	}
	testkit.OK(t, y.qp.Cause())
}
