package engine

import "github.com/govs-rdma/govs/provider"

// atomicOperands are what a WQE of an atomic operation has beside the others.
type atomicOperands struct {
	compareAdd, swap uint64
	addMask          uint64 // FetchAdd: zero for one field of 64 bits
	compareMask      uint64
	swapMask         uint64
}

// addAtomic puts the operands of wr beside WQE i.
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

// memoryOperands are what a WQE of a bind or a registration has beside the others. Its
// key is in sendWQE.rkey.
type memoryOperands struct {
	window *mw
	region *fastMR // instead of a window

	lkey         uint32 // of the region that the window is bound to
	addr, length uint64
	buf          []byte // what is registered
	access       provider.Access
}

// memoryQueue is what a send queue has beside its ring for such work.
type memoryQueue struct {
	operands []memoryOperands // of each WQE
	posting  memoryOperands   // of mu: of what is being posted
}

// addMemory puts what checkMemory has left beside WQE i, and has the window or region
// return its new key from now on.
func (s *sendQueue) addMemory(i uint32, wr *provider.SendWR) {
	switch wr.Opcode {
	case provider.WRLocalInv:
		return
	case provider.WRRegMR:
		s.at(i).op = opRegMR
		o := &s.memory.posting
		o.region.setPosted(wr.RKey, wr.Access, len(o.buf))
	default:
		s.memory.posting.window.posted.Store(wr.RKey)
	}
	s.putMemory(i)
}

// putMemory moves what is being posted beside WQE i.
func (s *sendQueue) putMemory(i uint32) {
	*s.memoryAt(i) = s.memory.posting
	s.memory.posting = memoryOperands{}
}

func (s *sendQueue) memoryAt(i uint32) *memoryOperands {
	all := s.memory.operands
	return &all[i&uint32(len(all)-1)]
}

// dropMemory drops what WQE i refers to, if it is work on our own memory, which is not to
// be done any more. Its place must not be free yet.
func (s *sendQueue) dropMemory(i uint32) {
	if op := s.at(i).op; op == provider.WRBindMW || op == opRegMR {
		*s.memoryAt(i) = memoryOperands{}
	}
}
