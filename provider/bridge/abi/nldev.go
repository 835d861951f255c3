package abi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Numbers of the netlink family NETLINK_RDMA.
const (
	NLFamily       = 20 // NETLINK_RDMA
	NLNLDev        = 5  // RDMA_NL_NLDEV, in the upper bits of a message's type
	NLGet          = 1  // RDMA_NLDEV_CMD_*: the devices, or one
	NLPortGet      = 5
	NLSysGet       = 6
	NLGetChardev   = 15
	NLDriverSiw    = 18 // RDMA_DRIVER_SIW
	NLNodeTypeRNIC = 4  // RDMA_NODE_RNIC of the kernel
)

// Types and flags of netlink messages.
const (
	NLMsgError  = 2
	NLMsgDone   = 3
	NLFlagMulti = 2
	NLFlagAck   = 4
	NLFlagDump  = 0x300
)

// Attributes of nldev (enum rdma_nldev_attr).
const (
	NLDevIndex       = 1  // u32
	NLDevName        = 2  // string
	NLPortIndex      = 3  // u32; in an answer to NLGet, the number of ports
	NLCapFlags       = 4  // u64
	NLFWVersion      = 5  // string
	NLNodeGUID       = 6  // u64
	NLSysImageGUID   = 7  // u64
	NLLID            = 9  // u32
	NLSMLID          = 10 // u32
	NLLMC            = 11 // u8
	NLPortState      = 12 // u8
	NLPortPhysState  = 13 // u8
	NLDevNodeType    = 14 // u8
	NLNetdevIndex    = 50 // u32
	NLNetdevName     = 51 // string
	NLNetnsMode      = 66 // u8
	NLDevProtocol    = 67 // string
	NLChardevType    = 69 // string
	NLChardevName    = 70 // string
	NLChardevABI     = 71 // u64
	NLChardev        = 72 // u64, encoded by huge_encode_dev
	NLUverbsDriverID = 73 // u32
	NLDevDim         = 84 // u8
	NLCopyOnFork     = 93 // u8
)

// NLHeader begins every netlink message (nlmsghdr). Length counts all of it.
type NLHeader struct {
	Length uint32 `c:"nlmsg_len"`
	Type   uint16 `c:"nlmsg_type"`
	Flags  uint16 `c:"nlmsg_flags"`
	Seq    uint32 `c:"nlmsg_seq"`
	PID    uint32 `c:"nlmsg_pid"`
}

const (
	nlHeader = 16
	nlAttr   = 4
)

func nlAlign(n int) int { return (n + 3) &^ 3 }

// NLType returns the type of messages of an nldev command.
func NLType(command uint16) uint16 { return NLNLDev<<10 | command }

// NLCommand returns the nldev command of a message type. ok is false if the type is for another
// client of NETLINK_RDMA.
func NLCommand(msgType uint16) (command uint16, ok bool) {
	return msgType & 0x3ff, msgType>>10 == NLNLDev
}

// An NLMessage is a netlink message with attributes.
type NLMessage struct {
	Type  uint16
	Flags uint16
	Seq   uint32
	PID   uint32
	Attrs []NLAttribute
}

// An NLAttribute is an attribute (nlattr). Value holds the bytes of the message.
type NLAttribute struct {
	Type  uint16
	Value []byte
}

// NLU8 makes an attribute of 8 bits.
func NLU8(t uint16, v uint8) NLAttribute { return NLAttribute{t, []byte{v}} }

// NLU32 makes an attribute of 32 bits, in the byte order of the machine.
func NLU32(t uint16, v uint32) NLAttribute {
	return NLAttribute{t, binary.NativeEndian.AppendUint32(nil, v)}
}

// NLU64 makes an attribute of 64 bits, in the byte order of the machine.
func NLU64(t uint16, v uint64) NLAttribute {
	return NLAttribute{t, binary.NativeEndian.AppendUint64(nil, v)}
}

// NLString makes an attribute with a string and its terminating zero byte.
func NLString(t uint16, s string) NLAttribute { return NLAttribute{t, append([]byte(s), 0)} }

// U32 returns the value of an attribute of 32 bits; ok is false if it has another length.
func (a NLAttribute) U32() (v uint32, ok bool) {
	if len(a.Value) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(a.Value), true
}

// Text returns the string of an attribute, without the zero byte.
func (a NLAttribute) Text() string {
	s, _, _ := strings.Cut(string(a.Value), "\x00")
	return s
}

// Get returns the attribute of a type, and reports whether the message has one.
func (m *NLMessage) Get(t uint16) (NLAttribute, bool) {
	for _, a := range m.Attrs {
		if a.Type == t {
			return a, true
		}
	}
	return NLAttribute{}, false
}

