//go:build schedules && (amd64 || arm64)

package sched

// goroutine returns what tells the calling goroutine from all others: the address of the runtime's
// record of it. Reading the number from runtime.Stack takes 10 us and more.
func goroutine() uintptr
