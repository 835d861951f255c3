package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestSRQAllocs: receiving from an SRQ allocates nothing either.
func TestSRQAllocs(t *testing.T) {
	w := e2eWires[len(e2eWires)-4]
	if !w.real {
		t.Fatalf("%s is not TCP", w.name)
	}
	network, addr := w.network()
	a, b := newE2EEnd(t, w, network, e2eSetup{}), newE2EEnd(t, w, network, e2eSetup{})
	r := testSRQ(t, b.pd, 4, 1)
	in := testkit.Must(b.pd.CreateQP(provider.QPInitAttr{SendCQ: b.scq, RecvCQ: b.rcq, SRQ: r,
		Cap: provider.QPCap{MaxSendWR: 1}}))(t).(*qp)
	t.Cleanup(func() { closeAll(t, "QP", in) })
	e2eConnect(t, w, e2eSetup{depth: 1}, network, addr, a.q, in, make(chan error, 1), make(chan error, 1))
	src, dst := a.region(200000, 0), b.region(200000, provider.AccessLocalWrite)
	recvs := []provider.RecvWR{{SGList: []provider.SGE{sge(dst.mr, 0, 200000)}}}
	for _, n := range []int{0, 64, 200000} {
		sends := []provider.SendWR{{Opcode: provider.WRSend, SGList: []provider.SGE{sge(src.mr, 0, n)}, Flags: provider.SendSignaled}}
		round := func() {
			if _, err := r.PostRecv(recvs); err != nil {
				t.Fatal(err)
			}
			if _, err := a.q.PostSend(sends); err != nil {
				t.Fatal(err)
			}
			pollBoth(t, 2, a.scq, b.rcq)
		}
		wantNoAllocs(t, round)
	}
}

// Posting, taking, resizing and arming at once loses no receive and gives none twice.
func TestSRQConcurrently(t *testing.T) {
	const posters, takers, each = 3, 3, 3000
	d := unwired(t)
	r := testSRQ(t, testPD(t, d), 16, 1)
	if !r.refs.Hold() { // as one more QP
		t.Fatal("the SRQ is closed")
	}
	defer r.refs.Drop()
	var taken [posters * each]atomic.Int32
	var left atomic.Int64
	left.Store(posters * each)
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for k := 0; k < each; {
				id := uint64(p*each + k)
				n, err := r.PostRecv([]provider.RecvWR{{WRID: id, SGList: []provider.SGE{{Addr: id, Length: 1}}}})
				if k += n; err != nil {
					if provider.Errno(err) != syscall.ENOMEM {
						t.Errorf("posting: %v", err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	for range takers {
		wg.Go(func() {
			h, err := d.share("test", r)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.refs.Drop()
			for left.Load() > 0 {
				w, sges, _ := h.take()
				if w == nil {
					runtime.Gosched()
					continue
				}
				if len(sges) != 1 || sges[0].Addr != w.wrid {
					t.Errorf("receive %d with SGEs %+v", w.wrid, sges)
				}
				taken[w.wrid].Add(1)
				left.Add(-1)
				h.held = false
			}
		})
	}
	wg.Go(func() {
		for k := 0; left.Load() > 0; k++ {
			err := r.Modify(provider.SRQAttr{MaxWR: 4 << (k % 5), Limit: k % 4}, srqMask)
			if err != nil && provider.Errno(err) != syscall.EINVAL { // more are posted
				t.Errorf("Modify: %v", err)
			}
			if a, err := r.Query(); err != nil || a.MaxWR < 4 || a.Limit > a.MaxWR {
				t.Errorf("Query: %+v, %v", a, err)
			}
			if err := r.Close(); provider.Errno(err) != syscall.EBUSY {
				t.Errorf("Close: %v", err)
			}
			runtime.Gosched()
		}
	})
	wg.Wait()
	for id := range taken {
		if n := taken[id].Load(); n != 1 {
			t.Fatalf("receive %d was taken %d times", id, n)
		}
	}
}
