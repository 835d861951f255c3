//go:build !cgo || !linux || nokernel

package ibv

import "runtime"

// Available reports whether libibverbs was built in.
const Available = false

// WhyUnavailable returns what the build lacks, or "" if it lacks nothing.
func WhyUnavailable() string {
	if runtime.GOOS != "linux" {
		return "libibverbs is not built in: it exists on Linux only, this is " + runtime.GOOS
	}
	return "libibverbs is not built in: this program was built without cgo (CGO_ENABLED=0 or no C compiler) or with the tag nokernel"
}
