//go:build cgo && linux && !nokernel

package kernel

import (
	"cmp"
	"slices"
	"sync"

	"github.com/govs-rdma/govs/provider"
)

// siw loses completions when a connection ends, and makes others twice
// (kernel-notes/siw-no-flush.md). The contract says one for each signalled work request. So the
// work requests that are given to siw are written down, with numbers for their WRIDs, by which
// their completions are recognised: one of an unknown number is a second one and is dropped, and
// what is still written down when the QP is in the error state, where nothing completes any
// more, is completed as flushed here.

// A workClass has work requests that complete in the order in which they were posted.
type workClass uint64

const (
	classSend workClass = iota // Sends and Writes
	classRead                  // Reads, which the peer's answers complete
	classRecv                  // receives
	classes
)

const classBits = 2

// workLog has the work requests of a QP that siw has not completed.
type workLog struct {
	mu      sync.Mutex
	classes [classes]workFIFO
	posted  uint64 // how many, for the order between classes
}

// work is one of them.
type work struct {
	wrid     uint64
	order    uint64 // workLog.posted before it
	opcode   provider.WCOpcode
	signaled bool // completes if it does not fail, too
	done     bool // has completed, or the queue has not taken it after all
}

// workFIFO has work requests of one class. The number of the first one is first.
type workFIFO struct {
	first uint64
	head  int // of buf
	buf   []work
}

func (f *workFIFO) waiting() []work { return f.buf[f.head:] }

// push adds a work request and returns its number. It allocates only while the log grows.
func (f *workFIFO) push(w work) uint64 {
	if len(f.buf) == cap(f.buf) && f.head > len(f.buf)/2 {
		f.buf = f.buf[:copy(f.buf, f.buf[f.head:])]
		f.head = 0
	}
	f.buf = append(f.buf, w)
	return f.first + uint64(len(f.waiting())) - 1
}

// drop takes n work requests off the front.
func (f *workFIFO) drop(n int) {
	f.head += n
	f.first += uint64(n)
	if f.head == len(f.buf) {
		f.buf, f.head = f.buf[:0], 0
	}
}

// trim takes what is done off the front.
func (f *workFIFO) trim() {
	for len(f.waiting()) > 0 && f.waiting()[0].done {
		f.drop(1)
	}
}

// add writes a work request down and returns the WRID for siw. places is a number of work requests
// that siw can have under way: what is unsignalled and was posted longer ago is complete.
func (l *workLog) add(class workClass, w work, places int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.order = l.posted
	l.posted++
	f := &l.classes[class]
	if waiting := f.waiting(); len(waiting) > places && !waiting[0].signaled {
		waiting[0].done = true
		f.trim()
	}
	return f.push(w)<<classBits | uint64(class)
}

// refuse notes that the queue has not taken the work request with this WRID.
func (l *workLog) refuse(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f, i := l.find(id); f != nil {
		f.waiting()[i].done = true
		f.trim()
	}
}

// find returns where the work request with this WRID of siw is, nil if there is none.
func (l *workLog) find(id uint64) (f *workFIFO, i int) {
	class := workClass(id & (1<<classBits - 1))
	if class >= classes {
		return nil, 0
	}
	f = &l.classes[class]
	if i := id>>classBits - f.first; i < uint64(len(f.waiting())) && !f.waiting()[i].done {
		return f, int(i)
	}
	return nil, 0
}

// complete returns the work request that a completion of siw is for, and forgets it and the
// unsignalled ones before it. It reports whether there was one.
func (l *workLog) complete(id uint64) (w work, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, i := l.find(id)
	if f == nil {
		return work{}, false
	}
	waiting := f.waiting()
	w = waiting[i]
	waiting[i].done = true
	for j := i - 1; j >= 0 && !waiting[j].done; j-- {
		waiting[j].done = !waiting[j].signaled
	}
	f.trim()
	return w, true
}

// lost returns the signalled work requests of the classes from first to last, in the order of
// their posting, and forgets all of these classes.
func (l *workLog) lost(first, last workClass) []work {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost []work
	for c := first; c <= last; c++ {
		f := &l.classes[c]
		for _, w := range f.waiting() {
			if w.signaled && !w.done {
				lost = append(lost, w)
			}
		}
		f.drop(len(f.waiting()))
	}
	slices.SortFunc(lost, func(a, b work) int { return cmp.Compare(a.order, b.order) })
	return lost
}

