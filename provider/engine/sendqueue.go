package engine

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// sendWQE is a work request in the send queue. The poster fills it. After that the transmit side
// reads it, and sendQueue.done guards finished and status.
type sendWQE struct {
	wrid     uint64
	raddr    uint64
	rkey     uint32
	immOrInv uint32 // the immediate data, or the STag to invalidate: the peer's, or with WRLocalInv ours
	length   uint32 // bytes of the message
	op       provider.WROpcode
	flags    provider.SendFlags
	nsge     uint16

	finished bool              // one of flaggedOps is over, and waits for its turn to be reported
	status   provider.WCStatus // why it failed, if it did
}

// sendQueue is a ring of WQEs between three indexes that run freely:
//
//	free <= head <= (next of the transmit side) <= tail
//	head <= out
//
// The WQEs from free to head were unsignalled and successful. Their places become free when a later
// WQE is reported, on which the man page of ibv_post_send makes programs rely. They also become
// free when a poster finds the queue full, as with siw and rxe, because Drain and Shutdown need a
// place in a queue of unsignalled work.
type sendQueue struct {
	wqes      []sendWQE
	sges      []provider.SGE
	inline    []byte
	atomics   []atomicOperands // made with the first atomic operation
	memory    *memoryQueue     // made with the first work on our own memory
	maxSGE    int
	maxInline int

	mu   sched.Mutex[locks.SendPosting] // guards posting
	tail sched.Uint32                   // written under mu, after the WQE

	deferral atomic.Pointer[deferral] // nil before the first post

	done sched.Mutex[locks.SendDone] // guards completing
	out  uint32                      // Sends and Writes before this one are over
	head uint32                      // oldest WQE not reported
	free sendFree                    // written under done
}

// sendFree holds the index free of a send queue and the number of completions that the queue has
// reported. Both are in one word, so that a small Write pays for one atomic operation.
type sendFree struct{ v atomic.Uint64 }

// Load returns the index.
func (f *sendFree) Load() uint32 { return uint32(f.v.Load()) }

// Store sets the index.
func (f *sendFree) Store(i uint32) { f.v.Store(f.v.Load()&^(1<<32-1) | uint64(i)) }

// report sets the index, and counts a completion.
func (f *sendFree) report(i uint32) { f.v.Store((f.v.Load()>>32+1)<<32 | uint64(i)) }

// reports returns the number of completions, which wraps.
func (f *sendFree) reports() uint32 { return uint32(f.v.Load() >> 32) }

// grow makes the ring if there is none, and reports whether it did. Before the first post the queue
// has no places, so it is full, and posting checks for a ring only where it would fail. mu is held;
// all others look at the ring only after they have read tail.
func (s *sendQueue) grow(places uint32) bool {
	if s.wqes != nil {
		return false
	}
	n := int(places)
	s.wqes = make([]sendWQE, n)
	s.sges = make([]provider.SGE, n*s.maxSGE)
	s.inline = make([]byte, n*s.maxInline)
	s.deferral.Store(new(deferral))
	return true
}

func (s *sendQueue) at(i uint32) *sendWQE { return &s.wqes[i&uint32(len(s.wqes)-1)] }

// sgeRoom returns the place for the SGEs of WQE i.
func (s *sendQueue) sgeRoom(i uint32) []provider.SGE {
	at := int(i&uint32(len(s.wqes)-1)) * s.maxSGE
	return s.sges[at : at+s.maxSGE]
}

// inlineRoom returns the place for the inline payload of WQE i.
func (s *sendQueue) inlineRoom(i uint32) []byte {
	at := int(i&uint32(len(s.wqes)-1)) * s.maxInline
	return s.inline[at : at+s.maxInline]
}

// full reports whether there is no place for a WQE at tail. s.mu is held.
func (s *sendQueue) full(tail uint32) bool { return tail-s.free.Load() == uint32(len(s.wqes)) }

// makeRoom makes the ring if there is none, or frees the places of unsignalled WQEs that are over.
// It reports whether there is now a place for a WQE at tail. s.mu is held.
func (s *sendQueue) makeRoom(tail, places uint32) bool {
	if s.grow(places) {
		return true
	}
	s.done.Lock()
	s.free.Store(s.head)
	s.done.Unlock()
	return !s.full(tail)
}

// forget empties the queue without a completion. done is held.
func (s *sendQueue) forget() {
	for tail := s.tail.Load(); s.head != tail; s.head++ {
		s.dropMemory(s.head)
	}
	s.out = s.head // for the next connection
	s.free.Store(s.head)
}

// isWrite reports whether the WQE's first message is a Write.
func (w *sendWQE) isWrite() bool {
	return w.op == provider.WRRDMAWrite || w.op == provider.WRRDMAWriteWithImm
}

