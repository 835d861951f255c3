package bridge

import (
	"encoding/binary"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// maxOption is the longest value of an option that the kernel takes, in bytes (KMALLOC_MAX_SIZE).
const maxOption = 4 << 20

func cmSetOption(r *cmRequest) error {
	var cmd abi.SetOption
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.OptLen > maxOption {
		return syscall.EINVAL
	}
	if x, err := r.file.lock(cmd.ID); err != nil {
		return err
	} else {
		x.mu.Unlock() // unlocked while the program's memory is read
	}
	value := make([]byte, cmd.OptLen)
	if len(value) > 0 && r.file.b.prog.ReadMemory(cmd.OptVal, value) != nil {
		return syscall.EFAULT
	}
	x, err := r.file.lock(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	switch cmd.Level {
	case abi.OptionID:
		return x.setOption(cmd.OptName, value)
	case abi.OptionIB:
		if cmd.OptName == abi.OptionIBPath {
			return x.setPath(value)
		}
	}
	return syscall.ENOSYS
}

// setOption sets an option of an id. The kernel accepts some options too late for an effect; here
// the device refuses them then, and that error is ignored. x.mu is held.
func (x *cmID) setOption(name uint32, value []byte) error {
	size, ok := map[uint32]int{
		abi.OptionIDTOS: 1, abi.OptionIDReuseaddr: 4, abi.OptionIDAfonly: 4,
		abi.OptionIDAckTimeout: 1,
	}[name]
	if !ok {
		return syscall.ENOSYS
	}
	if len(value) != size {
		return syscall.EINVAL
	}
	on := 0
	if size == 4 && binary.NativeEndian.Uint32(value) != 0 {
		on = 1
	}
	switch name {
	case abi.OptionIDTOS:
		_ = x.id.SetOption(rdmacm.OptionTOS, int(value[0]))
	case abi.OptionIDReuseaddr:
		if x.state != cmIdle && (on == 0 || x.state == cmListening) {
			return syscall.EINVAL
		}
		x.reuse = on == 1
		_ = x.id.SetOption(rdmacm.OptionReuseAddr, on)
	case abi.OptionIDAfonly:
		if x.state != cmIdle && x.state != cmBound {
			return syscall.EINVAL
		}
		_ = x.id.SetOption(rdmacm.OptionAFOnly, on)
	case abi.OptionIDAckTimeout: // iWARP does not use it
		if x.qpType != typeRC && x.qpType != typeXRCIni {
			return syscall.EINVAL
		}
	}
	return nil
}

// setPath sets a path of InfiniBand instead of resolving a route. The kernel also allows this for
// iWARP. x.mu is held.
func (x *cmID) setPath(value []byte) error {
	size := abi.Size(abi.PathRecData{})
	if len(value)%size != 0 {
		return syscall.EINVAL
	}
	for ; len(value) > 0; value = value[size:] {
		if binary.NativeEndian.Uint32(value) == abi.PathPrimary {
			break
		}
	}
	if len(value) == 0 || !x.device || x.state != cmAddrResolved {
		return syscall.EINVAL
	}
	if err := x.id.ResolveRoute(0); err != nil { // its event reports the option
		return err
	}
	x.state = cmRouteResolved
	x.path = append([]byte(nil), value[8:size]...)
	return nil
}
