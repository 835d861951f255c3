package bridge

import (
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// compFile is a completion channel. It ends when the program has closed it and no CQ uses it, or
// with the device.
type compFile struct {
	ch   *channel
	file *uverbsFile
	uses atomic.Int32 // one for the program, and one for each CQ
}

// Write implements File: nothing can be written.
func (c *compFile) Write([]byte) (int, error) { return 0, syscall.EINVAL }

// Close implements File.
func (c *compFile) Close() { c.drop() }

func (c *compFile) drop() {
	if c.uses.Add(-1) == 0 {
		c.file.mu.Lock()
		delete(c.file.channels, c.ch)
		c.file.mu.Unlock()
		c.ch.close()
	}
}

func createCompChannel(r *request) error {
	if err := r.parse(&abi.Response{}); err != nil {
		return err
	}
	ch, fd, err := newChannel(r.file.b.prog, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	c := &compFile{ch: ch, file: r.file}
	c.uses.Store(1)
	r.file.mu.Lock()
	r.file.channels[ch] = struct{}{}
	r.file.mu.Unlock()
	if err = r.answer(&abi.CreateCompChannelResp{FD: uint32(fd)}); err != nil {
		c.drop()
		_ = unix.Close(fd)
		return err
	}
	_, err = r.file.b.adopt(fd, c)
	return err
}

// completionQueue is a CQ of the program.
type completionQueue struct {
	file *uverbsFile
	user uint64 // the program's value for it in events
	cq   *ibverbs.CQ
	ring *cqRing
	comp *compFile // nil for none

	asyncFired eventCount
}

func createCQ(r *request) error {
	var cmd abi.CreateCQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return r.makeCQ(abi.ExCreateCQ{UserHandle: cmd.UserHandle, CQE: cmd.CQE,
		CompVector:  cmd.CompVector,
		CompChannel: cmd.CompChannel}, func(base abi.CreateCQResp) any { return &base })
}

func exCreateCQ(r *request) error {
	var cmd abi.ExCreateCQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.CompMask != 0 || cmd.Reserved != 0 {
		return syscall.EINVAL
	}
	return r.makeCQ(cmd, func(base abi.CreateCQResp) any {
		resp := &abi.ExCreateCQResp{Base: base}
		resp.ResponseLength = uint32(min(r.room, abi.Size(resp)))
		return resp
	})
}

// makeCQ makes a CQ. resp makes the answer from its common part.
func (r *request) makeCQ(cmd abi.ExCreateCQ, resp func(abi.CreateCQResp) any) error {
	f := r.file
	if cmd.CompVector != 0 { // there is only one vector
		return syscall.EINVAL
	}
	var comp *compFile
	if cmd.CompChannel >= 0 {
		var ok bool
		if comp, ok = f.b.prog.File(int(cmd.CompChannel)).(*compFile); !ok || comp.file != f {
			return syscall.EBADF
		}
	}
	switch {
	case cmd.Flags != 0:
		return syscall.EOPNOTSUPP
	case cmd.CQE < 1 || cmd.CQE > maxCQE, r.extra < abi.Size(abi.SiwCreateCQResp{}):
		return syscall.EINVAL
	}
	size := roundUp(cmd.CQE)
	mem, err := f.arena.alloc(cqOctets(size))
	if err != nil {
		return syscall.ENOMEM
	}
	c := &completionQueue{file: f, user: cmd.UserHandle, ring: newCQRing(mem, size), comp: comp}
	if comp != nil {
		comp.uses.Add(1)
		c.ring.ch, c.ring.event = comp.ch, abi.Append(nil, &abi.CompEvent{CQHandle: cmd.UserHandle})
	}
	// The device, which limits what a program may request, gets the requested size, because the
	// ring's size may exceed that limit. The ring has the room.
	if c.cq, err = f.b.vctx.CreateCQ(int(cmd.CQE), &ibverbs.CQOptions{Sink: c.ring,
		Cookie: c}); err != nil {
		c.release()
		return err
	}
	h := f.handles.add(c)
	if err = r.answer(resp(abi.CreateCQResp{CQHandle: h, CQE: size})); err == nil {
		err = r.answerDriver(&abi.SiwCreateCQResp{CQID: h, NumCQE: size, CQKey: uint64(mem.key)})
	}
	if err != nil {
		_ = remove(&f.handles, h, (*completionQueue).destroy)
	}
	return err
}

// roundUp returns the smallest power of two that is at least n; n is at least 1.
func roundUp(n uint32) uint32 {
	size := uint32(1)
	for size < n {
		size *= 2
	}
	return size
}

func (c *completionQueue) destroy() error {
	if err := c.cq.Close(); err != nil {
		return err
	}
	c.release()
	return nil
}

// release frees what the CQ has besides the device's CQ.
func (c *completionQueue) release() {
	c.ring.close()
	if c.comp != nil {
		c.comp.drop()
	}
}

// Progress transmits and receives for the QPs that complete on a CQ, when the program has found the
// CQ empty. It does nothing if there is no such CQ.
func (f *uverbsFile) Progress(handle uint32) {
	if c, err := lookup[*completionQueue](&f.handles, handle); err == nil {
		for before, look := c.ring.put.Load(), 0; look < looks; look++ {
			if _, _ = c.cq.Poll(nil); c.ring.put.Load() != before {
				return
			}
		}
	}
}

// looks is how many times Progress polls the engine while it has a polling program's CPU time,
// because entering Go costs a third of a poll.
const looks = 4

// Attend arms a CQ for a program that is about to wait for an event. So deferred posts are
// transmitted, and the progress goroutine serves the CQ's QPs at once. It does nothing if there is
// no such CQ.
func (f *uverbsFile) Attend(handle uint32) {
	if c, err := lookup[*completionQueue](&f.handles, handle); err == nil {
		_ = c.cq.ReqNotify(false)
	}
}

func destroyCQ(r *request) error {
	var cmd abi.DestroyCQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	var resp abi.DestroyCQResp
	err := remove(&r.file.handles, cmd.CQHandle, func(c *completionQueue) error {
		if err := c.cq.Close(); err != nil {
			return err
		}
		if c.comp != nil {
			resp.CompEventsReported = c.ring.fired.end() - withdrawComp(c.comp.ch, c.user)
		}
		resp.AsyncEventsReported = c.asyncFired.end() - r.file.withdrawAsync(c.user)
		c.release()
		return nil
	})
	if err != nil {
		return err
	}
	return r.answer(&resp)
}

// withdrawComp removes the unread events of the CQ whose user handle is user.
func withdrawComp(ch *channel, user uint64) uint32 {
	return uint32(ch.withdraw(func(event []byte) bool {
		var e abi.CompEvent
		_, err := abi.Decode(event, &e)
		return err == nil && e.CQHandle == user
	}))
}

// sharedQueue is an SRQ of the program.
type sharedQueue struct {
	file *uverbsFile
	user uint64
	srq  *ibverbs.SRQ
	ring *recvRing
	sge  uint32

	asyncFired eventCount
}

func createSRQ(r *request) error {
	var cmd abi.CreateSRQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return r.makeSRQ(&cmd)
}

// Types of SRQs (enum ib_srq_type).
const (
	srqBasic = 0
	srqXRC   = 1
	srqTM    = 2
)

// createXSRQ executes CREATE_XSRQ: siw has only the type of SRQ that CREATE_SRQ makes.
func createXSRQ(r *request) error {
	var cmd abi.CreateXSRQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	switch cmd.SRQType {
	case srqXRC: // there is no XRC domain
		return syscall.EINVAL
	case srqTM:
		if _, err := lookup[*completionQueue](&r.file.handles, cmd.CQHandle); err != nil {
			return err
		}
	}
	if cmd.SRQType != srqBasic {
		if _, err := lookup[*domain](&r.file.handles, cmd.PDHandle); err != nil {
			return err
		}
		return syscall.EOPNOTSUPP
	}
	return r.makeSRQ(&abi.CreateSRQ{UserHandle: cmd.UserHandle, PDHandle: cmd.PDHandle,
		MaxWR: cmd.MaxWR, MaxSGE: cmd.MaxSGE, SRQLimit: cmd.SRQLimit})
}

func (r *request) makeSRQ(cmd *abi.CreateSRQ) error {
	f := r.file
	pd, err := lookup[*domain](&f.handles, cmd.PDHandle)
	if err != nil {
		return err
	}
	if cmd.MaxWR == 0 || cmd.MaxWR > maxSRQ || cmd.MaxSGE > abi.SiwMaxSGE ||
		cmd.SRQLimit > cmd.MaxWR ||
		r.extra < abi.Size(abi.SiwCreateSRQResp{}) {
		return syscall.EINVAL
	}
	size := roundUp(cmd.MaxWR)
	mem, err := f.arena.alloc(int(size) * int(rqeSize))
	if err != nil {
		return syscall.ENOMEM
	}
	s := &sharedQueue{file: f, user: cmd.UserHandle, sge: cmd.MaxSGE, ring: &recvRing{mem: mem,
		size: size}}
	s.ring.low = func() { f.raise(ibverbs.EventSRQLimitReached, s.user, &s.asyncFired) }
	s.ring.arm(cmd.SRQLimit)
	s.srq, err = pd.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: int(cmd.MaxWR),
		MaxSGE: abi.SiwMaxSGE},
		Recvs: s.ring, Cookie: s})
	if err != nil {
		s.ring.close()
		return err
	}
	h := f.handles.add(s)
	if err = r.answer(&abi.CreateSRQResp{SRQHandle: h, MaxWR: cmd.MaxWR,
		MaxSGE: cmd.MaxSGE}); err == nil {
		err = r.answerDriver(&abi.SiwCreateSRQResp{NumRQE: size, SRQKey: uint64(mem.key)})
	}
	if err != nil {
		_ = remove(&f.handles, h, (*sharedQueue).destroy)
	}
	return err
}

