package bridge

import (
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// cmRequest is a running command of rdma_cm.
type cmRequest struct {
	file *cmFile
	in   []byte // everything after the header; the kernel only reads what it needs
	size int    // bytes of the command, according to the header
	room int    // bytes for the answer

	parsed   []any // for Trace
	answered []any
}

// cmCommands execute the commands. The kernel has a function for each command except GET_OPTION.
var cmCommands map[uint32]func(*cmRequest) error

func init() { // in init, because the functions refer to the table
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
		abi.CMJoinIPMcast:  cmJoinIPMcast,
		abi.CMLeaveMcast:   cmLeaveMcast,
		abi.CMMigrateID:    cmMigrateID,
		abi.CMQuery:        cmQuery,
		abi.CMBind:         cmBind,
		abi.CMResolveAddr:  cmResolveAddr,
		abi.CMJoinMcast:    cmJoinMcast,
	}
}

// maxCMCommand is more than the length of any command, in bytes.
const maxCMCommand = 512

// Write implements File, as ucma_write of the kernel does.
func (f *cmFile) Write(b []byte) (int, error) {
	var h abi.CMHeader
	// A copy, so changes that the program makes during the command have no effect.
	own := slices.Clone(b[:min(len(b), maxCMCommand)])
	rest, err := abi.Decode(own, &h)
	if err != nil || h.Cmd > abi.CMJoinMcast || abi.Size(h)+int(h.In) > len(b) {
		return 0, syscall.EINVAL
	}
	run := cmCommands[h.Cmd]
	if run == nil {
		return 0, syscall.ENOSYS
	}
	r := &cmRequest{file: f, in: rest, size: int(h.In), room: int(h.Out)}
	err = errno(run(r))
	// A GET_EVENT that finds no event is not traced, because the program repeats it.
	if f.b.opts.Trace != nil && (h.Cmd != abi.CMGetEvent || err != syscall.EAGAIN) {
		f.b.trace(Call{Name: abi.CMCommands[h.Cmd].Name, Request: r.parsed, Response: r.answered,
			Err: err})
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// parse decodes the command. It ignores the length in the header, because the kernel copies what it
// needs. The kernel would read missing bytes from the memory that follows; here they are zero.
func (r *cmRequest) parse(msg any) error {
	if _, err := abi.DecodePadded(r.in, msg); err != nil {
		return syscall.EINVAL
	}
	if r.file.b.opts.Trace != nil {
		r.parsed = append(r.parsed, msg)
	}
	return nil
}

// parseFor decodes a command and returns ENOSPC if the program has less than answer bytes of room
// for the answer.
func (r *cmRequest) parseFor(msg any, answer int) error {
	if err := r.fits(answer); err != nil {
		return err
	}
	return r.parse(msg)
}

// parseGrown decodes a command that has grown. As the kernel does, it uses the length in the
// header, which must be least bytes or more.
func (r *cmRequest) parseGrown(msg any, least int) error {
	if r.size < least {
		return syscall.EINVAL
	}
	r.in = r.in[:min(r.size, len(r.in))]
	return r.parse(msg)
}

// fits returns ENOSPC if the answer has more bytes than there is room for.
func (r *cmRequest) fits(octets int) error {
	if r.room < octets {
		return syscall.ENOSPC
	}
	return nil
}

// answer writes as much of msg to the program as there is room for.
func (r *cmRequest) answer(addr uint64, msg any) error {
	b := abi.Append(nil, msg)
	return r.write(addr, b[:min(len(b), r.room)], msg)
}

// answerAll writes msg to the program without regard to its room, as the kernel does for some
// commands.
func (r *cmRequest) answerAll(addr uint64, msg any) error {
	return r.write(addr, abi.Append(nil, msg), msg)
}

func (r *cmRequest) write(addr uint64, b []byte, msg any) error {
	if err := r.file.b.prog.WriteMemory(addr, b); err != nil {
		return syscall.EFAULT
	}
	if r.file.b.opts.Trace != nil {
		r.answered = append(r.answered, msg)
	}
	return nil
}

// cmCreateID executes CREATE_ID. iWARP devices have no datagrams, but ids of their port spaces can
// be made and even connected; only creating a QP of such a type fails.
func cmCreateID(r *cmRequest) error {
	var cmd abi.CreateID
	if err := r.parseFor(&cmd, abi.Size(abi.CreateIDResp{})); err != nil {
		return err
	}
	f, s := r.file, &r.file.b.cm
	x := &cmID{ps: cmd.PS, uid: cmd.UID, file: f}
	switch cmd.PS {
	case abi.PortSpaceTCP:
		x.qpType = typeRC
	case abi.PortSpaceUDP, abi.PortSpaceIPoIB:
		x.qpType = typeUD
	case abi.PortSpaceIB:
		x.qpType = cmd.QPType
	default:
		return syscall.EINVAL
	}
	var err error
	if x.id, err = s.event.CreateID(x); err != nil {
		return err
	}
	s.mu.Lock()
	s.ids.add(x)
	s.mu.Unlock()
	if err := r.answerAll(cmd.Response, &abi.CreateIDResp{ID: x.handle}); err != nil {
		_, _ = f.remove(x.handle)
		return err
	}
	return nil
}

// remove destroys the id with a number.
func (f *cmFile) remove(handle uint32) (reported uint32, err error) {
	s := &f.b.cm
	s.mu.Lock()
	x, err := f.find(handle)
	if err == nil {
		s.ids.reserve(x)
	}
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return s.destroy(x), nil
}

func cmDestroyID(r *cmRequest) error {
	var cmd abi.DestroyID
	if err := r.parseFor(&cmd, abi.Size(abi.DestroyResp{})); err != nil {
		return err
	}
	reported, err := r.file.remove(cmd.ID)
	if err != nil {
		return err
	}
	return r.answerAll(cmd.Response, &abi.DestroyResp{EventsReported: reported})
}

// leastEvent is the original size of the answer to GET_EVENT, without later additions, in bytes.
const leastEvent = 328

// cmGetEvent executes GET_EVENT. It returns EAGAIN if there is no event; a caller that wants to
// wait waits until the descriptor is readable.
func cmGetEvent(r *cmRequest) error {
	var cmd abi.Response
	// 32-bit programs also leave out the padding.
	if err := r.parseFor(&cmd, leastEvent-4); err != nil {
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
	f.events[0] = nil
	f.events = f.events[1:]
	f.settle()
	v.owner.reported++
	if v.request != nil {
		v.owner.backlog++
	}
	return nil
}

// cmMigrateID executes MIGRATE_ID: it moves an id from another descriptor to this one, with its
// events.
func cmMigrateID(r *cmRequest) error {
	var cmd abi.MigrateID
	if err := r.parse(&cmd); err != nil {
		return err
	}
	fd := int(int32(cmd.FD))
	from, ok := r.file.b.prog.File(fd).(*cmFile)
	if !ok || from.b != r.file.b {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return syscall.ENOENT
		}
		return syscall.EINVAL
	}
	reported, err := from.migrate(cmd.ID, r.file)
	if err != nil {
		return err
	}
	return r.answerAll(cmd.Response, &abi.DestroyResp{EventsReported: reported})
}

// migrate moves an id from f to another descriptor. It returns the number of the id's events that
// the program has fetched.
func (f *cmFile) migrate(handle uint32, to *cmFile) (reported uint32, err error) {
	s := &f.b.cm
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := f.find(handle)
	if err != nil {
		return 0, err
	}
	x.file = to
	for _, v := range f.drop(func(v *cmEvent) bool { return v.owner == x }) {
		if v.request != nil && v.request.file == f {
			v.request.file = to
		}
		to.queue(v)
	}
	return x.reported, nil
}
