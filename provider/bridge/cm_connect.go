package bridge

import (
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

func cmListen(r *cmRequest) error {
	var cmd abi.Listen
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lookup(cmd.ID)
	switch {
	case err != nil:
		return err
	case x.id == nil:
		return syscall.EINVAL
	}
	backlog := int(int32(cmd.Backlog))
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	return x.id.Listen(backlog)
}

// maxBacklog is the default of the kernel's net.rdma_ucm.max_backlog.
const maxBacklog = 1024

// connParam returns the parameters of a connection, and the QP that it is for.
func (b *Bridge) connParam(p *abi.ConnParam) (*rdmacm.ConnParam, *queuePair, error) {
	q := b.queuePairByNumber(p.QPNum & 0xffffff)
	if q == nil {
		return nil, nil, syscall.EINVAL
	}
	return &rdmacm.ConnParam{
		QP:                 q.qp,
		PrivateData:        append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...),
		ResponderResources: int(p.ResponderResources), InitiatorDepth: int(p.InitiatorDepth),
	}, q, nil
}

// use says which QP an id connects, until undone. uid is what the program calls it from now on, nil if
// that does not change: then the id is one that connects to a peer.
func (s *cmState) use(x *cmID, q *queuePair, uid *uint64) (undo func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, called := x.qp, x.uid
	x.qp, x.dialled = q, uid == nil
	if uid != nil {
		x.uid = *uid
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.qp, x.uid = before, called
	}
}

func cmConnect(r *cmRequest) error {
	var cmd abi.Connect
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	x, err := r.file.bound(cmd.ID)
	if err != nil {
		return err
	}
	param, q, err := r.file.b.connParam(&cmd.ConnParam)
	if err != nil {
		return err
	}
	undo := r.file.b.cm.use(x, q, nil)
	if err = x.id.Connect(param); err != nil {
		undo()
	}
	return err
}

// cmAccept executes ACCEPT. From then on the program knows the id by the uid that it gives.
func cmAccept(r *cmRequest) error {
	var cmd abi.Accept
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.bound(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.ConnParam.Valid == 0 {
		return syscall.EINVAL // only InfiniBand accepts without
	}
	param, q, err := r.file.b.connParam(&cmd.ConnParam)
	if err != nil {
		return err
	}
	undo := r.file.b.cm.use(x, q, &cmd.UID)
	if err = x.id.Accept(param); err != nil {
		undo()
	}
	return err
}

// Reasons of REJECT (enum ib_cm_rej_reason) that programs may give. On iWARP none of them reaches the
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
	x, err := r.file.bound(cmd.ID)
	if err != nil {
		return err
	}
	return x.id.Reject(append([]byte(nil), cmd.PrivateData[:cmd.PrivateDataLen]...))
}

func cmDisconnect(r *cmRequest) error {
	var cmd abi.Disconnect
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.bound(cmd.ID)
	if err != nil {
		return err
	}
	return x.id.Disconnect()
}

// cmInitQPAttr executes INIT_QP_ATTR: what the program is to change of its QP so that it comes to a
// state. On iWARP the connection manager does nearly all of that itself (iw_cm_init_qp_attr).
func cmInitQPAttr(r *cmRequest) error {
	var cmd abi.InitQPAttr
	var resp abi.QPAttr
	if err := r.fits(abi.Size(resp)); err != nil {
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.QPState > uint32(ibverbs.QPErr) {
		return syscall.EINVAL
	}
	if _, err := r.file.bound(cmd.ID); err != nil {
		return err
	}
	switch ibverbs.QPState(cmd.QPState) {
	case ibverbs.QPInit, ibverbs.QPRTR:
		resp.QPAttrMask = maskState | maskAccess
		resp.QPAccessFlags = uint32(ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead)
	case ibverbs.QPRTS:
	default:
		return syscall.EINVAL
	}
	resp.QPState = cmd.QPState
	resp.PortNum = 1
	resp.QPAttrMask |= maskPort
	return r.answer(cmd.Response, &resp)
}

const maskAccess = 1 << 3 // IB_QP_ACCESS_FLAGS

// cmNotify executes NOTIFY, with which a program says that a peer has sent something. Only
// InfiniBand's connection manager needs that.
func cmNotify(r *cmRequest) error {
	var cmd abi.Notify
	if err := r.parse(&cmd); err != nil {
		return err
	}
	_, err := r.file.bound(cmd.ID)
	return err
}

// cmJoinMcast executes JOIN_MCAST and JOIN_IP_MCAST: a reliable connection is of no group.
func cmJoinMcast(*cmRequest) error { return syscall.EINVAL }

// cmLeaveMcast executes LEAVE_MCAST: there are no groups.
func cmLeaveMcast(*cmRequest) error { return syscall.ENOENT }
