package memory

import (
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Peer is the other end of a queue pair's connections. It may use regions and windows of the queue
// pair's protection domain, and windows of type 2 that are bound for it alone. It belongs to the
// queue pair, and must not be copied.
type Peer struct {
	Domain  *Domain // of the queue pair; does not change
	windows boundWindows
}

// A peer names our memory by STag and TO. The methods below make the checks that the RFCs require,
// in their order, and return the error for the Terminate that the RFCs require. Their errors are
// package variables of ddp and rdmap, so nothing is allocated.

// WriteTarget checks the n bytes that a tagged segment of a Write names. After a nil error they are
// in use until m.ReleaseRemote. For n = 0 nothing is checked and m is nil. If the region is an
// object, b is nil.
//
//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
//rfc:5041 DDP-8.3.1-1-01 Stream cannot use STag of another PD
func (p *Peer) WriteTarget(stag uint32, to uint64, n int) (m *Region, b []byte, err error) {
	if n == 0 {
		return nil, nil, nil
	}
	m, r := p.region(stag, provider.AccessRemoteWrite)
	if err := ddp.CheckTagged(&r, to, n); err != nil {
		m.endPeerUse()
		return nil, nil, err
	}
	b, _ = m.Slice(to, uint64(n))
	return m, b, nil
}

// ReadSource checks the source of an RDMA Read; the results are as for WriteTarget. It is called
// when the request arrives, and again for each part of the response, because the region may be
// closed in between.
//
//rfc:5040 RDMAP-7.2-07 ReadReq source STag valid
//rfc:5040 RDMAP-7.2-08 ReadReq source STag associated with this stream
func (p *Peer) ReadSource(stag uint32, to uint64, n uint32) (m *Region, b []byte, err error) {
	if n == 0 {
		return nil, nil, nil
	}
	m, r := p.region(stag, provider.AccessRemoteRead)
	if err := rdmap.CheckReadSource(&r, to, n); err != nil {
		m.endPeerUse()
		return nil, nil, err
	}
	b, _ = m.Slice(to, uint64(n))
	return m, b, nil
}

// Invalidate performs the invalidation that a Send with Invalidate asks for. A region must have
// been registered with AccessRemoteInvalidate, and have no windows bound to it. A window must be
// one that only p can use. The caller must not be using it.
//
//rfc:5040 RDMAP-7.2-05 Invalidate STag valid
//rfc:5040 RDMAP-7.2-06 Invalidate STag belongs to this stream
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
//rfc:5042 SEC-6.4.5-01 No STag valid on several streams when peers distrust
func (p *Peer) Invalidate(stag uint32) error {
	m, r := p.region(stag, provider.AccessRemoteInvalidate)
	m.endPeerUse()
	err := rdmap.CheckInvalidate(&r)
	switch {
	case err != nil:
		return err
	case m.owner != nil:
		return m.owner.invalidate(p, stag, true)
	case m.windows.Held():
		return rdmap.ErrMayNotInvalidate
	}
	m.remote.Shut()
	return nil
}

// Atomic performs p's operation on memory that p may use, and returns the old value. It is the
// CPU's atomic operation, so it is atomic with operations of all QPs, of other devices of the
// process, and of the program itself.
//
//rfc:7306 EXT-5-01 Atomic on one location not interleaved with another atomic
//rfc:7306 EXT-5.3-01 Atomicity across streams of the same RNIC
func (p *Peer) Atomic(req *rdmap.AtomicRequest) (original uint64, err error) {
	m, r := p.region(req.STag, provider.AccessRemoteAtomic)
	defer m.endPeerUse()
	//rfc:7306 EXT-8.2-03 Atomic target STag/TO/rights validated as for ReadReq
	if err := rdmap.CheckAtomic(&r, req); err != nil {
		return 0, err
	}
	b, ok := m.Slice(req.TO, rdmap.AtomicLen)
	if !ok {
		return 0, rdmap.ErrAtomicInvalidSTag // an object has no words
	}
	at := unsafe.Pointer(unsafe.SliceData(b))
	//rfc:7306 EXT-5.1.1-01 FetchAdd target 64-bit aligned, else error
	//rfc:7306 EXT-5.1.1-02 Misaligned FetchAdd leaves memory unchanged
	//rfc:7306 EXT-5.1.2-04 Misaligned CmpSwap: memory unchanged, error, Terminate
	//rfc:7306 EXT-8.2-02 Alignment error code is 0/2/0x07
	if uintptr(at)%rdmap.AtomicLen != 0 {
		return 0, rdmap.ErrAtomicAlignment
	}
	word := (*uint64)(at)
	for {
		original := atomic.LoadUint64(word)
		//rfc:7306 EXT-5-02 FetchAdd and CmpSwap both implemented if any
		//rfc:7306 EXT-5.1.1-05 Operation in target endianness, wire big-endian
		value := req.Apply(original)
		if value == original || atomic.CompareAndSwapUint64(word, original, value) {
			//rfc:7306 EXT-5.1.1-06 Original value returned
			return original, nil
		}
	}
}

// region returns what the checks need to know about stag as p sees it. A region that is not nil is
// in use for the peer until ReleaseRemote.
//
//rfc:5041 DDP-8.2-01 PD mismatch: not placed, local error surfaced
//rfc:5041 DDP-8.2-02 Stream-ID mismatch: not placed, local error
//rfc:5041 DDP-8.3.1-2-01 Single-stream STag not usable by other streams
//rfc:5042 SEC-6.1.1-03 Stream-limited STag refused on other streams
func (p *Peer) region(stag uint32, need provider.Access) (*Region, ddp.Region) {
	m := p.Domain.Table.lookup(stag)
	if m == nil || !m.acquireRemote() {
		return nil, ddp.Region{}
	}
	if m.stag != stag {
		m.ReleaseRemote()
		return nil, ddp.Region{}
	}
	return m, ddp.Region{
		Valid:      true,
		Associated: m.pd == p.Domain && (m.peer == nil || m.peer == p),
		Allowed:    m.access&need == need,
		Base:       m.base,
		Len:        m.Len(),
	}
}

// boundWindows are the windows that are bound for one peer.
type boundWindows struct {
	mu    sched.Mutex[locks.BoundWindows] // of the list; taken after that of a window
	first *Window
}

func (l *boundWindows) add(w *Window) {
	l.mu.Lock()
	w.prev, w.next = nil, l.first
	if l.first != nil {
		l.first.prev = w
	}
	l.first = w
	l.mu.Unlock()
}

func (l *boundWindows) remove(w *Window) {
	l.mu.Lock()
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	l.mu.Unlock()
}

// Unbind ends the windows that are bound for p, because p is gone.
func (p *Peer) Unbind() {
	for {
		p.windows.mu.Lock()
		w := p.windows.first
		p.windows.mu.Unlock()
		if w == nil {
			return
		}
		w.mu.Lock()
		if w.region != nil && w.view.peer == p {
			w.unbind()
		}
		w.mu.Unlock()
	}
}
