//go:build cgo && linux && !nokernel

package kernel

import (
	"cmp"
	"slices"
	"sync"

	"github.com/govs-rdma/govs/provider"
)

// When a connection ends, siw loses some completions and duplicates others
// (kernel-notes/siw-no-flush.md). The contract requires exactly one for each signalled work
// request. So the provider logs the work requests that it gives to siw, and numbers them in their
// WRIDs. A completion with an unknown number is a duplicate and is dropped. Once the QP is in the
// error state, nothing more completes, so the work requests still in the log are completed as
// flushed.

// A workClass is a set of work requests that complete in the order of posting.
type workClass uint64

const (
	classSend workClass = iota // Sends and Writes
	classRead                  // Reads; the peer's answers complete them
	classRecv                  // receives
	classes
)

const classBits = 2

// workLog holds the work requests of a QP that siw has not completed.
type workLog struct {
	mu      sync.Mutex
	classes [classes]workFIFO
	posted  uint64 // work requests so far; also the number of the next one
}

// work is a logged work request.
type work struct {
	wrid     uint64
	number   uint64 // in the order of posting, over all classes
	opcode   provider.WCOpcode
	signaled bool // completes even if it succeeds
	done     bool // completed, or refused by the queue
}

// workFIFO holds work requests of one class, by ascending number.
type workFIFO struct {
	head int // of buf
	buf  []work
}

func (f *workFIFO) waiting() []work { return f.buf[f.head:] }

// push adds a work request. It allocates only while the log grows.
func (f *workFIFO) push(w work, places int) {
	if len(f.buf) == cap(f.buf) {
		f.compact(places)
		if len(f.buf) > cap(f.buf)/2 { // otherwise the next compact would come soon
			f.buf = slices.Grow(f.buf, max(len(f.buf), postBatch))
		}
	}
	f.buf = append(f.buf, w)
}

// compact removes work requests that are done, and unsignalled ones that must be complete because
// of their age. These may follow one that is still open: one that siw has lost, or whose completion
// the program leaves in the CQ.
func (f *workFIFO) compact(places int) {
	waiting := f.waiting()
	kept := f.buf[:0]
	for i, w := range waiting {
		if !w.done && (w.signaled || i >= len(waiting)-places) {
			kept = append(kept, w)
		}
	}
	f.buf, f.head = kept, 0
}

// trim removes done work requests from both ends: completed ones at the front, refused ones at the
// back.
func (f *workFIFO) trim() {
	for f.head < len(f.buf) && f.buf[f.head].done {
		f.head++
	}
	for f.head < len(f.buf) && f.buf[len(f.buf)-1].done {
		f.buf = f.buf[:len(f.buf)-1]
	}
	if f.head == len(f.buf) {
		f.buf, f.head = f.buf[:0], 0
	}
}

// find returns the open work request with this number and its index in waiting, or nil if there is
// none.
func (f *workFIFO) find(number uint64) (w *work, i int) {
	waiting := f.waiting()
	i, found := slices.BinarySearchFunc(waiting, number, func(w work, number uint64) int {
		return cmp.Compare(w.number, number)
	})
	if !found || waiting[i].done {
		return nil, 0
	}
	return &waiting[i], i
}

// add logs a work request and returns the WRID for siw. places is an upper bound of the work
// requests that siw can have in progress, so unsignalled ones posted longer ago are complete.
func (l *workLog) add(class workClass, w work, places int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.number = l.posted
	l.posted++
	f := &l.classes[class]
	for waiting := f.waiting(); len(waiting) > places && !waiting[0].signaled; waiting = f.waiting() {
		waiting[0].done = true
		f.trim()
	}
	f.push(w, places)
	return w.number<<classBits | uint64(class)
}

// queueOf returns the CQ for the completion with this WRID of siw.
func (q *qp) queueOf(id uint64) *cq {
	if workClass(id&(1<<classBits-1)) == classRecv {
		return q.init.RecvCQ.(*cq)
	}
	return q.init.SendCQ.(*cq)
}

// refuse records that the queue has refused the work request with this WRID.
func (l *workLog) refuse(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, number := l.split(id)
	if f == nil {
		return
	}
	if w, _ := f.find(number); w != nil {
		w.done = true
		f.trim()
	}
}

// split returns the class's queue and the number that form a WRID of siw, or nil if the WRID is not
// valid.
func (l *workLog) split(id uint64) (f *workFIFO, number uint64) {
	class := workClass(id & (1<<classBits - 1))
	if class >= classes {
		return nil, 0
	}
	return &l.classes[class], id >> classBits
}