// AppendNL appends a message of attributes. A message of type NLMsgDone has an error number, 0,
// instead of attributes.
func AppendNL(b []byte, m *NLMessage) []byte {
	at := len(b)
	b = Append(b, &NLHeader{Type: m.Type, Flags: m.Flags, Seq: m.Seq, PID: m.PID})
	if m.Type == NLMsgDone {
		b = append(b, 0, 0, 0, 0)
	}
	for _, a := range m.Attrs {
		b = binary.NativeEndian.AppendUint16(b, uint16(nlAttr+len(a.Value)))
		b = binary.NativeEndian.AppendUint16(b, a.Type)
		b = append(b, a.Value...)
		for len(b)%4 != at%4 {
			b = append(b, 0)
		}
	}
	binary.NativeEndian.PutUint32(b[at:], uint32(len(b)-at))
	return b
}

// AppendNLError appends the message that refuses request, or acknowledges it if errno is 0. It
// contains a negative errno and the header of the request.
func AppendNLError(b []byte, request *NLHeader, errno int32, pid uint32) []byte {
	b = Append(b, &NLHeader{Length: nlHeader + 4 + nlHeader, Type: NLMsgError, Seq: request.Seq,
		PID: pid})
	b = binary.NativeEndian.AppendUint32(b, uint32(errno))
	return Append(b, request)
}

// ErrNetlink is in the error for bytes that are not a netlink message.
var ErrNetlink = errors.New("not a netlink message")

// DecodeNL decodes the first message of b, with its attributes or with the bytes that NLMsgDone and
// NLMsgError have instead. rest begins with the next message. Values refer to parts of b.
func DecodeNL(b []byte) (m NLMessage, header NLHeader, rest []byte, err error) {
	if _, err := Decode(b, &header); err != nil {
		return m, header, nil, fmt.Errorf("%w: %w", ErrNetlink, err)
	}
	n := header.Length
	if n < nlHeader || uint64(n) > uint64(len(b)) {
		return m, header, nil, fmt.Errorf("%w: its length is %d, and there are %d bytes",
			ErrNetlink, n, len(b))
	}
	m = NLMessage{Type: header.Type, Flags: header.Flags, Seq: header.Seq, PID: header.PID}
	rest = b[min(nlAlign(int(n)), len(b)):]
	if m.Type == NLMsgDone || m.Type == NLMsgError {
		return m, header, rest, nil
	}
	for b = b[nlHeader:n]; len(b) >= nlAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < nlAttr || size > len(b) {
			return m, header, nil, fmt.Errorf("%w: an attribute of %d bytes where %d are left",
				ErrNetlink, size, len(b))
		}
		m.Attrs = append(m.Attrs, NLAttribute{binary.NativeEndian.Uint16(b[2:]), b[nlAttr:size]})
		b = b[min(nlAlign(size), len(b)):]
	}
	if len(b) > 0 {
		return m, header, nil, fmt.Errorf("%w: %d bytes after the last attribute", ErrNetlink,
			len(b))
	}
	return m, header, rest, nil
}

// nlNames are the names of the attributes, in lower case and without RDMA_NLDEV_ATTR_.
var nlNames = map[uint16]string{
	NLDevIndex: "dev_index", NLDevName: "dev_name", NLPortIndex: "port_index",
	NLCapFlags:  "cap_flags",
	NLFWVersion: "fw_version", NLNodeGUID: "node_guid", NLSysImageGUID: "sys_image_guid",
	NLLID: "lid", NLSMLID: "sm_lid",
	NLLMC: "lmc", NLPortState: "port_state", NLPortPhysState: "port_phys_state",
	NLDevNodeType: "dev_node_type",
	NLNetdevIndex: "ndev_index", NLNetdevName: "ndev_name", NLNetnsMode: "netns_mode",
	NLDevProtocol: "dev_protocol",
	NLChardevType: "chardev_type", NLChardevName: "chardev_name", NLChardevABI: "chardev_abi",
	NLChardev:        "chardev",
	NLUverbsDriverID: "uverbs_driver_id", NLDevDim: "dev_dim", NLCopyOnFork: "copy_on_fork",
}

var nlCommands = map[uint16]string{NLGet: "get", NLPortGet: "port_get", NLSysGet: "sys_get",
	NLGetChardev: "get_chardev"}

// FormatNL returns a message as strace would print it: the command, and name=bytes for each
// attribute.
func FormatNL(m *NLMessage) string {
	var b strings.Builder
	command, ok := NLCommand(m.Type)
	switch name := nlCommands[command]; {
	case m.Type == NLMsgDone:
		b.WriteString("done")
	case m.Type == NLMsgError:
		b.WriteString("error")
	case ok && name != "":
		b.WriteString(name)
	default:
		fmt.Fprintf(&b, "type %#x", m.Type)
	}
	fmt.Fprintf(&b, " {flags=%#x", m.Flags)
	for _, a := range m.Attrs {
		fmt.Fprintf(&b, ", %s=%x", NLName(a.Type), a.Value)
	}
	b.WriteByte('}')
	return b.String()
}

// NLName returns the name of an attribute, in lower case and without RDMA_NLDEV_ATTR_.
func NLName(t uint16) string {
	if name := nlNames[t]; name != "" {
		return name
	}
	return fmt.Sprintf("attr_%d", t)
}
