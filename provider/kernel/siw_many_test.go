//go:build cgo && linux && !nokernel

package kernel

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// resources returns the kernel's numbers of CQs and QPs.
func resources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	if err != nil {
		t.Fatalf("rdma resource show: %v: %s", err, out)
	}
	found := regexp.MustCompile(`cq \d+ qp \d+`).FindString(string(out))
	if found == "" {
		t.Fatalf("rdma resource show: %s", out)
	}
	return found
}

// More queues than libsiw alone can create, made by several goroutines at once, with sizes that
// leave gaps between their pages' keys. See siwkeys.go.
func testManyQueues(t *testing.T) { testQueues(t, 100) }

// testQueues makes goroutines create each CQs and QPs each, of up to 512 entries.
func testQueues(t *testing.T, each int) {
	before := resources(t)
	s := newSide(t)
	const makers = 5
	var mu sync.Mutex
	var cqs, qps []closer
	var wg sync.WaitGroup
	for m := range makers {
		wg.Go(func() {
			for i := range each {
				n := 1 << ((m + i) % 10)
				cq, err := s.dev.CreateCQ(provider.CQInitAttr{CQE: n})
				if err != nil {
					t.Errorf("CQ %d of goroutine %d: %v", i, m, err)
					return
				}
				init := provider.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: provider.QPCap{MaxSendWR: n, MaxRecvWR: (n + 7) / 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
				qp, err := s.pd.CreateQP(init)
				if err != nil {
					t.Errorf("QP %d of goroutine %d: %v", i, m, err)
				}
				mu.Lock()
				cqs = append(cqs, cq)
				if err == nil {
					qps = append(qps, qp)
				}
				mu.Unlock()
				if i%7 == 3 && err == nil { // occasionally destroy one
					closeAll(t, qp)
				}
			}
		})
	}
	wg.Wait()
	if len(cqs) != makers*each || len(qps) != makers*each {
		t.Errorf("%d CQs and %d QPs", len(cqs), len(qps))
	}
	closeAll(t, qps...)
	closeAll(t, cqs...)
	closeAll(t, s.mr, s.cq, s.ch, s.pd, s.ec, s.dev)
	if after := resources(t); after != before {
		t.Errorf("the kernel has %s before, %s after", before, after)
	}
}

func testEnds(t *testing.T, pairs int) {
	before := resources(t)
	var sides []*side
	for i := range pairs {
		a, p := newSide(t), newSide(t)
		establish(t, a, p)
		sides = append(sides, a, p)
		a.buf[0] = byte(i)
		p.recv(provider.RecvWR{SGList: []provider.SGE{p.sge(0, 1)}})
	}
	for i := 0; i < len(sides); i += 2 {
		a := sides[i]
		a.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 1)}})
	}
	for i := 1; i < len(sides); i += 2 {
		p := sides[i]
		if wc := p.poll(1)[0]; wc.Status != provider.WCSuccess || p.buf[0] != byte(i/2) {
			t.Errorf("connection %d: %+v, byte %d", i/2, wc, p.buf[0])
		}
	}
	for _, s := range sides {
		closeAll(t, s.qp, s.id, s.mr, s.cq, s.ch, s.pd, s.ec, s.dev)
	}
	if after := resources(t); after != before {
		t.Errorf("the kernel has %s before, %s after", before, after)
	}
}

// Go's runtime sends SIGURG to its threads at any time. The kernel would break off a TCP handshake
// because of it and begin another, which siw's listener does not survive.
func testSignals(t *testing.T) {
	a, p := newSide(t), newSide(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
			}
			for _, task := range tasks {
				if tid, err := strconv.Atoi(task.Name()); err == nil {
					_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // an error means that the thread has ended
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Microsecond):
			}
		}
	})
	defer func() {
		close(stop)
		wg.Wait()
	}()
	for range 40 {
		establish(t, a, p)
		closeAll(t, a.qp, a.id)
		p.want("after the peer's QP was closed", provider.CMDisconnected)
		closeAll(t, p.qp, p.id)
	}
}

// A QP may have no receives. libsiw alone cannot make one.
func testNoReceiveQueue(t *testing.T) {
	s := newSide(t)
	qp := testkit.Must(s.pd.CreateQP(provider.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}))(t)
	closeAll(t, qp)
	_, err := s.pd.CreateQP(provider.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq})
	wantErrno(t, "a QP without queues", err, syscall.EINVAL)

	verbs, c := s.pd.(*pd).c, s.cq.(*cq).c
	_, err = verbs.CreateQP(&ibv.QPInitAttr{SendCQ: c, RecvCQ: c, Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}, Type: uint32(provider.QPTypeRC)})
	if err != syscall.EINVAL {
		t.Errorf("libsiw: %v", err)
	}
}
