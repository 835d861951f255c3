//go:build !purego

package crc32c

const assembly = true

// implementations returns all that this CPU can run, not only the chosen one, which is the last.
func implementations() []implementation {
	list := []implementation{fallback, {"stdlib, by jump", updateFallback, copyFallback}}
	if has(avx2) {
		list = append(list, implementation{avx2.name(), updateAVX2, copyAVX2})
	}
	if has(avx512) {
		list = append(list, implementation{avx512.name(), updateAVX512, copyAVX512})
	}
	return list
}
