//go:build !purego

package crc32c

import "github.com/govs-rdma/govs/provider/internal/cpuvendor"

const assembly = true

// implementations returns all that this CPU can run, not only the chosen one, which is the last.
func implementations() []implementation {
	list := []implementation{fallback, {"stdlib, by jump", updateFallback, copyFallback}}
	if has(avx2) {
		list = append(list, implementation{avx2.name(), updateAVX2, copyAVX2})
	}
	if !has(avx512) {
		return list
	}
	wide := implementation{avx512.name(), updateAVX512, copyAVX512}
	both := implementation{mixed.name(), updateMixed, copyMixed}
	if cpuvendor.AMD {
		return append(list, wide, both)
	}
	return append(list, both, wide)
}
