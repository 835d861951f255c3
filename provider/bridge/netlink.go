package bridge

import (
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// Device numbers of the program's files, as Linux assigns them to the first device.
const (
	uverbsMajor, uverbsMinor = 231, 192
	cmMajor, cmMinor         = 10, 58

	cmABI = 4 // RDMA_USER_CM_ABI_VERSION
)

// Netlink answers the messages that the program sends to a socket of NETLINK_RDMA. port is the
// address of the socket. Each answer is a datagram.
func (b *Bridge) Netlink(request []byte, port uint32) (answers [][]byte) {
	for len(request) > 0 {
		m, header, rest, err := abi.DecodeNL(request)
		if err != nil {
			break // the kernel drops invalid bytes and everything after them
		}
		request = rest
		got, errno := b.netlink(&m, port)
		answers = append(answers, got...)
		if errno != 0 || m.Flags&abi.NLFlagAck != 0 {
			answers = append(answers, abi.AppendNLError(nil, &header, -int32(errno), port))
		}
	}
	return answers
}

// netlink answers one message, or refuses it with an errno.
func (b *Bridge) netlink(m *abi.NLMessage, port uint32) (answers [][]byte, errno syscall.Errno) {
	command, ok := abi.NLCommand(m.Type)
	if !ok {
		return nil, syscall.EINVAL
	}
	answer := func(flags uint16, attrs ...abi.NLAttribute) []byte {
		return abi.AppendNL(nil, &abi.NLMessage{Type: m.Type, Flags: flags, Seq: m.Seq, PID: port,
			Attrs: attrs})
	}
	dump := m.Flags&abi.NLFlagDump == abi.NLFlagDump
	var attrs []abi.NLAttribute
	switch command {
	case abi.NLGet, abi.NLPortGet:
		if index, has := m.Get(abi.NLDevIndex); !dump || has {
			if v, ok := index.U32(); !has || !ok || v != 0 {
				return nil, syscall.EINVAL
			}
		}
		var err error
		if attrs, err = b.deviceAttrs(); err == nil && command == abi.NLPortGet {
			attrs, err = b.portAttrs(m, dump)
		}
		if err != nil {
			return nil, syscall.EINVAL
		}
	case abi.NLGetChardev:
		if attrs, errno = b.chardev(m); errno != 0 {
			return nil, errno
		}
	case abi.NLSysGet:
		attrs = []abi.NLAttribute{abi.NLU8(abi.NLNetnsMode, 1), abi.NLU8(abi.NLCopyOnFork, 1)}
	default:
		return nil, syscall.EOPNOTSUPP
	}
	if !dump {
		return [][]byte{answer(0, attrs...)}, 0
	}
	done := abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLMsgDone, Flags: abi.NLFlagMulti,
		Seq: m.Seq, PID: port})
	return [][]byte{answer(abi.NLFlagMulti, attrs...), done}, 0
}

// deviceAttrs returns the attributes of NLDEV_GET for the device, as the kernel's fill_dev_info
// does.
func (b *Bridge) deviceAttrs() ([]abi.NLAttribute, error) {
	a, err := b.vctx.Query()
	if err != nil {
		return nil, err
	}
	return []abi.NLAttribute{
		abi.NLU32(abi.NLDevIndex, 0), abi.NLString(abi.NLDevName, b.opts.Device),
		abi.NLU32(abi.NLPortIndex, 1),
		abi.NLU64(abi.NLCapFlags, uint64(deviceCaps)),
		abi.NLU64(abi.NLNodeGUID, a.NodeGUID), abi.NLU64(abi.NLSysImageGUID, a.SysImageGUID),
		abi.NLU8(abi.NLDevNodeType, abi.NLNodeTypeRNIC), abi.NLU8(abi.NLDevDim, 0),
		abi.NLString(abi.NLDevProtocol, "iw"),
	}, nil
}

// portAttrs returns the attributes of NLDEV_PORT_GET for the port.
func (b *Bridge) portAttrs(m *abi.NLMessage, dump bool) ([]abi.NLAttribute, error) {
	if index, has := m.Get(abi.NLPortIndex); !dump {
		if v, ok := index.U32(); !has || !ok || v != 1 {
			return nil, syscall.EINVAL
		}
	}
	p, err := b.vctx.QueryPort(1)
	if err != nil {
		return nil, err
	}
	return []abi.NLAttribute{
		abi.NLU32(abi.NLDevIndex, 0), abi.NLString(abi.NLDevName, b.opts.Device),
		abi.NLU32(abi.NLPortIndex, 1),
		abi.NLU8(abi.NLPortState, uint8(p.State)), abi.NLU8(abi.NLPortPhysState, p.PhysState),
	}, nil
}

// chardev returns the character device of a client: "uverbs", or "rdma_cm", which belongs to no
// RDMA device.
func (b *Bridge) chardev(m *abi.NLMessage) ([]abi.NLAttribute, syscall.Errno) {
	kind, has := m.Get(abi.NLChardevType)
	if !has {
		return nil, syscall.EINVAL
	}
	if index, has := m.Get(abi.NLDevIndex); has {
		if v, ok := index.U32(); !ok || v != 0 {
			return nil, syscall.EINVAL
		}
	}
	switch kind.Text() {
	case "uverbs":
		return []abi.NLAttribute{
			abi.NLU32(abi.NLUverbsDriverID, abi.NLDriverSiw),
			abi.NLU64(abi.NLChardev, encodeDev(uverbsMajor, uverbsMinor)),
			abi.NLU64(abi.NLChardevABI, abi.SiwABI),
			abi.NLString(abi.NLChardevName, "uverbs0"),
		}, 0
	case "rdma_cm":
		return []abi.NLAttribute{
			abi.NLU64(abi.NLChardev, encodeDev(cmMajor, cmMinor)), abi.NLU64(abi.NLChardevABI,
				cmABI),
			abi.NLString(abi.NLChardevName, "rdma_cm"),
		}, 0
	}
	return nil, syscall.ENODEV
}

// encodeDev encodes a device number as the kernel's huge_encode_dev does.
func encodeDev(major, minor uint64) uint64 {
	return minor&0xff | major<<8 | (minor&^0xff)<<12
}
