package bridge

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// queuePair is a QP of the program.
type queuePair struct {
	file *uverbsFile
	user uint64
	qp   *ibverbs.QP
	sq   *sendRing
	rq   *recvRing // nil with an SRQ, or without receives
	send *completionQueue
	cap  abi.CreateQPResp // as granted
	all  bool             // every send is signalled

	asyncFired eventCount
}

func createQP(r *request) error {
	var cmd abi.CreateQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return r.makeQP(&cmd, 0, func(base abi.CreateQPResp) any { return &base })
}

func exCreateQP(r *request) error {
	var cmd abi.ExCreateQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.CompMask != 0 { // IB_UVERBS_CREATE_QP_MASK_IND_TABLE is for Ethernet devices
		return syscall.EINVAL
	}
	return r.makeQP(&abi.CreateQP{
		UserHandle: cmd.UserHandle, PDHandle: cmd.PDHandle, SendCQHandle: cmd.SendCQHandle,
		RecvCQHandle: cmd.RecvCQHandle,
		SRQHandle:    cmd.SRQHandle, MaxSendWR: cmd.MaxSendWR, MaxRecvWR: cmd.MaxRecvWR,
		MaxSendSGE: cmd.MaxSendSGE,
		MaxRecvSGE: cmd.MaxRecvSGE, MaxInlineData: cmd.MaxInlineData, SQSigAll: cmd.SQSigAll,
		QPType: cmd.QPType, IsSRQ: cmd.IsSRQ,
	}, cmd.CreateFlags, func(base abi.CreateQPResp) any {
		resp := &abi.ExCreateQPResp{Base: base}
		resp.ResponseLength = uint32(min(r.room, abi.Size(resp)))
		return resp
	})
}

// Types of QPs (enum ib_qp_type).
const (
	typeRC        = 2
	typeUC        = 3
	typeUD        = 4
	typeRawPacket = 8
	typeXRCIni    = 9
	typeXRCTgt    = 10
	typeDriver    = 0xff
)

// checkQP makes the checks of the kernel and siw, in their order, that do not need other objects.
func (r *request) checkQP(cmd *abi.CreateQP, flags uint32) error {
	switch {
	case cmd.QPType != typeRC:
		return syscall.EOPNOTSUPP
	case cmd.MaxSendWR > maxQueue || cmd.MaxRecvWR > maxQueue || cmd.MaxSendSGE > abi.SiwMaxSGE ||
		cmd.MaxRecvSGE > abi.SiwMaxSGE,
		cmd.MaxInlineData > abi.SiwMaxInline, cmd.MaxSendWR == 0,
		r.extra < abi.Size(abi.SiwCreateQPResp{}):
		return syscall.EINVAL
	case flags != 0:
		return syscall.EOPNOTSUPP
	}
	return nil
}

// makeQP makes a QP. resp makes the answer from its common part.
func (r *request) makeQP(cmd *abi.CreateQP, flags uint32, resp func(abi.CreateQPResp) any) error {
	switch cmd.QPType {
	case typeRC, typeUC, typeUD, typeRawPacket, typeXRCIni, typeDriver:
	default: // XRC targets need an XRC domain, which siw does not have
		return syscall.EINVAL
	}
	f := r.file
	init := &ibverbs.QPInitAttr{} // without SQSigAll, because libsiw then flags each work request
	q := &queuePair{file: f, user: cmd.UserHandle, all: cmd.SQSigAll != 0}
	init.Cookie = q
	pd, err := r.queuesOf(cmd, q, init)
	if err != nil {
		return err
	}
	if err := r.checkQP(cmd, flags); err != nil {
		return err
	}
	if err := q.makeRings(cmd, init); err != nil {
		return err
	}
	if q.qp, err = pd.pd.CreateQP(init); err != nil {
		q.release()
		return err
	}
	q.sq.post = q.qp.PostSend
	f.b.mu.Lock()
	f.b.qps[q.qp.QPN()] = q
	f.b.mu.Unlock()
	q.cap = abi.CreateQPResp{QPN: q.qp.QPN(), MaxSendWR: cmd.MaxSendWR, MaxRecvWR: cmd.MaxRecvWR,
		MaxSendSGE: cmd.MaxSendSGE, MaxRecvSGE: cmd.MaxRecvSGE,
		// siw returns the requested size here, although its elements have room for this much, as it
		// says in QUERY_QP. rsocket, which requests none and needs 4, then gives up, for example in
		// rstream's second half on siw.
		MaxInlineData: abi.SiwMaxInline}
	q.cap.QPHandle = f.handles.add(q)
	driver := abi.SiwCreateQPResp{QPID: q.qp.QPN(), NumSQE: q.sq.size, SQKey: uint64(q.sq.mem.key)}
	if q.rq != nil {
		driver.NumRQE, driver.RQKey = q.rq.size, uint64(q.rq.mem.key)
	}
	if err = r.answer(resp(q.cap)); err == nil {
		err = r.answerDriver(&driver)
	}
	if err != nil {
		_ = remove(&f.handles, q.cap.QPHandle, (*queuePair).destroy)
	}
	return err
}

