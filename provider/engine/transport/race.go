//go:build race && linux

package transport

import (
	"runtime"
	"unsafe"
)

// ioSync stands for all bytes that have gone through sockets. The race detector does not see system
// calls. Without ioSync it would not order bytes that a peer in the same process sent before the
// read that returned them.
var ioSync int64

func raceSending()  { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }
func raceReceived() { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }
