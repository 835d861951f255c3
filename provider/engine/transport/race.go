//go:build race && linux

package transport

import (
	"runtime"
	"unsafe"
)

// ioSync stands for everything that has gone through sockets. The race detector
// does not see system calls: without it, bytes that a peer in the same process
// sent before a read returned them would seem unordered with that read.
var ioSync int64

func raceSending()  { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func raceReceived() { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
