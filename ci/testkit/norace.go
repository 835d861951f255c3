//go:build !race

package testkit

// Race reports whether the race detector watches this process: everything is slower and allocates
// under it. ci/test also runs the tests that name Race without the detector.
const Race = false
