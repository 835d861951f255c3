package load

import (
	"math/bits"
	"time"
)

// Each power of two has histSub buckets, so the relative error of a value is at most one in
// histSub.
const (
	histBits = 8
	histSub  = 1 << histBits
)

// A Histogram counts durations without allocating. Its zero value is empty.
type Histogram struct {
	n        uint64
	sum      time.Duration
	min, max time.Duration
	counts   [(64 - histBits + 1) * histSub]uint32
}

// Add counts one duration; a negative one counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
	h.sum += d
	h.counts[bucketOf(uint64(d))]++
}

// bucketOf returns the bucket of a value. Values below histSub have a bucket each; larger ones
// share it by their highest histBits+1 bits.
func bucketOf(v uint64) int {
	shift := max(bits.Len64(v)-histBits-1, 0)
	return shift*histSub + int(v>>shift)
}

// middleOf returns the middle of a bucket's values.
func middleOf(bucket int) time.Duration {
	shift := max(bucket/histSub-1, 0)
	low := uint64(bucket-shift*histSub) << shift
	return time.Duration(low + 1<<shift/2)
}

// quantile returns the value below which a share of all durations lies.
func (h *Histogram) quantile(share float64) time.Duration {
	rank := uint64(share * float64(h.n))
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen > rank {
			return min(max(middleOf(i), h.min), h.max)
		}
	}
	return h.max
}

// Latency summarises the durations, or returns nil if there are none.
func (h *Histogram) Latency() *Latency {
	if h.n == 0 {
		return nil
	}
	return &Latency{
		Min:    h.min,
		Median: h.quantile(0.5),
		P99:    h.quantile(0.99),
		P999:   h.quantile(0.999),
		Max:    h.max,
		Mean:   h.sum / time.Duration(h.n),
	}
}

// Reset empties the histogram.
func (h *Histogram) Reset() { *h = Histogram{} }
