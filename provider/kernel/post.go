//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

func (q *qp) PostSend(wrs []provider.SendWR) (int, error) {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if err := q.usable(); err != nil {
		return 0, q.err("ibv_post_send", err)
	}
	if q.dev.siw && q.ended.Load() {
		n, err := q.flushSends(wrs)
		return n, q.err("ibv_post_send", err)
	}
	if !q.connected.Load() && !q.ended.Load() && !q.nowConnected() {
		// libsiw would queue the requests, fail to ring the doorbell, and never ring it again:
		// while the previous slot is occupied, it assumes that the kernel is at work. librxe queues
		// them too before it fails.
		return 0, q.err("ibv_post_send",
			fmt.Errorf("the QP is not connected; post after Dial or Accept has returned: %w",
				syscall.EINVAL))
	}
	done := 0
	for done < len(wrs) {
		q.sq.Reset()
		var refused error
		for i := done; i < len(wrs) && !q.sq.Full(); i++ {
			if refused = q.addSend(&wrs[i]); refused != nil {
				break
			}
			q.logSend(&wrs[i])
		}
		n, err := q.c.PostSend(q.sq)
		q.refuse(&q.sqIDs, n)
		if len(q.binding) > 0 {
			q.bound(n)
		}
		q.countSilent(wrs[done : done+n])
		done += n
		if err == syscall.ENOTCONN {
			q.end()
		}
		if err == syscall.ENOMEM && q.stuck() {
			err = provider.ErrNoneSignaled
		}
		err = whyNoPost(err, errSendFull)
		if err == nil {
			err = refused
		}
		if err != nil {
			return done, q.err("ibv_post_send", err)
		}
	}
	return done, nil
}

// nowConnected reports whether the QP is connected, after waiting for C calls in progress. The peer
// may have sent, and the program may answer, before rdma_accept returns here. On InfiniBand and
// RoCE the same can happen before rdma_get_cm_event returns, which connects the dialling side. The
// caller has sqMu.
func (q *qp) nowConnected() bool {
	i := q.id
	if i == nil {
		i = q.connector.Load()
	}
	if i == nil {
		return false
	}
	i.addrs(func(*rdmacm.ID) {}) // waits for the locks that are held during these calls
	return q.connected.Load()
}

// countSilent updates silent, the number of work requests posted since the last signalled one.
func (q *qp) countSilent(wrs []provider.SendWR) {
	for i := range wrs {
		if q.silent++; q.init.SQSigAll || wrs[i].Flags&provider.SendSignaled != 0 {
			q.silent = 0
		}
	}
}

// stuck reports whether a full send queue will stay full, because everything in it is unsignalled.
// Hardware libraries free places when they see a completion, and unsignalled work has none. siw
// frees a place when it starts the work, and rxe when the work is done.
func (q *qp) stuck() bool {
	return !q.dev.libsiw && !q.dev.rxe && q.silent >= q.init.Cap.MaxSendWR
}

const sendFlags = provider.SendFence | provider.SendSignaled | provider.SendSolicited | provider.SendInline

