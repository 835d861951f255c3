package bridge

import (
	"errors"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// cmIDState is how far an id has come (enum rdma_cm_state).
type cmIDState uint8

const (
	cmIdle cmIDState = iota
	cmBound
	cmAddrQuery
	cmAddrResolved
	cmRouteQuery
	cmRouteResolved
	cmConnecting // and all that follows, also the end of the connection
	cmListening
)

// iwState is the state of iWARP's part of an id (enum iw_cm_state).
type iwState uint8

const (
	iwNone iwState = iota // there is none, before CONNECT and LISTEN
	iwIdle                // rejected or ended
	iwListen
	iwSent // CONNECT or ACCEPT is under way
	iwReceived
	iwEstablished
	iwClosing
)

// cmID is an id of the program (a ucma_context of the kernel, with its rdma_cm_id).
type cmID struct {
	ps     uint16
	qpType uint8
	id     *rdmacm.ID

	// mu is held while a command is executed, and while an event is taken, but not while CONNECT
	// waits.
	mu       sync.Mutex
	gone     bool // destroyed: no events, no commands
	state    cmIDState
	iw       iwState
	device   bool // it is bound to the device
	resolved bool // by RESOLVE_ADDR
	reuse    bool // RDMA_OPTION_ID_REUSEADDR
	// What the program calls it; 0 until it accepts the request that the id came with.
	uid      uint64
	qp       *queuePair
	dialled  bool // by CONNECT
	src, dst abi.SockaddrStorage
	path     []byte // that RDMA_OPTION_IB_PATH has set

	// Under cmState.mu:
	handle   uint32
	file     *cmFile
	backlog  int    // requests that may still wait for GET_EVENT
	reported uint32 // events that the program has got
	owns     bool   // it has bound a port
	anywhere bool   // to any address, and has no other since, whatever deviceAddress has made of it
}

// cmEvent is an event that the program has not got yet (a ucma_event of the kernel).
type cmEvent struct {
	owner   *cmID // the id that the event is of, and that counts it when the program has got it
	request *cmID // with CONNECT_REQUEST the new id, otherwise nil
	resp    abi.EventResp
}

// cmTable has ids by number. A new one gets the lowest that is free.
type cmTable struct {
	list []*cmID // nil where one is being destroyed or not yet made, or the number is free
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

// get returns the id with a number, nil if there is none.
func (t *cmTable) get(handle uint32) *cmID {
	if int64(handle) >= int64(len(t.list)) {
		return nil
	}
	return t.list[handle]
}

// reserve takes x out, and keeps its number. It reports false if somebody else did so before.
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

// destroy ends x, whose number is reserved, and with a listener the requests that the program has
// not got. It returns how many events of x the program has got.
func (s *cmState) destroy(x *cmID) (reported uint32) {
	x.mu.Lock() // a command that is under way ends before
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

// take gives an event of the device to the descriptor that the id is of.
func (s *cmState) take(e *rdmacm.Event) {
	if e.ListenID != nil {
		owner, ok := e.ListenID.Cookie().(*cmID)
		if !ok || !s.request(owner, e) {
			_ = e.ID.Close() // which rejects it
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

// request makes an id of a peer's request to a listener. It reports false if the listener is gone
// or as many requests wait as it allows.
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
// know: its ACCEPT will fail.
func (s *cmState) post(x *cmID, resp abi.EventResp) {
	if x.uid == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	resp.UID, resp.ID = x.uid, x.handle
	x.file.queue(&cmEvent{owner: x, resp: resp})
}

// happened changes the state of x as an event says, and makes the answer to GET_EVENT. x.mu is
// held.
func (x *cmID) happened(e *rdmacm.Event) abi.EventResp {
	resp := abi.EventResp{Event: uint32(e.Type), Status: uint32(int32(cmStatus(e)))}
	switch e.Type {
	case rdmacm.AddrResolved:
		x.state, x.device, x.resolved = cmAddrResolved, true, true
		setIP(&x.src, x.id.LocalAddr()) // the destination stays as it was given
	case rdmacm.AddrError:
		x.state = cmBound
	case rdmacm.RouteResolved:
		x.state = cmRouteResolved
	case rdmacm.RouteError:
		x.state = cmAddrResolved
	case rdmacm.Established:
		x.iw = iwEstablished
		x.setAddresses(x.src.Family())
		// cma_iw_handler exchanges the two, and programs on iWARP know them so.
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

// cmStatus returns the status of an event. For a peer whose program refuses, siw has ECONNRESET;
// ECONNREFUSED is that nobody listens.
func cmStatus(e *rdmacm.Event) int {
	if e.Type == rdmacm.Rejected && e.Cause != nil && !errors.Is(e.Cause, syscall.ECONNREFUSED) {
		return -int(syscall.ECONNRESET)
	}
	return e.Status
}

// setAddresses sets the addresses of x to those of its connection, as addresses of a family.
func (x *cmID) setAddresses(fam int) {
	setFamily(&x.src, fam)
	setFamily(&x.dst, fam)
	setIP(&x.src, x.id.LocalAddr())
	setIP(&x.dst, x.id.RemoteAddr())
}

// fillParam fills in what a peer's request says.
func fillParam(p *abi.ConnParam, e *rdmacm.Event) {
	p.ResponderResources, p.InitiatorDepth = depth(e.ResponderResources), depth(e.InitiatorDepth)
	setPrivateData(p, e.PrivateData)
}

func setPrivateData(p *abi.ConnParam, private []byte) {
	p.PrivateDataLen = uint8(copy(p.PrivateData[:255], private))
}

func depth(n int) uint8 { return uint8(min(max(n, 0), 255)) }