func (s *sharedQueue) destroy() error {
	if err := s.srq.Close(); err != nil {
		return err
	}
	s.ring.close()
	return nil
}

// What MODIFY_SRQ changes (enum ib_srq_attr_mask).
const (
	srqMaxWR = 1 << 0
	srqLimit = 1 << 1
)

func modifySRQ(r *request) error {
	var cmd abi.ModifySRQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	s, err := lookup[*sharedQueue](&r.file.handles, cmd.SRQHandle)
	if err != nil {
		return err
	}
	switch {
	case cmd.AttrMask&srqMaxWR != 0:
		return syscall.EOPNOTSUPP // siw does not support it
	case cmd.AttrMask&srqLimit == 0:
		return nil
	case cmd.SRQLimit > s.ring.size:
		return syscall.EINVAL
	}
	s.ring.arm(cmd.SRQLimit)
	return nil
}

func querySRQ(r *request) error {
	var cmd abi.QuerySRQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	s, err := lookup[*sharedQueue](&r.file.handles, cmd.SRQHandle)
	if err != nil {
		return err
	}
	s.ring.mu.Lock()
	limit := s.ring.limit
	s.ring.mu.Unlock()
	return r.answer(&abi.QuerySRQResp{MaxWR: s.ring.size, MaxSGE: s.sge, SRQLimit: limit})
}

func destroySRQ(r *request) error {
	var cmd abi.DestroySRQ
	if err := r.parse(&cmd); err != nil {
		return err
	}
	var resp abi.DestroyResp
	err := remove(&r.file.handles, cmd.SRQHandle, func(s *sharedQueue) error {
		if err := s.destroy(); err != nil {
			return err
		}
		resp.EventsReported = s.asyncFired.end() - r.file.withdrawAsync(s.user)
		return nil
	})
	if err != nil {
		return err
	}
	return r.answer(&resp)
}
