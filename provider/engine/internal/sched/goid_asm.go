//go:build schedules && (amd64 || arm64)

package sched

// goroutine identifies the calling goroutine: it returns the address of the runtime's record of it.
// Reading its number from runtime.Stack would take 10 us and more.
func goroutine() uintptr
