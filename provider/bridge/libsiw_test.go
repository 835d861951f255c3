package bridge

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// The code below does what libibverbs and libsiw do in a program.

// libDevice is a device that the program has opened.
type libDevice struct {
	t     *testing.T
	prog  *testProgram
	fd    int
	async int
}

// openDevice opens the bridge's device and gets a context.
func openDevice(t *testing.T, b *Bridge, prog *testProgram) *libDevice {
	t.Helper()
	fd, err := b.OpenUverbs(unix.O_RDWR | unix.O_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	d := &libDevice{t: t, prog: prog, fd: fd}
	var resp abi.GetContextResp
	var siw abi.SiwAllocCtxResp
	d.must(abi.UverbsGetContext, &abi.Response{}, nil, &resp, &siw)
	d.async = int(resp.AsyncFD)
	return d
}

func (d *libDevice) close() {
	d.prog.close(d.fd)
	d.prog.close(d.async)
}

// write writes bytes to the device.
func (d *libDevice) write(b []byte) error {
	n, err := d.prog.File(d.fd).Write(b)
	if err == nil && n != len(b) {
		d.t.Errorf("%d of %d bytes were taken", n, len(b))
	}
	return err
}

// command writes a command whose answer has the layouts of resp and driverResp; nil means none. If
// there is an answer, the request's first field is its address.
func (d *libDevice) command(number uint32, req, driver, resp, driverResp any) error {
	d.t.Helper()
	words := 0
	var room []byte
	var addr uint64
	if resp != nil {
		n := abi.Size(resp)
		if driverResp != nil {
			n += abi.Size(driverResp)
		}
		room, addr = d.prog.alloc(n)
		words = n / 4
		for i := range room {
			room[i] = 0xa5 // shows what is not written
		}
	}
	body := abi.Append(nil, req)
	if resp != nil {
		copy(body, abi.Append(nil, &abi.Response{Response: addr}))
	}
	if driver != nil {
		body = abi.Append(body, driver)
	}
	b := abi.Append(nil, &abi.UverbsHeader{Command: number, InWords: uint16((8 + len(body)) / 4),
		OutWords: uint16(words)})
	if err := d.write(append(b, body...)); err != nil {
		return err
	}
	if resp != nil {
		rest, err := abi.Decode(room, resp)
		if err == nil && driverResp != nil {
			_, err = abi.Decode(rest, driverResp)
		}
		return err
	}
	return nil
}

// must writes a command that must succeed.
func (d *libDevice) must(number uint32, req, driver, resp, driverResp any) {
	d.t.Helper()
	if err := d.command(number, req, driver, resp, driverResp); err != nil {
		d.t.Fatalf("%s: %v", abi.UverbsCommands[number].Name, err)
	}
}

// wantErrno expects that a command fails.
func (d *libDevice) wantErrno(what string, want syscall.Errno, number uint32, req, driver, resp,
	driverResp any) {
	d.t.Helper()
	if err := d.command(number, req, driver, resp, driverResp); !errors.Is(err, want) {
		d.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (d *libDevice) allocPD() uint32 {
	d.t.Helper()
	var resp abi.AllocPDResp
	d.must(abi.UverbsAllocPD, &abi.Response{}, nil, &resp, nil)
	return resp.PDHandle
}

// libMR is a registered piece of the program's memory.
type libMR struct {
	abi.RegMRResp
	buf  []byte
	addr uint64
}

func (d *libDevice) regMR(pd uint32, n int, access uint32) *libMR {
	d.t.Helper()
	m := new(libMR)
	m.buf, m.addr = d.prog.alloc(n)
	d.must(abi.UverbsRegMR, &abi.RegMR{Start: m.addr, Length: uint64(n), HCAVA: m.addr,
		PDHandle: pd, AccessFlags: access},
		&abi.SiwRegMRReq{}, &m.RegMRResp, &abi.SiwRegMRResp{})
	return m
}

// mmap maps a queue.
func (d *libDevice) mmap(key uint64, n uintptr) []byte {
	d.t.Helper()
	mem, err := unix.Mmap(d.fd, int64(key), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		d.t.Fatalf("mapping a queue: %v", err)
	}
	d.t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func (d *libDevice) channel() int {
	d.t.Helper()
	var resp abi.CreateCompChannelResp
	d.must(abi.UverbsCreateCompChannel, &abi.Response{}, nil, &resp, nil)
	return int(resp.FD)
}

// libCQ is a CQ in the form of libsiw.
type libCQ struct {
	d      *libDevice
	handle uint32
	num    uint32
	mem    []byte
	get    uint32
}

// createCQ makes a CQ. channel is -1 for none.
func (d *libDevice) createCQ(cqe uint32, channel int, user uint64) *libCQ {
	d.t.Helper()
	var resp abi.CreateCQResp
	var siw abi.SiwCreateCQResp
	d.must(abi.UverbsCreateCQ, &abi.CreateCQ{CQE: cqe, CompChannel: int32(channel),
		UserHandle: user}, nil, &resp, &siw)
	size := uintptr(siw.NumCQE)*unsafe.Sizeof(abi.SiwCQE{}) + unsafe.Sizeof(abi.SiwCQCtrl{})
	return &libCQ{d: d, handle: resp.CQHandle, num: siw.NumCQE, mem: d.mmap(siw.CQKey, size)}
}

// poll takes a completion.
func (c *libCQ) poll() (abi.SiwCQE, bool) {
	e := (*abi.SiwCQE)(unsafe.Pointer(&c.mem[uintptr(c.get%c.num)*unsafe.Sizeof(abi.SiwCQE{})]))
	w := (*uint32)(unsafe.Pointer(&c.mem[uintptr(c.get%c.num)*unsafe.Sizeof(abi.SiwCQE{})+8]))
	if atomic.LoadUint32(w)&cqeValid == 0 {
		return abi.SiwCQE{}, false
	}
	wc := *e
	atomic.StoreUint32(w, 0)
	c.get++
	return wc, true
}

// arm asks for an event.
func (c *libCQ) arm(flags uint32) {
	w := (*uint32)(unsafe.Pointer(&c.mem[uintptr(c.num)*unsafe.Sizeof(abi.SiwCQE{})]))
	atomic.StoreUint32(w, flags)
}

// libQP is a QP in the form of libsiw.
type libQP struct {
	d          *libDevice
	handle     uint32
	qpn        uint32
	sq, rq     []byte
	nsq, nrq   uint32
	sput, rput uint32
	doorbells  int
}

func (d *libDevice) createQP(req abi.CreateQP) *libQP {
	d.t.Helper()
	var resp abi.CreateQPResp
	var siw abi.SiwCreateQPResp
	d.must(abi.UverbsCreateQP, &req, nil, &resp, &siw)
	q := &libQP{d: d, handle: resp.QPHandle, qpn: resp.QPN, nsq: siw.NumSQE, nrq: siw.NumRQE}
	q.sq = d.mmap(siw.SQKey, uintptr(siw.NumSQE)*sqeSize)
	if req.IsSRQ == 0 {
		q.rq = d.mmap(siw.RQKey, uintptr(siw.NumRQE)*rqeSize)
	}
	return q
}

// postRecv posts a receive; it returns false if the queue is full.
func (q *libQP) postRecv(id uint64, sges ...abi.SiwSGE) bool {
	return postRQE(q.rq, q.nrq, &q.rput, id, sges...)
}

func postRQE(rq []byte, num uint32, put *uint32, id uint64, sges ...abi.SiwSGE) bool {
	at := unsafe.Pointer(&rq[uintptr(*put%num)*rqeSize])
	if loadHead(at).flags != 0 {
		return false
	}
	e := (*abi.SiwRQE)(at)
	e.ID = id
	copy(e.SGE[:], sges)
	setHead(at, wqeHead{flags: abi.SiwWQEValid, numSGE: uint8(len(sges))})
	*put++
	return true
}

func setHead(element unsafe.Pointer, h wqeHead) {
	atomic.StoreUint32(word(element), *(*uint32)(unsafe.Pointer(&h)))
}

// postSend posts a work request as libsiw does, with a doorbell if the queue looks idle. It returns
// ENOMEM if the queue is full.
func (q *libQP) postSend(sqe abi.SiwSQE) error {
	at := unsafe.Pointer(&q.sq[uintptr(q.sput%q.nsq)*sqeSize])
	if loadHead(at).flags&abi.SiwWQEValid != 0 {
		return syscall.ENOMEM
	}
	e := (*abi.SiwSQE)(at)
	e.ID, e.RKey, e.RAddr, e.SGE = sqe.ID, sqe.RKey, sqe.RAddr, sqe.SGE
	setHead(at, wqeHead{flags: sqe.Flags | abi.SiwWQEValid, numSGE: sqe.NumSGE, opcode: sqe.Opcode})
	old := unsafe.Pointer(&q.sq[uintptr((q.sput-1)%q.nsq)*sqeSize])
	q.sput++
	if q.nsq > 1 && loadHead(old).flags&abi.SiwWQEValid != 0 {
		return nil
	}
	q.doorbells++
	return q.doorbell()
}

func (q *libQP) doorbell() error {
	var resp abi.PostResp
	err := q.d.command(abi.UverbsPostSend, &abi.PostSend{QPHandle: q.handle, WQESize: 128}, nil,
		&resp, nil)
	if err == nil && resp.BadWR != 0 {
		q.d.t.Errorf("a doorbell: bad_wr is %#x, want 0", resp.BadWR)
	}
	return err
}

// errnoOf returns the errno in an error of Write.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	errors.As(err, &e)
	return e
}
