//go:build cgo && linux && !nokernel

package kernel

import (
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// siwTellsState says whether siw's ibv_query_qp fills in the state: from Linux
// 6.8 on (commit 0b988c1bee28). Before, the field is whatever the kernel's heap
// held.
var siwTellsState = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	return releaseAtLeast(unix.ByteSliceToString(uts.Release[:]), 6, 8)
})

// releaseAtLeast compares a kernel's release, such as "6.1.0-44-amd64", with a
// version. What can't be parsed is taken for old.
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