// addSend adds wr to the batch, or returns why it cannot be posted. It refuses only requests that
// the libraries would misread instead of refusing.
func (q *qp) addSend(wr *provider.SendWR) error {
	if wr.Opcode == provider.WRMaskedAtomicCmpAndSwp || wr.Opcode == provider.WRMaskedAtomicFetchAdd {
		return &provider.UnsupportedError{Feature: "masked atomic operations", Reason: "libibverbs has none"}
	}
	if wr.Opcode == provider.WRRegMR {
		return errFastReg
	}
	if wr.Opcode > provider.WRSendWithInv {
		return fmt.Errorf("%s can't be posted; use a constant of WROpcode: %w", wr.Opcode, syscall.EINVAL)
	}
	if unknown := wr.Flags &^ sendFlags; unknown != 0 {
		return fmt.Errorf("unknown flags %#x; use the constants of SendFlags: %w", uint32(unknown), syscall.EINVAL)
	}
	if wr.Flags&provider.SendInline != 0 {
		switch wr.Opcode {
		case provider.WRRDMARead, provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd:
			// siw would leave it at the head of its queue, and rxe would read the inline
			// data as scatter/gather entries.
			return fmt.Errorf("%s has no inline data; remove SendInline from Flags: %w", wr.Opcode, syscall.EINVAL)
		}
	}
	if q.dev.libsiw {
		if err := q.siwTakes(wr); err != nil {
			return err
		}
	}
	w := q.sq.Add(wr.WRID, uint32(wr.Opcode), uint32(q.flags(wr)))
	switch wr.Opcode {
	case provider.WRRDMAWrite, provider.WRRDMARead:
		w.SetRDMA(wr.RemoteAddr, wr.RKey)
	case provider.WRRDMAWriteWithImm:
		w.SetRDMA(wr.RemoteAddr, wr.RKey)
		w.SetImm(wr.Imm)
	case provider.WRSendWithImm:
		w.SetImm(wr.Imm)
	case provider.WRSendWithInv, provider.WRLocalInv:
		w.SetInvalidateRKey(wr.InvalidateRKey)
		if q.dev.libsiw && wr.Opcode == provider.WRSendWithInv {
			// libsiw reads the key from the rkey field of a Write, not from invalidate_rkey.
			w.SetRDMA(0, wr.InvalidateRKey)
		}
	case provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd:
		w.SetAtomic(wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.RKey)
	}
	var err error
	if wr.Opcode == provider.WRBindMW {
		err = q.addBind(w, wr)
	} else {
		err = q.addSource(wr)
	}
	if err == nil && wr.Opcode == provider.WRLocalInv {
		err = q.addInvalidate(wr.InvalidateRKey)
	}
	if err != nil {
		q.sq.Drop()
	}
	return err
}

// siwTakes returns why siw cannot process wr, or nil. siw refuses such a request only when it
// reaches the head of the queue, and then leaves it there with all work after it.
func (q *qp) siwTakes(wr *provider.SendWR) error {
	inline := wr.Flags&provider.SendInline != 0
	switch {
	case wr.Opcode == provider.WRSendWithImm || wr.Opcode == provider.WRRDMAWriteWithImm:
		return errSiwImm
	case wr.Opcode == provider.WRAtomicCmpAndSwp || wr.Opcode == provider.WRAtomicFetchAdd:
		return errSiwAtomic
	case wr.Opcode == provider.WRSendWithInv && inline:
		return fmt.Errorf("siw has no inline data in a Send with Invalidate; name the data with an SGE: %w",
			syscall.EINVAL)
	case wr.Opcode == provider.WRRDMARead && !q.ended.Load() && q.ord() == 0:
		return fmt.Errorf("the connection allows no RDMA Read (ORD 0); raise ConnParam.InitiatorDepth here and "+
			"ResponderResources at the peer: %w", syscall.EINVAL)
	}
	return nil
}

var (
	errSiwImm    = fmt.Errorf("siw has no immediate data; send it as the payload of a Send: %w", syscall.EINVAL)
	errSiwAtomic = fmt.Errorf("siw has no atomic operations; the engine has them at both ends: %w", syscall.EINVAL)
)

// ord returns the number of concurrent Reads that the connection allows. The QP is connected and
// the caller has sqMu.
func (q *qp) ord() int {
	if q.maxReads < 0 {
		a, _, err := q.c.Query(uint32(provider.QPAttrMaxRdAtomic))
		if err != nil {
			return 1 // the limit is unknown, but not 0
		}
		q.maxReads = int(a.MaxRdAtomic)
		if q.dev.siw {
			q.maxReads = int(a.MaxDestRdAtomic) // siw swaps the two, see QP.Query
		}
	}
	return q.maxReads
}

// flags returns the flags of wr. It drops the fence of a Read, which siw refuses (see siwTakes). On
// iWARP that fence has no effect: Reads are answered in order, and a Read uses no local memory
// before its answer.
func (q *qp) flags(wr *provider.SendWR) provider.SendFlags {
	if q.dev.siw && wr.Opcode == provider.WRRDMARead {
		return wr.Flags &^ provider.SendFence
	}
	return wr.Flags
}