// isPlain reports whether wr is a Send or Write of one SGE, as most are, which therefore passes
// checkSend.
func (s *sendQueue) isPlain(wr *provider.SendWR) bool {
	const others = ^(provider.SendSignaled | provider.SendSolicited | provider.SendFence)
	return (wr.Opcode == provider.WRRDMAWrite || wr.Opcode == provider.WRSend) &&
		wr.Flags&others == 0 && len(wr.SGList) == 1 && s.maxSGE > 0 && len(wr.Inline) == 0
}

// addRest stores in WQE i the fields that a plain wr does not use.
func (s *sendQueue) addRest(i uint32, wr *provider.SendWR) {
	if len(wr.Inline) > 0 {
		copy(s.inlineRoom(i), wr.Inline)
	}
	switch {
	case wr.Opcode == provider.WRRDMAWriteWithImm || wr.Opcode == provider.WRSendWithImm:
		s.at(i).immOrInv = wr.Imm
	case wr.Opcode == provider.WRBindMW || wr.Opcode == provider.WRLocalInv || wr.Opcode == provider.WRRegMR:
		s.addMemory(i, wr)
	case atomicOps.has(wr.Opcode):
		s.addAtomic(i, wr)
	}
}

// opRegMR stands for provider.WRRegMR in the send queue, whose opcodes are below 32.
const opRegMR provider.WROpcode = 31

// opSet is a set of opcodes, which are below 32.
type opSet uint32

func (s opSet) has(op provider.WROpcode) bool { return s>>(op&31)&1 != 0 }

// shortOps are the Sends and Writes that consist of one message.
const shortOps opSet = 1<<provider.WRRDMAWrite | 1<<provider.WRSend | 1<<provider.WRSendWithInv

// atomicOps are the atomic operations; answeredOps are the operations that a response of the peer
// ends.
const (
	atomicOps opSet = 1<<provider.WRAtomicCmpAndSwp | 1<<provider.WRAtomicFetchAdd |
		1<<provider.WRMaskedAtomicCmpAndSwp | 1<<provider.WRMaskedAtomicFetchAdd
	answeredOps opSet = 1<<provider.WRRDMARead | atomicOps
)

// memoryOps are the operations on our own memory; flaggedOps are all operations that end with
// something other than their last byte.
const (
	memoryOps  opSet = 1<<provider.WRBindMW | 1<<provider.WRLocalInv | 1<<opRegMR
	flaggedOps       = answeredOps | memoryOps
)

// atomicOperands are the additional operands of an atomic operation's WQE.
type atomicOperands struct {
	compareAdd, swap uint64
	addMask          uint64 // FetchAdd: zero for one field of 64 bits
	compareMask      uint64
	swapMask         uint64
}

// addAtomic stores the operands of wr beside WQE i.
func (s *sendQueue) addAtomic(i uint32, wr *provider.SendWR) {
	if s.atomics == nil {
		s.atomics = make([]atomicOperands, len(s.wqes))
	}
	o := atomicOperands{compareAdd: wr.CompareAdd, swap: wr.Swap, compareMask: ^uint64(0),
		swapMask: ^uint64(0)}
	switch wr.Opcode {
	case provider.WRMaskedAtomicFetchAdd:
		o.addMask = wr.CompareAddMask
	case provider.WRMaskedAtomicCmpAndSwp:
		o.compareMask, o.swapMask = wr.CompareAddMask, wr.SwapMask
	}
	*s.atomicAt(i) = o
}

func (s *sendQueue) atomicAt(i uint32) *atomicOperands { return &s.atomics[i&uint32(len(s.atomics)-1)] }

// memoryQueue is what a send queue has in addition for work on our own memory.
type memoryQueue struct {
	operands []memory.Work // of each WQE
	posting  memory.Work   // guarded by mu: of the work being posted
}

// addMemory stores the operands that checkMemory left beside WQE i.
func (s *sendQueue) addMemory(i uint32, wr *provider.SendWR) {
	if wr.Opcode == provider.WRLocalInv {
		return
	}
	if wr.Opcode == provider.WRRegMR {
		s.at(i).op = opRegMR
	}
	s.putMemory(i, wr.RKey)
}

// putMemory moves the operands of the work being posted beside WQE i. From now on the window or
// region returns its new key.
func (s *sendQueue) putMemory(i, key uint32) {
	s.memory.posting.Posted(key)
	*s.memoryAt(i) = s.memory.posting
	s.memory.posting = memory.Work{}
}

func (s *sendQueue) memoryAt(i uint32) *memory.Work {
	all := s.memory.operands
	return &all[i&uint32(len(all)-1)]
}

// dropMemory drops the operands of WQE i, if it is work on our own memory that will not be done any
// more. Its place must not be free yet.
func (s *sendQueue) dropMemory(i uint32) {
	if op := s.at(i).op; op == provider.WRBindMW || op == opRegMR {
		*s.memoryAt(i) = memory.Work{}
	}
}