// queuesOf finds the objects for a new QP. An XRC initiator receives nothing, and the kernel
// ignores its receive objects.
func (r *request) queuesOf(cmd *abi.CreateQP, q *queuePair, init *ibverbs.QPInitAttr) (*domain,
	error) {
	h := &r.file.handles
	receives := cmd.QPType != typeXRCIni
	if receives && cmd.IsSRQ != 0 {
		s, err := lookup[*sharedQueue](h, cmd.SRQHandle)
		if err != nil {
			return nil, err
		}
		init.SRQ = s.srq
	}
	if receives {
		recv, err := lookup[*completionQueue](h, cmd.RecvCQHandle)
		if err != nil {
			return nil, err
		}
		init.RecvCQ = recv.cq
	}
	var err error
	if q.send, err = lookup[*completionQueue](h, cmd.SendCQHandle); err != nil {
		return nil, err
	}
	init.SendCQ = q.send.cq
	return lookup[*domain](h, cmd.PDHandle)
}

// makeRings makes the queues that the program maps.
func (q *queuePair) makeRings(cmd *abi.CreateQP, init *ibverbs.QPInitAttr) error {
	size := roundUp(cmd.MaxSendWR)
	mem, err := q.file.arena.alloc(int(size) * int(sqeSize))
	if err != nil {
		return syscall.ENOMEM
	}
	q.sq = &sendRing{mem: mem, size: size, state: q.state, bad: q.refuse}
	init.Cap = ibverbs.QPCap{MaxSendWR: int(size), MaxSendSGE: abi.SiwMaxSGE,
		MaxInlineData: abi.SiwMaxInline}
	if init.SRQ != nil || cmd.MaxRecvWR == 0 {
		return nil
	}
	size = roundUp(cmd.MaxRecvWR)
	if mem, err = q.file.arena.alloc(int(size) * int(rqeSize)); err != nil {
		q.sq.mem.free()
		return syscall.ENOMEM
	}
	q.rq = &recvRing{mem: mem, size: size}
	init.Recvs = q.rq
	init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = int(size), abi.SiwMaxSGE
	return nil
}

// state returns the state of the QP, or ERR if it is closed.
func (q *queuePair) state() ibverbs.QPState {
	attr, _, err := q.qp.Query()
	if err != nil {
		return ibverbs.QPErr
	}
	return attr.State
}

// unconnected reports whether a QP in a state has not been connected.
func unconnected(state ibverbs.QPState) bool {
	switch state {
	case ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR:
		return true
	}
	return false
}

// refuse completes a work request that cannot be posted with an error, and ends the connection, as
// siw does for a WQE that it cannot process.
func (q *queuePair) refuse(wrid uint64, op uint8) {
	wc := ibverbs.WC{WRID: wrid, Status: ibverbs.WCLocQPOpErr, QPN: q.qp.QPN()}
	switch op {
	case abi.SiwWrite:
		wc.Opcode = ibverbs.WCRDMAWrite
	case abi.SiwRead, abi.SiwReadLocalInv:
		wc.Opcode = ibverbs.WCRDMARead
	}
	_ = q.qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState)
	if _, due := q.send.ring.Complete(&wc, true); due {
		q.send.ring.Notify()
	}
}

