//go:build !amd64 || purego

package bulk

// AMD says whether the CPU is one of AMD.
const AMD = false
