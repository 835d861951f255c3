package engine

import (
	"github.com/govs-rdma/govs/provider"

	"github.com/govs-rdma/govs/provider/engine/internal/memory"
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