// sendClass returns the class of a work request for the send queue.
func sendClass(op provider.WROpcode) workClass {
	if op == provider.WRRDMARead {
		return classRead
	}
	return classSend
}

// mostReads is more than siw has of outbound Reads at a time.
const mostReads = 256

// logSend writes wr, the last work request of the batch, down if the device is siw. The caller has
// sqMu.
func (q *qp) logSend(wr *provider.SendWR) {
	if q.log == nil {
		return
	}
	id := q.log.add(sendClass(wr.Opcode), work{
		wrid: wr.WRID, opcode: wcOpcode(wr.Opcode),
		signaled: q.init.SQSigAll || wr.Flags&provider.SendSignaled != 0,
	}, q.init.Cap.MaxSendWR+mostReads)
	q.sq.SetID(id)
	q.sqIDs = append(q.sqIDs, id)
}

// logRecv is logSend for a receive. The caller has rqMu.
func (q *qp) logRecv(wr *provider.RecvWR) {
	if q.log == nil {
		return
	}
	id := q.log.add(classRecv, work{wrid: wr.WRID, opcode: provider.WCRecv, signaled: true}, q.init.Cap.MaxRecvWR)
	q.rq.SetID(id)
	q.rqIDs = append(q.rqIDs, id)
}

// refuse notes which of the last batch the queue has not taken. It empties ids.
func (q *qp) refuse(ids *[]uint64, taken int) {
	if q.log == nil {
		return
	}
	for _, id := range (*ids)[taken:] {
		q.log.refuse(id)
	}
	*ids = (*ids)[:0]
}

// recoverSends completes as flushed what siw has lost of the send queue. The QP is settled, and the
// caller has sqMu, so that nothing is being posted.
func (q *qp) recoverSends() {
	if q.log == nil || q.sendsRecovered {
		return
	}
	q.sendsRecovered = true
	q.init.SendCQ.(*cq).recover(q, classSend, classRead)
}

// recoverRecvs is recoverSends for the receive queue and rqMu.
func (q *qp) recoverRecvs() {
	if q.log == nil || q.recvsRecovered {
		return
	}
	q.recvsRecovered = true
	q.init.RecvCQ.(*cq).recover(q, classRecv, classRecv)
}

// recoverAll recovers both queues. The caller has the lock of neither.
func (q *qp) recoverAll() {
	q.sqMu.Lock()
	q.recoverSends()
	q.sqMu.Unlock()
	q.rqMu.Lock()
	q.recoverRecvs()
	q.rqMu.Unlock()
}

// recover completes what is left in the log of a QP, after all that siw has completed.
func (q *cq) recover(from *qp, first, last workClass) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	q.drain()
	lost := from.log.lost(first, last)
	for _, w := range lost {
		q.drained = append(q.drained, provider.WC{
			WRID: w.wrid, Status: provider.WCWRFlushErr, Opcode: w.opcode, QPN: from.qpn,
		})
	}
	if len(lost) > 0 {
		q.raise()
	}
}

// drain takes all completions that are in C. The caller has pollMu.
func (q *cq) drain() {
	for {
		n, err := q.c.Poll(q.batch, pollBatch)
		if err != nil || n == 0 {
			return // an error is there for the next Poll, too
		}
		for i := range n {
			var wc provider.WC
			if q.takeWC(&wc, q.batch.At(i)) {
				q.drained = append(q.drained, wc)
			}
		}
	}
}

// track has the CQ recognise the completions of a QP by its log.
func (q *cq) track(of *qp) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.logs == nil {
		q.logs = map[uint32]*qp{}
	}
	if old := q.logs[of.qpn]; old != nil && old != of {
		q.drain() // the number is that of a QP that is just being destroyed
	}
	q.logs[of.qpn] = of
}

// untrack undoes track, after the QP is destroyed in C.
func (q *cq) untrack(of *qp) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.logs[of.qpn] == of {
		q.drain()
		delete(q.logs, of.qpn)
	}
}
