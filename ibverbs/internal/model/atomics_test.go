package model

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/ibverbs"
)

// atomicOps are the atomic operations, masked ones among them.
var atomicOps = []ibverbs.WROpcode{ibverbs.WRAtomicFetchAdd, ibverbs.WRAtomicCmpAndSwp, ibverbs.WRMaskedAtomicFetchAdd, ibverbs.WRMaskedAtomicCmpAndSwp}

const wordOctets = 8

// atomic makes wr an operation on a word of the peer.
func (r *run) atomic(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	p := l.peer()
	j.answered, j.n = true, wordOctets
	at, found := r.target(d, l, wordOctets, remoteAtomic, false)
	if !found {
		return false
	}
	var ok bool
	if wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, wordOctets, l.mostSGE(true), localWrite, false); !ok {
		return false
	}
	for _, u := range j.local {
		u.read = true
	}
	u := at.hold(l, wordOctets, remoteAtomic)
	j.remote = []*use{u}
	was := binary.NativeEndian.Uint64(p.s.want[u.off:])
	wr.RemoteAddr, wr.RKey = at.addr, at.key
	wr.CompareAdd, wr.Swap = d.next(), d.next()
	// Of plain operations they mean nothing.
	wr.CompareAddMask, wr.SwapMask = one(d, []uint64{0, ^uint64(0), 1 << 63, 0x8000800080008000, d.next(), d.next()}), d.next()
	var becomes uint64
	switch j.op {
	case ibverbs.WRAtomicFetchAdd:
		becomes = was + wr.CompareAdd
	case ibverbs.WRMaskedAtomicFetchAdd:
		becomes = addFields(was, wr.CompareAdd, wr.CompareAddMask)
	default:
		compare, swap := ^uint64(0), ^uint64(0)
		if j.op == ibverbs.WRMaskedAtomicCmpAndSwp {
			compare, swap = wr.CompareAddMask, wr.SwapMask
		}
		if d.oneIn(2) { // the bits that count are alike
			wr.CompareAdd = was&compare | wr.CompareAdd&^compare
		}
		if becomes = was; (was^wr.CompareAdd)&compare == 0 {
			becomes = was&^swap | wr.Swap&swap
		}
	}
	j.wcop = ibverbs.WCCompSwap
	if j.op == ibverbs.WRAtomicFetchAdd || j.op == ibverbs.WRMaskedAtomicFetchAdd {
		j.wcop = ibverbs.WCFetchAdd
	}
	scatter(j.local, binary.NativeEndian.AppendUint64(nil, was))
	u.put(binary.NativeEndian.AppendUint64(nil, becomes))
	r.seen(j.op.String())
	return true
}

// addFields adds bit by bit: a carry ends behind each bit of ends, the highest one of a
// field (RFC 7306 section 5.1.1).
func addFields(a, b, ends uint64) (sum uint64) {
	carry := uint64(0)
	for i := range 64 {
		x, y := a>>i&1, b>>i&1
		sum |= (x ^ y ^ carry) << i
		carry = x&y | x&carry | y&carry
		if ends>>i&1 != 0 {
			carry = 0
		}
	}
	return sum
}
