//go:build !purego

package crc32c

const assembly = true

// implementations returns all implementations that this CPU supports; the last is the chosen one.
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
