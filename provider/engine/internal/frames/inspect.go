package frames

import (
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// Copied returns how many chunks the batch has, and how many of their bytes are used. Tests of
// package engine compare that with what they have sent.
func (b *Batch) Copied() (chunks, bytes int) {
	if n := len(b.chunks); n > 0 {
		return n, (n-1)*policy.Chunk + b.chunkUsed
	}
	return 0, 0
}

// SetPool makes the idle batch take its chunks from pool. Tests of package engine make many
// devices, and give the batches of one to the next.
func (b *Batch) SetPool(pool *freelist.List[Chunk]) { b.pool = pool }
