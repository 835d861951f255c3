package engine

import "github.com/govs-rdma/govs/provider"

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
