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
	posted  uint64 // how many, which is the number of the next one
}

// work is one of them.
type work struct {
	wrid     uint64
	number   uint64 // in the order of posting, over all classes
	opcode   provider.WCOpcode
	signaled bool // completes if it does not fail, too
	done     bool // has completed, or the queue has not taken it after all
}

// workFIFO has work requests of one class, by rising number.
type workFIFO struct {
	head int // of buf
	buf  []work
}

func (f *workFIFO) waiting() []work { return f.buf[f.head:] }

// push adds a work request. It allocates only while the log grows.
func (f *workFIFO) push(w work, places int) {
	if len(f.buf) == cap(f.buf) {
		f.compact(places)
		if len(f.buf) > cap(f.buf)/2 { // or the next compact would come soon
			f.buf = slices.Grow(f.buf, max(len(f.buf), postBatch))
		}
	}
	f.buf = append(f.buf, w)
}

// compact takes out what is done, and what is unsignalled and complete because of its age. One
// that siw has lost, or whose completion the program leaves in the CQ, may be before these.
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

// trim takes what is done off both ends: completed at the front, refused at the back.
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

// find returns the work request with this number, nil if there is none that is not done, and its
// place in waiting.
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

// add writes a work request down and returns the WRID for siw. places is a number of work requests
// that siw can have under way: what is unsignalled and was posted longer ago is complete.
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

// refuse notes that the queue has not taken the work request with this WRID.
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

// split returns what a WRID of siw's is made of, nil if no work request has such a one.
func (l *workLog) split(id uint64) (f *workFIFO, number uint64) {
	class := workClass(id & (1<<classBits - 1))
	if class >= classes {
		return nil, 0
	}
	return &l.classes[class], id >> classBits
}

// complete returns the work request that a completion of siw is for, and forgets it and the
// unsignalled ones before it. It reports whether there was one.
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

// sendClass returns the class of a work request for the send queue.
func sendClass(op provider.WROpcode) workClass {
	if op == provider.WRRDMARead {
		return classRead
	}
	return classSend
}

// mostReads is more than siw has of outbound Reads at a time.
const mostReads = 256

// ReadsUnderWay implements provider.ReadCounter.
func (q *qp) ReadsUnderWay() int {
	if q.log == nil {
		return 0
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.empty || q.ended.Load() {
		return 0 // what is posted completes as flushed
	}
	return q.log.signaled(classRead)
}

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
	id := q.log.add(classRecv, work{wrid: wr.WRID, opcode: provider.WCRecv, signaled: true},
		q.init.Cap.MaxRecvWR)
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
