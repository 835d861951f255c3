package bridge

import (
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// leastConnect is the original size of CONNECT or ACCEPT, without later additions, in bytes.
func leastConnect(msg any) int { return abi.Size(msg) - abi.Size(abi.ECE{}) }

// connParam returns the parameters of a connection and its QP. If the depths exceed the device's,
// it returns the error tooDeep, or EINVAL if the QP does not exist.
func (b *Bridge) connParam(p *abi.ConnParam, tooDeep error) (*rdmacm.ConnParam, *queuePair, error) {
	q := b.queuePairByNumber(p.QPNum & 0xffffff)
	if q == nil {
		return nil, nil, syscall.EINVAL
	}
	limits, err := b.vctx.Query()
	if err != nil {
		return nil, nil, err
	}
	if int(p.ResponderResources) > limits.MaxQPRdAtom ||
		int(p.InitiatorDepth) > limits.MaxQPInitRdAtom {
		return nil, nil, tooDeep
	}
	return &rdmacm.ConnParam{
		QP:                 q.qp,
		PrivateData:        append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...),
		ResponderResources: int(p.ResponderResources), InitiatorDepth: int(p.InitiatorDepth),
	}, q, nil
}

func cmConnect(r *cmRequest) error {
	var cmd abi.Connect
	if err := r.parseGrown(&cmd, leastConnect(cmd)); err != nil {
		return err
	}
	if cmd.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	x, err := r.file.lockBound(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if x.state != cmRouteResolved {
		return syscall.EINVAL
	}
	param, q, err := r.file.b.connParam(&cmd.ConnParam, syscall.ENOMEM)
	if err != nil {
		return err
	}
	x.state, x.iw, x.qp, x.dialled = cmConnecting, iwSent, q, true
	x.mu.Unlock() // unlocked, because the peer may not answer and the program may destroy the id
	err = x.id.Connect(param)
	x.mu.Lock()
	if err != nil { // nothing has started, so no event comes
		x.state, x.iw, x.qp, x.dialled = cmRouteResolved, iwNone, nil, false
	}
	return err
}

// cmAccept executes ACCEPT. From then on the program identifies the id by cmd's uid. A failure
// rejects the request, unless it has already been answered.
func cmAccept(r *cmRequest) error {
	var cmd abi.Accept
	if err := r.parseGrown(&cmd, leastConnect(cmd)); err != nil {
		return err
	}
	x, err := r.file.lockBound(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if x.state != cmConnecting || x.iw != iwReceived {
		return syscall.EINVAL
	}
	if err := r.file.b.accept(x, &cmd); err != nil {
		_ = x.id.Reject(nil)
		x.iw = iwIdle
		return err
	}
	return nil
}

// accept accepts the request of x. x.mu is held.
func (b *Bridge) accept(x *cmID, cmd *abi.Accept) error {
	if cmd.ConnParam.Valid == 0 {
		return syscall.EINVAL // only InfiniBand accepts without parameters
	}
	param, q, err := b.connParam(&cmd.ConnParam, syscall.EINVAL)
	if err != nil {
		return err
	}
	if err := x.id.Accept(param); err != nil {
		return err
	}
	x.iw, x.uid, x.qp = iwSent, cmd.UID, q
	return nil
}

// Reasons of REJECT (enum ib_cm_rej_reason) that programs may give. On iWARP they do not reach the
// peer.
const (
	rejectConsumer = 28
	rejectVendor   = 35
)

func cmReject(r *cmRequest) error {
	var cmd abi.Reject
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.Reason != 0 && cmd.Reason != rejectConsumer && cmd.Reason != rejectVendor {
		return syscall.EINVAL
	}
	x, err := r.file.lockBound(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if x.iw != iwReceived {
		return syscall.EINVAL
	}
	x.iw = iwIdle
	return x.id.Reject(append([]byte(nil), cmd.PrivateData[:cmd.PrivateDataLen]...))
}

// cmDisconnect executes DISCONNECT. It does nothing, without an error, for a connection that has
// ended or was not answered yet.
func cmDisconnect(r *cmRequest) error {
	var cmd abi.Disconnect
	x, err := r.parseBound(&cmd, &cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	switch x.iw {
	case iwNone, iwListen:
		return syscall.EINVAL
	case iwEstablished:
		x.iw = iwClosing
	case iwSent:
	default:
		return nil
	}
	return x.id.Disconnect()
}

// Bits of the attribute mask beside those of MODIFY_QP.
const maskAccess = 1 << 3 // IB_QP_ACCESS_FLAGS

// cmInitQPAttr executes INIT_QP_ATTR: it returns the attributes with which the program moves its QP
// to a state. On iWARP the connection manager does nearly all of that itself (iw_cm_init_qp_attr).
func cmInitQPAttr(r *cmRequest) error {
	var cmd abi.InitQPAttr
	var resp abi.QPAttr
	if err := r.parseFor(&cmd, abi.Size(resp)); err != nil {
		return err
	}
	if cmd.QPState > uint32(ibverbs.QPErr) {
		return syscall.EINVAL
	}
	x, err := r.file.lockBound(cmd.ID)
	if err != nil {
		return err
	}
	iw := x.iw
	x.mu.Unlock()
	resp.QPState, resp.PortNum = cmd.QPState, 1
	resp.QPAttrMask = maskPort
	switch iw {
	case iwNone: // before CONNECT, for any state
		resp.QPAttrMask |= maskState | maskAccess
		return r.answerAll(cmd.Response, &resp)
	case iwListen, iwClosing:
		return syscall.EINVAL
	}
	switch ibverbs.QPState(cmd.QPState) {
	case ibverbs.QPInit, ibverbs.QPRTR:
		resp.QPAttrMask |= maskState | maskAccess
		resp.QPAccessFlags = uint32(ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead)
	case ibverbs.QPRTS:
	default:
		return syscall.EINVAL
	}
	return r.answerAll(cmd.Response, &resp)
}

// cmNotify executes NOTIFY, with which a program reports that the peer has sent something. Only
// InfiniBand's connection manager needs this.
func cmNotify(r *cmRequest) error {
	var cmd abi.Notify
	x, err := r.parseBound(&cmd, &cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if x.iw == iwNone {
		return syscall.EINVAL
	}
	return nil
}

func cmJoinIPMcast(r *cmRequest) error {
	var cmd abi.JoinIPMcast
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if !ip(cmd.Addr.Family()) {
		return syscall.EINVAL
	}
	return r.join(&abi.JoinMcast{ID: cmd.ID, AddrSize: uint16(sizeOfAddress(cmd.Addr.Family())),
		Addr: widen(&cmd.Addr)})
}

func cmJoinMcast(r *cmRequest) error {
	var cmd abi.JoinMcast
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if sizeOfAddress(cmd.Addr.Family()) == 0 {
		return syscall.EINVAL
	}
	return r.join(&cmd)
}

// join answers JOIN_MCAST and JOIN_IP_MCAST with an error, because iWARP has no multicast groups.
// It is ENOSYS if the id could otherwise join one.
func (r *cmRequest) join(cmd *abi.JoinMcast) error {
	if err := r.fits(abi.Size(abi.CreateIDResp{})); err != nil {
		return err
	}
	if int(cmd.AddrSize) != sizeOfAddress(cmd.Addr.Family()) ||
		cmd.JoinFlags > abi.JoinSendOnlyFullMember {
		return syscall.EINVAL
	}
	x, err := r.file.lockBound(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if x.qpType != typeUD || x.state != cmBound && x.state != cmAddrResolved {
		return syscall.EINVAL
	}
	return syscall.ENOSYS
}

// cmLeaveMcast executes LEAVE_MCAST: there are no groups.
func cmLeaveMcast(r *cmRequest) error {
	var cmd abi.DestroyID
	if err := r.parseFor(&cmd, abi.Size(abi.DestroyResp{})); err != nil {
		return err
	}
	return syscall.ENOENT
}
