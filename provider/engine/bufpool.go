package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// bufPool is a stack of buffers of one size. sync.Pool would do but for its
// dropping buffers at random times, which makes allocations on the data path
// impossible to rule out. It lends buffers for as long as octets are in flight, so
// that idle QPs have none. What is in a buffer when it is lent is of no meaning; it
// is never given to a user or a peer.
type bufPool struct {
	octets int

	mu   sched.Mutex[locks.Chunks]
	free [policy.Kept]*buf
	n    int
	made int // in the pool and lent
}

// buf is a pooled buffer.
type buf struct {
	b []byte // of the pool's size
}

// get lends a buffer until put.
func (p *bufPool) get() *buf {
	p.mu.Lock()
	if p.n > 0 {
		p.n--
		b := p.free[p.n]
		p.free[p.n] = nil
		p.mu.Unlock()
		return b
	}
	p.made++
	p.mu.Unlock()
	return &buf{b: make([]byte, p.octets)}
}

// put gives a buffer back. Nothing may refer to it any more.
func (p *bufPool) put(b *buf) {
	if len(b.b) != p.octets {
		panic("engine: a buffer was given back to a pool of another size")
	}
	p.mu.Lock()
	if p.n < len(p.free) {
		p.free[p.n] = b
		p.n++
	} else {
		p.made--
	}
	p.mu.Unlock()
}

// lent returns how many buffers are lent.
func (p *bufPool) lent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made - p.n
}
