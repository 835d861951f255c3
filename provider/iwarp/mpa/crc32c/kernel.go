package crc32c

// kernel is one way to compute the CRC.
type kernel uint8

const (
	stdlib kernel = iota
	avx2          // VPCLMULQDQ on 256 bits
	avx512        // VPCLMULQDQ on 512 bits
)

func (k kernel) name() string {
	switch k {
	case avx2:
		return "vpclmulqdq-avx2"
	case avx512:
		return "vpclmulqdq-avx512"
	}
	return "stdlib"
}
