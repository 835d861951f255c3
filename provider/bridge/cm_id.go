package bridge

import (
	"errors"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// cmIDState is the state of an id (enum rdma_cm_state).
type cmIDState uint8

const (
	cmIdle cmIDState = iota
	cmBound
	cmAddrQuery
	cmAddrResolved
	cmRouteQuery
	cmRouteResolved
	cmConnecting // and all later states, even after the connection's end
	cmListening
)

// iwState is the iWARP state of an id (enum iw_cm_state).
type iwState uint8

const (
	iwNone iwState = iota // before CONNECT and LISTEN
	iwIdle                // rejected or ended
	iwListen
	iwSent // CONNECT or ACCEPT is running
	iwReceived
	iwEstablished
	iwClosing
)

// cmID is an id of the program (a ucma_context of the kernel, with its rdma_cm_id).
type cmID struct {
	ps     uint16
	qpType uint8
	id     *rdmacm.ID

	// mu is held while a command or an event is processed, except while CONNECT waits.
	mu       sync.Mutex
	gone     bool // destroyed: no more events or commands
	state    cmIDState
	iw       iwState
	device   bool // bound to the device
	resolved bool // by RESOLVE_ADDR
	reuse    bool // RDMA_OPTION_ID_REUSEADDR
	// The program's value for the id; 0 until it accepts the request that the id came with.
	uid      uint64
	qp       *queuePair
	dialled  bool // by CONNECT
	src, dst abi.SockaddrStorage
	path     []byte // set by RDMA_OPTION_IB_PATH

	// Guarded by cmState.mu:
	handle   uint32
	file     *cmFile
	backlog  int    // how many more requests may wait for GET_EVENT
	reported uint32 // events that the program has fetched
	owns     bool   // it has bound a port
	anywhere bool   // bound to the unspecified address, whatever deviceAddress returned
}

// cmEvent is an event that the program has not fetched yet (a ucma_event of the kernel).
type cmEvent struct {
	owner   *cmID // the id of the event, which counts the event when the program has fetched it
	request *cmID // with CONNECT_REQUEST the new id, otherwise nil
	resp    abi.EventResp
}

// cmTable holds ids by number. A new id gets the lowest free number.
type cmTable struct {
	list []*cmID // nil if the number is free, or its id is being made or destroyed
	free numbers
}

// add gives x a number.
func (t *cmTable) add(x *cmID) {
	x.handle = t.free.take()
	if int(x.handle) == len(t.list) {
		t.list = append(t.list, nil)
	}
	t.list[x.handle] = x
}

// get returns the id with a number, or nil if there is none.
func (t *cmTable) get(handle uint32) *cmID {
	if int64(handle) >= int64(len(t.list)) {
		return nil
	}
	return t.list[handle]
}

// reserve removes x but keeps its number. It returns false if x had already been removed.
func (t *cmTable) reserve(x *cmID) bool {
	if t.get(x.handle) != x {
		return false
	}
	t.list[x.handle] = nil
	return true
}

// all returns the ids.
func (t *cmTable) all() (ids []*cmID) {
	for _, id := range t.list {
		if id != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// destroy ends x, whose number is reserved. For a listener it also ends the requests that the
// program has not fetched. It returns the number of x's events that the program has fetched.
func (s *cmState) destroy(x *cmID) (reported uint32) {
	x.mu.Lock() // waits for a running command
	x.gone = true
	x.mu.Unlock()
	_ = x.id.Close()
	s.mu.Lock()
	var requests []*cmID
	for _, v := range x.file.drop(func(v *cmEvent) bool { return v.owner == x }) {
		if v.request != nil && s.ids.reserve(v.request) {
			requests = append(requests, v.request)
		}
	}
	reported = x.reported
	s.ids.free.give(x.handle)
	s.mu.Unlock()
	for _, r := range requests {
		s.destroy(r)
	}
	return reported
}

// take gives an event of the device to the descriptor of its id.
func (s *cmState) take(e *rdmacm.Event) {
	if e.ListenID != nil {
		owner, ok := e.ListenID.Cookie().(*cmID)
		if !ok || !s.request(owner, e) {
			_ = e.ID.Close() // rejects the request
		}
		return
	}
	x, ok := e.ID.Cookie().(*cmID)
	if !ok {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone {
		return
	}
	resp := x.happened(e)
	if e.Type == rdmacm.AddrResolved {
		s.mu.Lock()
		x.anywhere = false
		s.mu.Unlock()
	}
	s.post(x, resp)
	if e.Type == rdmacm.Established && x.qp != nil {
		x.qp.connected(x.dialled)
	}
}

// request makes an id for a peer's request to a listener. It returns false if the listener is
// destroyed, or if its backlog is full.
func (s *cmState) request(owner *cmID, e *rdmacm.Event) bool {
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if owner.gone {
		return false
	}
	x := &cmID{ps: abi.PortSpaceTCP, qpType: typeRC, id: e.ID, state: cmConnecting, iw: iwReceived,
		device: true}
	x.setAddresses(owner.src.Family())
	resp := abi.EventResp{UID: owner.uid, Event: uint32(e.Type)}
	fillParam(&resp.Param, e)
	e.ID.SetCookie(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner.backlog == 0 {
		return false
	}
	owner.backlog--
	x.file = owner.file
	s.ids.add(x)
	resp.ID = x.handle
	x.file.queue(&cmEvent{owner: owner, request: x, resp: resp})
	return true
}

// post queues an event of x. x.mu is held. The program gets no event of an id that it does not
// know; its ACCEPT will fail.
func (s *cmState) post(x *cmID, resp abi.EventResp) {
	if x.uid == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	resp.UID, resp.ID = x.uid, x.handle
	x.file.queue(&cmEvent{owner: x, resp: resp})
}

// happened changes the state of x according to an event, and returns the answer to GET_EVENT. x.mu
// is held.
func (x *cmID) happened(e *rdmacm.Event) abi.EventResp {
	resp := abi.EventResp{Event: uint32(e.Type), Status: uint32(int32(cmStatus(e)))}
	switch e.Type {
	case rdmacm.AddrResolved:
		x.state, x.device, x.resolved = cmAddrResolved, true, true
		setIP(&x.src, x.id.LocalAddr()) // the destination stays as the program gave it
	case rdmacm.AddrError:
		x.state = cmBound
	case rdmacm.RouteResolved:
		x.state = cmRouteResolved
	case rdmacm.RouteError:
		x.state = cmAddrResolved
	case rdmacm.Established:
		x.iw = iwEstablished
		x.setAddresses(x.src.Family())
		// cma_iw_handler swaps the two, and programs on iWARP expect that.
		resp.Param.ResponderResources, resp.Param.InitiatorDepth = depth(e.InitiatorDepth),
			depth(e.ResponderResources)
		setPrivateData(&resp.Param, e.PrivateData)
	case rdmacm.Rejected, rdmacm.Unreachable, rdmacm.ConnectError:
		x.iw = iwIdle
		setPrivateData(&resp.Param, e.PrivateData)
	case rdmacm.Disconnected:
		x.iw = iwIdle
	}
	return resp
}

// cmStatus returns the status of an event. If the peer's program rejects, siw reports ECONNRESET;
// ECONNREFUSED means that nobody listens.
func cmStatus(e *rdmacm.Event) int {
	if e.Type == rdmacm.Rejected && e.Cause != nil && !errors.Is(e.Cause, syscall.ECONNREFUSED) {
		return -int(syscall.ECONNRESET)
	}
	return e.Status
}

// setAddresses sets x's addresses to the connection's, in the form of a family.
func (x *cmID) setAddresses(fam int) {
	setFamily(&x.src, fam)
	setFamily(&x.dst, fam)
	setIP(&x.src, x.id.LocalAddr())
	setIP(&x.dst, x.id.RemoteAddr())
}

// fillParam sets p from a peer's request.
func fillParam(p *abi.ConnParam, e *rdmacm.Event) {
	p.ResponderResources, p.InitiatorDepth = depth(e.ResponderResources), depth(e.InitiatorDepth)
	setPrivateData(p, e.PrivateData)
}

func setPrivateData(p *abi.ConnParam, private []byte) {
	p.PrivateDataLen = uint8(copy(p.PrivateData[:255], private))
}

func depth(n int) uint8 { return uint8(min(max(n, 0), 255)) }
