//go:build cgo && linux && !nokernel

package kernel

import (
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// siwTellsState reports whether siw's ibv_query_qp returns the state, which it does from Linux 6.8
// on (commit 0b988c1bee28). In earlier versions the field holds random bytes of the kernel's heap.
var siwTellsState = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	return releaseAtLeast(unix.ByteSliceToString(uts.Release[:]), 6, 8)
})

// releaseAtLeast reports whether a kernel's release, such as "6.1.0-44-amd64", is at least a
// version. A release that it cannot parse counts as old.
func releaseAtLeast(release string, major, minor int) bool {
	fields := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(fields) < 2 {
		return false
	}
	gotMajor, err1 := strconv.Atoi(fields[0])
	gotMinor, err2 := strconv.Atoi(fields[1])
	if err1 != nil || err2 != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