// connected is called when a connection of the QP is established. It sends what was posted before.
//
// The side that accepted may not send before the other side has (RFC 5044 section 7.1.2). But many
// programs send first from the accepting side, which siw permits. So the side that connected opens
// the stream with a Write of no bytes, which needs no memory. siw also accepts this Write.
func (q *queuePair) connected(dialled bool) {
	if dialled && !q.file.b.opts.NoOpeningWrite {
		_ = q.qp.PostSend(ibverbs.SendWR{WRID: openingWRID, Opcode: ibverbs.WRRDMAWrite})
	}
	_ = q.sq.doorbell()
}

// openingWRID is the WRID of that Write. The Write is not signalled, and if it is flushed, the
// program must not see its completion. The WRID is random, so no work request of the program has
// the same one.
var openingWRID = rand.Uint64()

func (q *queuePair) destroy() error {
	if err := q.qp.Close(); err != nil {
		return err
	}
	b := q.file.b
	b.mu.Lock()
	if b.qps[q.qp.QPN()] == q { // another QP may already have the number
		delete(b.qps, q.qp.QPN())
	}
	b.mu.Unlock()
	q.release()
	return nil
}

func (q *queuePair) release() {
	q.sq.close()
	q.rq.close()
}

func destroyQP(r *request) error {
	var cmd abi.DestroyQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	var resp abi.DestroyResp
	err := remove(&r.file.handles, cmd.QPHandle, func(q *queuePair) error {
		if err := q.destroy(); err != nil {
			return err
		}
		resp.EventsReported = q.asyncFired.end() - r.file.withdrawAsync(q.user)
		return nil
	})
	if err != nil {
		return err
	}
	return r.answer(&resp)
}

func queryQP(r *request) error {
	var cmd abi.QueryQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	q, err := lookup[*queuePair](&r.file.handles, cmd.QPHandle)
	if err != nil {
		return err
	}
	attr, _, err := q.qp.Query()
	if err != nil {
		return err
	}
	port, err := r.file.b.vctx.QueryPort(1)
	if err != nil {
		return err
	}
	resp := abi.QueryQPResp{
		MaxSendWR: q.sq.size, MaxSendSGE: q.cap.MaxSendSGE, MaxRecvSGE: q.cap.MaxRecvSGE,
		MaxInlineData: abi.SiwMaxInline,
		QPState:       uint8(attr.State), CurQPState: uint8(attr.State), PathMTU: mtu(port.ActiveMTU),
		QPAccessFlags: uint32(ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite |
			ibverbs.AccessRemoteRead),
		MaxRDAtomic:   uint8(min(attr.MaxRdAtomic, 255)),
		MaxDestRDAtom: uint8(min(attr.MaxDestRdAtomic, 255)),
	}
	if q.rq != nil {
		resp.MaxRecvWR = q.rq.size
	}
	if q.all {
		resp.SQSigAll = 1
	}
	return r.answer(&resp)
}

// Bits of the attribute mask of MODIFY_QP (enum ib_qp_attr_mask).
const (
	maskState    = 1 << 0
	maskCurState = 1 << 1
	maskNotify   = 1 << 2
	maskPort     = 1 << 5
	maskAV       = 1 << 7
	maskAltPath  = 1 << 14
	maskStandard = 1<<21 - 1

	maskRateLimit = 1 << 25
)

// modifyQP executes MODIFY_QP. As with siw, only the state has an effect: a peer's rights come from
// regions, and attributes of InfiniBand's paths are ignored.
func modifyQP(r *request) error {
	var cmd abi.ModifyQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return r.modifyQP(&cmd)
}

