package bridge

import (
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// cmRequest is a command of rdma_cm that is being executed.
type cmRequest struct {
	file *cmFile
	in   []byte // after the header
	room int    // octets for the answer

	parsed   []any // for Trace
	answered []any
}

// cmCommands execute the commands. GET_OPTION is the only one that the kernel has no function for.
var cmCommands map[uint32]func(*cmRequest) error

func init() { // not an initializer: the functions refer to the table
	cmCommands = map[uint32]func(*cmRequest) error{
		abi.CMCreateID:     cmCreateID,
		abi.CMDestroyID:    cmDestroyID,
		abi.CMBindIP:       cmBindIP,
		abi.CMResolveIP:    cmResolveIP,
		abi.CMResolveRoute: cmResolveRoute,
		abi.CMQueryRoute:   cmQueryRoute,
		abi.CMConnect:      cmConnect,
		abi.CMListen:       cmListen,
		abi.CMAccept:       cmAccept,
		abi.CMReject:       cmReject,
		abi.CMDisconnect:   cmDisconnect,
		abi.CMInitQPAttr:   cmInitQPAttr,
		abi.CMGetEvent:     cmGetEvent,
		abi.CMSetOption:    cmSetOption,
		abi.CMNotify:       cmNotify,
		abi.CMJoinIPMcast:  cmJoinMcast,
		abi.CMLeaveMcast:   cmLeaveMcast,
		abi.CMMigrateID:    cmMigrateID,
		abi.CMQuery:        cmQuery,
		abi.CMBind:         cmBind,
		abi.CMResolveAddr:  cmResolveAddr,
		abi.CMJoinMcast:    cmJoinMcast,
	}
}

// Write implements File, as ucma_write of the kernel does.
func (f *cmFile) Write(b []byte) (int, error) {
	var h abi.CMHeader
	if len(b) > headerSize+1<<16 {
		b = b[:headerSize+1<<16] // more than a header can say
	}
	own := slices.Clone(b) // what the program changes meanwhile is not seen
	rest, err := abi.Decode(own, &h)
	if err != nil || h.Cmd > abi.CMJoinMcast || int(h.In) > len(rest) {
		return 0, syscall.EINVAL
	}
	run := cmCommands[h.Cmd]
	if run == nil {
		return 0, syscall.ENOSYS
	}
	r := &cmRequest{file: f, in: rest[:h.In], room: int(h.Out)}
	err = errno(run(r))
	// A program that finds no event asks again when there is one.
	if f.b.opts.Trace != nil && (h.Cmd != abi.CMGetEvent || err != syscall.EAGAIN) {
		f.b.trace(Call{Name: abi.CMCommands[h.Cmd].Name, Request: r.parsed, Response: r.answered, Err: err})
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// parse decodes the command. What follows it is not looked at; what it lacks the kernel would take from
// memory after it, and here it is zero.
func (r *cmRequest) parse(msg any) error {
	if _, err := abi.DecodePadded(r.in, msg); err != nil {
		return syscall.EINVAL
	}
	if r.file.b.opts.Trace != nil {
		r.parsed = append(r.parsed, msg)
	}
	return nil
}

// fits returns ENOSPC if there is no room for so many octets of an answer.
func (r *cmRequest) fits(octets int) error {
	if r.room < octets {
		return syscall.ENOSPC
	}
	return nil
}

// answer writes msg to the program, as far as it has room.
func (r *cmRequest) answer(addr uint64, msg any) error {
	b := abi.Append(nil, msg)
	if err := r.file.b.prog.WriteMemory(addr, b[:min(len(b), r.room)]); err != nil {
		return err
	}
	if r.file.b.opts.Trace != nil {
		r.answered = append(r.answered, msg)
	}
	return nil
}

func cmCreateID(r *cmRequest) error {
	var cmd abi.CreateID
	if err := r.fits(abi.Size(abi.CreateIDResp{})); err != nil {
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	f, s := r.file, &r.file.b.cm
	x := &cmID{uid: cmd.UID, file: f}
	switch cmd.PS {
	case abi.PortSpaceTCP:
		id, err := s.event.CreateID(x)
		if err != nil {
			return err
		}
		x.id = id
	case abi.PortSpaceIB: // librdmacm asks so whether the kernel takes addresses of AF_IB
	case abi.PortSpaceUDP, abi.PortSpaceIPoIB: // no iWARP device has datagrams, but that shows later
	default:
		return syscall.EINVAL
	}
	s.mu.Lock()
	s.add(x)
	s.mu.Unlock()
	if err := r.answer(cmd.Response, &abi.CreateIDResp{ID: x.handle}); err != nil {
		_, _ = f.destroy(x)
		return err
	}
	return nil
}

func cmDestroyID(r *cmRequest) error {
	var cmd abi.DestroyID
	if err := r.fits(abi.Size(abi.DestroyResp{})); err != nil {
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lookup(cmd.ID)
	if err != nil {
		return err
	}
	reported, ok := r.file.destroy(x)
	if !ok {
		return syscall.ENOENT
	}
	return r.answer(cmd.Response, &abi.DestroyResp{EventsReported: reported})
}

// cmGetEvent executes GET_EVENT. EAGAIN: there is none; who waits for one waits until the descriptor can
// be read.
func cmGetEvent(r *cmRequest) error {
	var cmd abi.Response
	if err := r.fits(abi.Size(abi.EventResp{}) - abi.Size(abi.ECE{}) - 4); err != nil {
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	f, s := r.file, &r.file.b.cm
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(f.events) == 0 {
		return syscall.EAGAIN
	}
	v := f.events[0]
	if err := r.answer(cmd.Response, &v.resp); err != nil {
		return err // the event stays
	}
	f.events = f.events[1:]
	f.ch.withdraw(1, func([]byte) bool { return true })
	v.owner.reported++
	return nil
}

// cmMigrateID executes MIGRATE_ID: an id of another descriptor comes to this one, with its events.
func cmMigrateID(r *cmRequest) error {
	var cmd abi.MigrateID
	if err := r.fits(abi.Size(abi.DestroyResp{})); err != nil {
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	from, ok := r.file.b.prog.File(int(int32(cmd.FD))).(*cmFile)
	if !ok {
		if _, err := unixFcntl(int(int32(cmd.FD))); err != nil {
			return syscall.ENOENT
		}
		return syscall.EINVAL
	}
	f, s := r.file, &r.file.b.cm
	s.mu.Lock()
	x, err := from.find(cmd.ID)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if from != f {
		moved := from.dropEvents(func(v *cmEvent) bool { return v.owner == x })
		x.file = f
		for _, v := range moved {
			if v.request != nil {
				v.request.file = f
			}
			f.queue(v)
		}
	}
	reported := x.reported
	s.mu.Unlock()
	return r.answer(cmd.Response, &abi.DestroyResp{EventsReported: reported})
}
