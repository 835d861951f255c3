package capture

import "golang.org/x/sys/unix"

// Where to look in an Ethernet frame, and for what.
const (
	etherTypeAt = 12
	ipAt        = 14
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	ipv6Len     = 40
	protocolTCP = 6
	wholePacket = 0xffffffff
)

// portFilter returns the BPF program that lets TCP segments to and from a port
// pass, over IPv4 and IPv6, in Ethernet frames. The kernel applies it, so that
// other traffic takes no room in the socket's queue. After IPv6 extension
// headers nothing is found: neither siw nor an ordinary socket sends any.
func portFilter(port uint16) []unix.SockFilter {
	const (
		ldb  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		ldh  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		ldhx = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		ldx  = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ja   = unix.BPF_JMP | unix.BPF_JA
		ret  = unix.BPF_RET | unix.BPF_K
	)
	// Jumps count from the next instruction.
	return []unix.SockFilter{
		0:  {Code: ldh, K: etherTypeAt},
		1:  {Code: jeq, K: etherIPv4, Jf: 9},    // else 11
		2:  {Code: ldb, K: ipAt + 9},            // protocol
		3:  {Code: jeq, K: protocolTCP, Jf: 15}, // else 19
		4:  {Code: ldh, K: ipAt + 6},            // fragment offset
		5:  {Code: jset, K: 0x1fff, Jt: 13},     // then 19
		6:  {Code: ldx, K: ipAt},                // X is the length of the header
		7:  {Code: ldhx, K: ipAt},
		8:  {Code: jeq, K: uint32(port), Jt: 9}, // then 18
		9:  {Code: ldhx, K: ipAt + 2},
		10: {Code: ja, K: 6},                   // 17
		11: {Code: jeq, K: etherIPv6, Jf: 7},   // else 19
		12: {Code: ldb, K: ipAt + 6},           // next header
		13: {Code: jeq, K: protocolTCP, Jf: 5}, // else 19
		14: {Code: ldh, K: ipAt + ipv6Len},
		15: {Code: jeq, K: uint32(port), Jt: 2}, // then 18
		16: {Code: ldh, K: ipAt + ipv6Len + 2},
		17: {Code: jeq, K: uint32(port), Jf: 1}, // else 19
		18: {Code: ret, K: wholePacket},
		19: {Code: ret, K: 0},
	}
}
