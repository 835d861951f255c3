package bridge

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// uverbsFile is an open /dev/infiniband/uverbs*.
type uverbsFile struct {
	b       *Bridge
	arena   *arena
	handles handles

	mu       sync.Mutex
	async    *channel              // nil before GET_CONTEXT
	channels map[*channel]struct{} // of completions, until they are closed
}

// OpenUverbs opens the device, as open(2) of /dev/infiniband/uverbs0 does. Of the open flags, only
// O_CLOEXEC has an effect. The descriptor is the program's, and is adopted.
func (b *Bridge) OpenUverbs(flags int) (fd int, err error) {
	memfd := 0
	if flags&unix.O_CLOEXEC != 0 {
		memfd = unix.MFD_CLOEXEC
	}
	a, fd, err := newArena(memfd)
	if err != nil {
		return -1, err
	}
	b.prog.Own(a.fd, true)
	return b.adopt(fd, &uverbsFile{b: b, arena: a, channels: map[*channel]struct{}{}})
}

// A request is a running command.
type request struct {
	file   *uverbsFile
	cmd    *abi.Command
	in     []byte // after the headers, without the driver's part
	driver []byte // added by libsiw
	out    uint64 // address of the answer
	room   int    // bytes of room there, without the driver's part
	extra  int    // bytes for the driver's answer, after room

	parsed   []any // for Trace
	answered []any
}

// Sizes of the headers, in bytes.
const (
	headerSize = 8
	exHeader   = 16
)

