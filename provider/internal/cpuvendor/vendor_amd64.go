//go:build !purego

package cpuvendor

// How the vendor's name in CPUID leaf 0 begins.
const (
	genuineIntel = 'G' | 'e'<<8 | 'n'<<16 | 'u'<<24
	authenticAMD = 'A' | 'u'<<8 | 't'<<16 | 'h'<<24
)

// Intel and AMD say whether the CPU is one of that vendor.
var (
	Intel = vendor() == genuineIntel
	AMD   = vendor() == authenticAMD
)

// vendor returns EBX of CPUID leaf 0.
func vendor() uint32
