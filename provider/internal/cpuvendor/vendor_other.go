//go:build !amd64 || purego

package cpuvendor

// Intel and AMD say whether the CPU is one of that vendor.
const Intel, AMD = false, false