// complete returns the work request of a completion from siw, and whether the log had it. It
// removes this request and the unsignalled ones before it.
func (l *workLog) complete(id uint64) (w work, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, number := l.split(id)
	if f == nil {
		return work{}, false
	}
	found, i := f.find(number)
	if found == nil {
		return work{}, false
	}
	w = *found
	found.done = true
	waiting := f.waiting()
	for j := i - 1; j >= 0 && !waiting[j].done; j-- {
		waiting[j].done = !waiting[j].signaled
	}
	f.trim()
	return w, true
}

// lost returns the signalled work requests of the classes from first to last, in the order of
// posting, and empties these classes.
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
		f.buf, f.head = f.buf[:0], 0
	}
	slices.SortFunc(lost, func(a, b work) int { return cmp.Compare(a.number, b.number) })
	return lost
}

// signaled returns how many signalled work requests of a class have not completed.
func (l *workLog) signaled(class workClass) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.classes[class].waiting() {
		if w.signaled && !w.done {
			n++
		}
	}
	return n
}

// sendClass returns the class of an operation of the send queue.
func sendClass(op provider.WROpcode) workClass {
	if op == provider.WRRDMARead {
		return classRead
	}
	return classSend
}

// mostReads is more than the number of outbound Reads that siw allows at the same time.
const mostReads = 256

// ReadsUnderWay implements provider.ReadCounter.
func (q *qp) ReadsUnderWay() int {
	if q.log == nil {
		return 0
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.empty || q.ended.Load() {
		return 0 // later posts complete as flushed
	}
	return q.log.signaled(classRead)
}

// logSend logs wr, the last work request of the batch, if the device is siw. The caller has sqMu.
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

// logRecv logs wr, the last receive of the batch, if the device is siw. The caller has rqMu.
func (q *qp) logRecv(wr *provider.RecvWR) {
	if q.log == nil {
		return
	}
	id := q.log.add(classRecv, work{wrid: wr.WRID, opcode: provider.WCRecv, signaled: true},
		q.init.Cap.MaxRecvWR)
	q.rq.SetID(id)
	q.rqIDs = append(q.rqIDs, id)
}

// refuse records which requests of the last batch the queue has refused. It empties ids.
func (q *qp) refuse(ids *[]uint64, taken int) {
	if q.log == nil {
		return
	}
	for _, id := range (*ids)[taken:] {
		q.log.refuse(id)
	}
	*ids = (*ids)[:0]
}

// recoverSends completes as flushed the sends that siw has lost. The QP is settled, and the caller
// has sqMu, so nothing is being posted.
func (q *qp) recoverSends() {
	if q.log == nil || q.sendsRecovered {
		return
	}
	q.sendsRecovered = true
	q.init.SendCQ.(*cq).recover(q, classSend, classRead)
}

// recoverRecvs completes as flushed the receives that siw has lost. The QP is settled, and the
// caller has rqMu.
func (q *qp) recoverRecvs() {
	if q.log == nil || q.recvsRecovered {
		return
	}
	q.recvsRecovered = true
	q.init.RecvCQ.(*cq).recover(q, classRecv, classRecv)
}

// recoverAll recovers both queues. The caller has neither queue's lock.
func (q *qp) recoverAll() {
	q.sqMu.Lock()
	q.recoverSends()
	q.sqMu.Unlock()
	q.rqMu.Lock()
	q.recoverRecvs()
	q.rqMu.Unlock()
}

// recover completes the work left in the log of a QP, after all completions of siw.
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

// drain takes all completions out of C. The caller has pollMu.
func (q *cq) drain() {
	for {
		n, err := q.c.Poll(q.batch, pollBatch)
		if err != nil || n == 0 {
			return // the next Poll gets the same error
		}
		for i := range n {
			var wc provider.WC
			if q.takeWC(&wc, q.batch.At(i)) {
				q.drained = append(q.drained, wc)
			}
		}
	}
}

// track makes the CQ match the completions of a QP with its log.
func (q *cq) track(of *qp) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.logs == nil {
		q.logs = map[uint32]*qp{}
	}
	if old := q.logs[of.qpn]; old != nil && old != of {
		q.drain() // a QP that is being destroyed has the same number
	}
	q.logs[of.qpn] = of
}

// untrack undoes track, after C has destroyed the QP.
func (q *cq) untrack(of *qp) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.logs[of.qpn] == of {
		q.drain()
		delete(q.logs, of.qpn)
	}
}