// exModifyQP executes the extended MODIFY_QP, which also has a rate limit; siw does not support
// one.
func exModifyQP(r *request) error {
	var cmd abi.ExModifyQP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.Base.AttrMask&^(maskStandard|maskRateLimit) != 0 {
		return syscall.EOPNOTSUPP
	}
	if err := r.modifyQP(&cmd.Base); err != nil {
		return err
	}
	resp := &abi.ExModifyQPResp{}
	resp.ResponseLength = uint32(min(r.room, abi.Size(resp)))
	return r.answer(resp)
}

func (r *request) modifyQP(cmd *abi.ModifyQP) error {
	q, err := lookup[*queuePair](&r.file.handles, cmd.QPHandle)
	if err != nil {
		return err
	}
	switch mask := cmd.AttrMask; {
	case mask&maskPort != 0 && cmd.PortNum != 1,
		mask&maskAV != 0 && cmd.Dest.PortNum != 1,
		mask&maskAltPath != 0 && (cmd.AltPortNum != 1 || cmd.AltDest.PortNum != 1),
		mask&maskCurState != 0 && cmd.CurQPState > uint8(ibverbs.QPErr),
		mask&maskState != 0 && cmd.QPState > uint8(ibverbs.QPErr):
		return syscall.EINVAL
	case mask&^maskStandard != 0:
		return syscall.EOPNOTSUPP
	case mask&maskState == 0:
		return nil
	}
	return q.modifyState(ibverbs.QPState(cmd.QPState), cmd.AttrMask&maskNotify != 0 &&
		cmd.EnSQDNotify != 0)
}

// modifyState changes the state as siw_qp_modify does: only the connection manager connects a QP,
// and a change without effect is not an error.
func (q *queuePair) modifyState(to ibverbs.QPState, notify bool) error {
	from := q.state()
	switch {
	case to == ibverbs.QPRTS && unconnected(from):
		return syscall.EINVAL // no connection
	case to == ibverbs.QPErr:
		err := q.qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState)
		_ = q.sq.doorbell() // flushes what is left in the queue
		return err
	case (to == ibverbs.QPSQD || to == ibverbs.QPSQE) && from == ibverbs.QPRTS:
		mask := ibverbs.QPAttrState
		if notify && to == ibverbs.QPSQD {
			mask |= ibverbs.QPAttrEnSQDNotify
		}
		err := q.qp.Modify(ibverbs.QPAttr{State: to, EnSQDAsyncNotify: notify}, mask)
		if q.state() == ibverbs.QPRTS {
			return err
		}
		// The connection ends because of this call, or the peer has ended it in the meantime.
	}
	return nil
}

// postSend executes POST_SEND, the doorbell: the work requests are in the queue. It allocates
// nothing, because programs write this command most often.
func (f *uverbsFile) postSend(b []byte) (int, error) {
	const (
		length   = 8 + 24 // header and abi.PostSend
		response = 8      // offset of the fields
		handle   = 16
		wrCount  = 20
		wqeSize  = 28
	)
	in, out := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	switch {
	case int(in)*4 != len(b):
		return 0, syscall.EINVAL
	case len(b) < length, out < 1:
		return 0, syscall.ENOSPC
	case binary.NativeEndian.Uint32(b[wqeSize:]) < sizeSendWR:
		return 0, syscall.EINVAL
	}
	q, err := lookup[*queuePair](&f.handles, binary.NativeEndian.Uint32(b[handle:]))
	if err != nil {
		return 0, err
	}
	if binary.NativeEndian.Uint32(b[wrCount:]) != 0 {
		return 0, syscall.EINVAL // siw takes work requests only from the queue
	}
	err = q.sq.doorbell()
	// The command contains no work requests, so none is bad.
	addr := binary.NativeEndian.Uint64(b[response:])
	answer := noBadWR[:]
	if out > 1 {
		answer = make([]byte, int(out)*4)
	}
	if e := f.b.prog.WriteMemory(addr, answer); e != nil {
		err = e
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// noBadWR is an abi.PostResp.
var noBadWR [4]byte

// sizeSendWR is the size of struct ib_uverbs_send_wr in bytes.
const sizeSendWR = 56