// addSource adds the local buffers of wr to the work request that was added last.
func (q *qp) addSource(wr *provider.SendWR) error {
	if wr.Flags&provider.SendInline != 0 {
		if len(wr.SGList) > 0 {
			return fmt.Errorf("it has both SendInline and SGEs; put the payload into "+
				"SendWR.Inline: %w", syscall.EINVAL)
		}
		if !q.sq.SetInline(wr.Inline) {
			return fmt.Errorf("%d bytes of inline data, and the queue pair was made for %d (QPCap.MaxInlineData): %w",
				len(wr.Inline), q.init.Cap.MaxInlineData, syscall.EINVAL)
		}
		return nil
	}
	if len(wr.Inline) > 0 {
		return fmt.Errorf("it has inline data, but Flags lacks SendInline; add the flag: %w", syscall.EINVAL)
	}
	n := 0
	for i := range wr.SGList {
		s := &wr.SGList[i]
		if s.Length == 0 {
			continue // see doc.go: siw would crash the kernel with some of these
		}
		if !q.sq.AddSGE(s.Addr, s.Length, s.LKey) {
			return tooManySGEs(len(wr.SGList))
		}
		n++
	}
	if wr.Opcode != provider.WRRDMARead {
		return nil
	}
	if most := q.dev.attr.MaxSGERd; most > 0 && n > most {
		return fmt.Errorf("a Read with %d SGEs, and the device takes %d; post several Reads: %w",
			n, most, syscall.EINVAL)
	}
	if q.dev.siw && n == 0 {
		// siw reads one entry from the queue's slot even if there is none.
		q.sq.AddSGE(0, 0, 0)
	}
	return nil
}

func tooManySGEs(n int) error {
	return fmt.Errorf("%d SGEs are more than the device takes (Context.Query); post several work requests: %w",
		n, syscall.EINVAL)
}

func (q *qp) PostRecv(wrs []provider.RecvWR) (int, error) {
	q.rqMu.Lock()
	defer q.rqMu.Unlock()
	if err := q.usable(); err != nil {
		return 0, q.err("ibv_post_recv", err)
	}
	if q.init.SRQ != nil {
		// libsiw would look for a place in a nonexistent queue.
		if len(wrs) == 0 {
			return 0, nil
		}
		return 0, q.err("ibv_post_recv", fmt.Errorf("the QP has a shared receive queue; post "+
			"to that: %w", syscall.EINVAL))
	}
	ended := q.ended.Load()
	if q.dev.siw && ended {
		n, err := q.flushRecvs(wrs)
		return n, q.err("ibv_post_recv", err)
	}
	done := 0
	for done < len(wrs) {
		q.rq.Reset()
		var refused error
		for i := done; i < len(wrs) && !q.rq.Full(); i++ {
			if refused = addRecv(q.rq, &wrs[i], q.dev.libsiw); refused != nil {
				break
			}
			q.logRecv(&wrs[i])
		}
		n, err := q.c.PostRecv(q.rq)
		q.refuse(&q.rqIDs, n)
		err = whyNoPost(err, errRecvFull)
		done += n
		if ended && n > 0 {
			q.toError() // see late.go
		}
		if err == nil {
			err = refused
		}
		if err != nil {
			return done, q.err("ibv_post_recv", err)
		}
	}
	return done, nil
}

func addRecv(b *ibv.RecvBatch, wr *provider.RecvWR, libsiw bool) error {
	b.Add(wr.WRID)
	n := 0
	for i := range wr.SGList {
		s := &wr.SGList[i]
		if s.Length == 0 {
			continue
		}
		if !b.AddSGE(s.Addr, s.Length, s.LKey) {
			b.Drop()
			return tooManySGEs(len(wr.SGList))
		}
		n++
	}
	if libsiw && n == 0 {
		b.AddSGE(0, 0, 0) // libsiw refuses a receive without entries
	}
	return nil
}