// Write implements File, as ib_uverbs_write and verify_hdr of the kernel do.
func (f *uverbsFile) Write(b []byte) (int, error) {
	if len(b) >= headerSize && binary.NativeEndian.Uint32(b) == abi.UverbsPostSend {
		return f.postSend(b)
	}
	if len(b) > maxCommand {
		return 0, syscall.EINVAL // a header cannot give such a length
	}
	r := &request{file: f}
	run, err := r.begin(slices.Clone(b)) // a copy: later changes by the program have no effect
	if err == nil {
		err = errno(run(r))
	}
	if f.b.opts.Trace != nil && r.cmd != nil {
		f.b.trace(Call{Name: r.cmd.Name, Request: r.parsed, Response: r.answered, Err: err})
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// maxCommand is more than the length of any command, in bytes. An extended command has two parts,
// each of fewer than 2^16 words of eight bytes.
const maxCommand = headerSize + exHeader + 2*8*(1<<16)

// begin reads the headers of a command, and returns the function that executes it.
func (r *request) begin(b []byte) (func(*request) error, error) {
	var h abi.UverbsHeader
	rest, err := abi.Decode(b, &h)
	if err != nil {
		return nil, syscall.EINVAL
	}
	number := h.Command &^ abi.UverbsExtended
	if number&^0xff != 0 {
		return nil, syscall.EINVAL
	}
	if h.Command&abi.UverbsExtended != 0 {
		return r.beginExtended(number, &h, b, rest)
	}
	c, ok := uverbsCommands[number]
	cmd := abi.UverbsCommands[number]
	r.cmd = &cmd
	if !ok {
		return absent(&h, b)
	}
	size, answer := sizeOf(cmd.Request), sizeOf(cmd.Response)
	switch {
	case int(h.InWords)*4 != len(b):
		return nil, syscall.EINVAL
	case len(rest) < size:
		// rdma-core 18 and 19 write DESTROY_CQ with 16 bytes.
		if number != abi.UverbsDestroyCQ || len(b) != 16 {
			return nil, syscall.ENOSPC
		}
		rest = append(rest, make([]byte, size-len(rest))...)
	case int(h.OutWords)*4 < answer:
		return nil, syscall.ENOSPC
	}
	if !r.file.ready(c) {
		return nil, syscall.EINVAL
	}
	r.in = rest
	if answer > 0 {
		r.out = binary.NativeEndian.Uint64(rest) // every command with an answer begins with its address
		r.room = int(h.OutWords) * 4
	}
	if c.needs&needsDriver != 0 {
		r.in, r.driver = rest[:size], rest[size:]
		r.room, r.extra = answer, r.room-answer
	}
	return c.run, nil
}

// absent returns the errno for a command that siw has no function for. The kernel checks its length
// against the header as if it were not extended.
func absent(h *abi.UverbsHeader, b []byte) (func(*request) error, error) {
	if int(h.InWords)*4 != len(b) {
		return nil, syscall.EINVAL
	}
	return nil, syscall.EOPNOTSUPP
}

// lastExtended is the last extended command that siw has a function for. The kernel does not check
// later ones.
const lastExtended = abi.UverbsModifyQP

// beginExtended reads the second header of an extended command b, at the beginning of rest. These
// commands have grown: fields that the program leaves out are zero, and the answer is cut off at
// the program's room.
func (r *request) beginExtended(number uint32, h *abi.UverbsHeader, b, rest []byte) (
	func(*request) error, error) {
	c, ok := uverbsExCommands[number]
	cmd := abi.UverbsExCommands[number]
	r.cmd = &cmd
	switch {
	case number > lastExtended:
		return nil, syscall.EOPNOTSUPP
	case !ok:
		return absent(h, b)
	}
	var x abi.UverbsExHeader
	rest, err := abi.Decode(rest, &x)
	if err != nil {
		return nil, syscall.EINVAL
	}
	in := int(h.InWords) * 8
	switch {
	case in+int(x.ProviderInWords)*8 != len(rest):
		return nil, syscall.EINVAL
	case x.Reserved != 0:
		return nil, syscall.EINVAL
	case (x.Response != 0) != (h.OutWords != 0 || x.ProviderOutWords != 0):
		return nil, syscall.EINVAL
	}
	if !r.file.ready(c) {
		return nil, syscall.EINVAL
	}
	r.in, r.driver = rest[:in], rest[in:]
	r.out, r.room, r.extra = x.Response, int(h.OutWords)*8, int(x.ProviderOutWords)*8
	return c.run, nil
}

// ready reports whether the file has what a command needs.
func (f *uverbsFile) ready(c uverbsCommand) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.async != nil || c.needs&needsContext == 0
}

func sizeOf(msg any) int {
	if msg == nil {
		return 0
	}
	return abi.Size(msg)
}

// parse decodes the command. Fields that are missing in the program's version are zero. Additional
// bytes must be zero.
func (r *request) parse(msg any) error {
	rest, err := abi.DecodePadded(r.in, msg)
	if err != nil {
		return syscall.EINVAL
	}
	if slices.ContainsFunc(rest, func(x byte) bool { return x != 0 }) {
		return syscall.EOPNOTSUPP
	}
	r.keep(&r.parsed, msg)
	return nil
}

// keep adds a message to a list for Trace.
func (r *request) keep(list *[]any, msg any) {
	if r.file.b.opts.Trace != nil {
		*list = append(*list, msg)
	}
}

// answer writes msg to the program, cut off or padded with zeros to the program's room.
func (r *request) answer(msg any) error {
	b := abi.Append(make([]byte, 0, r.room), msg)
	if len(b) < r.room {
		b = append(b, make([]byte, r.room-len(b))...)
	}
	r.keep(&r.answered, msg)
	if r.room == 0 {
		return nil // an extended command without an address for its answer
	}
	return r.file.b.prog.WriteMemory(r.out, b[:r.room])
}

// answerDriver writes siw's addition to the answer. It returns EINVAL if there is not enough room.
func (r *request) answerDriver(msg any) error {
	if r.extra < abi.Size(msg) {
		return syscall.EINVAL
	}
	r.keep(&r.answered, msg)
	return r.file.b.prog.WriteMemory(r.out+uint64(r.room), abi.Append(nil, msg))
}

// uverbsCommand executes a command.
type uverbsCommand struct {
	run   func(*request) error
	needs needs
}

// needs are the requirements of a command.
type needs uint8

const (
	// The command must come after GET_CONTEXT. Commands for an object may also come before it; they
	// then find no object.
	needsContext needs = 1 << iota

	// The bytes after the command and its answer belong to the driver. For other commands the
	// following bytes must be zero, and the kernel writes zeros after their answers.
	needsDriver
)

var uverbsCommands, uverbsExCommands map[uint32]uverbsCommand

func init() { // in init, because the functions refer to the tables
	uverbsCommands = map[uint32]uverbsCommand{
		abi.UverbsGetContext:        {getContext, needsDriver},
		abi.UverbsQueryDevice:       {queryDevice, needsContext},
		abi.UverbsQueryPort:         {queryPort, needsContext},
		abi.UverbsAllocPD:           {allocPD, needsContext | needsDriver},
		abi.UverbsDeallocPD:         {run: deallocPD},
		abi.UverbsRegMR:             {regMR, needsContext | needsDriver},
		abi.UverbsDeregMR:           {run: deregMR},
		abi.UverbsCreateCompChannel: {createCompChannel, needsContext},
		abi.UverbsCreateCQ:          {createCQ, needsContext | needsDriver},
		abi.UverbsDestroyCQ:         {run: destroyCQ},
		abi.UverbsCreateQP:          {createQP, needsContext | needsDriver},
		abi.UverbsQueryQP:           {run: queryQP},
		abi.UverbsModifyQP:          {run: modifyQP},
		abi.UverbsDestroyQP:         {run: destroyQP},
		abi.UverbsCreateSRQ:         {createSRQ, needsContext | needsDriver},
		abi.UverbsCreateXSRQ:        {createXSRQ, needsContext | needsDriver},
		abi.UverbsModifySRQ:         {modifySRQ, needsDriver},
		abi.UverbsQuerySRQ:          {run: querySRQ},
		abi.UverbsDestroySRQ:        {run: destroySRQ},
	}
	uverbsExCommands = map[uint32]uverbsCommand{
		abi.UverbsQueryDevice: {exQueryDevice, needsContext},
		abi.UverbsCreateCQ:    {exCreateCQ, needsContext},
		abi.UverbsCreateQP:    {exCreateQP, needsContext},
		abi.UverbsModifyQP:    {run: exModifyQP},
	}
}

// Close implements File: it destroys everything that the program has left.
func (f *uverbsFile) Close() {
	for _, q := range all[*queuePair](&f.handles) {
		_ = q.destroy()
	}
	for _, s := range all[*sharedQueue](&f.handles) {
		_ = s.destroy()
	}
	for _, c := range all[*completionQueue](&f.handles) {
		_ = c.destroy()
	}
	for _, m := range all[*memoryRegion](&f.handles) {
		_ = m.destroy()
	}
	for _, p := range all[*domain](&f.handles) {
		_ = p.destroy()
	}
	f.mu.Lock()
	channels := slices.Collect(maps.Keys(f.channels))
	if f.async != nil {
		channels = append(channels, f.async)
	}
	f.mu.Unlock()
	for _, ch := range channels {
		ch.close() // wakes the threads that wait for its events
	}
	f.b.prog.Own(f.arena.fd, false)
	f.arena.close()
}
