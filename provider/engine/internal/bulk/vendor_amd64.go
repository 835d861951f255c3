//go:build !purego

package bulk

// How the vendor's name in CPUID leaf 0 begins.
const (
	intel = 'G' | 'e'<<8 | 'n'<<16 | 'u'<<24
	amd   = 'A' | 'u'<<8 | 't'<<16 | 'h'<<24
)

// AMD says whether the CPU is one of AMD.
var AMD = vendor() == amd

// vendor returns EBX of CPUID leaf 0.
func vendor() uint32
