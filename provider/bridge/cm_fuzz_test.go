package bridge

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
	"golang.org/x/sys/unix"
)

// cmErrnos are the errnos with which rdma_cm fails commands.
var cmErrnos = map[syscall.Errno]bool{
	syscall.EINVAL: true, syscall.ENOENT: true, syscall.ENOSYS: true, syscall.ENOSPC: true,
	syscall.EFAULT: true, syscall.EAGAIN: true,
	syscall.EAFNOSUPPORT: true, syscall.EADDRNOTAVAIL: true, syscall.EADDRINUSE: true,
	syscall.EACCES: true, syscall.ENODEV: true,
	syscall.EPROTONOSUPPORT: true, syscall.ENOMEM: true, syscall.ECONNRESET: true,
}

// FuzzCM writes commands with any content, one after the other. A command fails with one of
// rdma_cm's errnos or uses all that was written, and closing frees everything. The input is a
// sequence of commands, each after its length in two bytes.
func FuzzCM(f *testing.F) {
	seed := func(commands ...any) {
		var b []byte
		for i := 0; i < len(commands); i += 2 {
			body := abi.Append(nil, commands[i+1])
			b = binary.NativeEndian.AppendUint16(b, uint16(8+len(body)))
			b = abi.Append(b, &abi.CMHeader{Cmd: commands[i].(uint32), In: uint16(len(body)),
				Out: 512})
			b = append(b, body...)
		}
		f.Add(b)
	}
	local := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)
	create := &abi.CreateID{UID: 1, PS: abi.PortSpaceTCP}
	seed(uint32(abi.CMCreateID), create, uint32(abi.CMBindIP), bindIP(0, local),
		uint32(abi.CMListen), &abi.Listen{}, uint32(abi.CMQueryRoute), &abi.Query{})
	seed(uint32(abi.CMCreateID), create, uint32(abi.CMResolveIP), resolveIP(0, local,
		netip.MustParseAddrPort("127.0.0.1:9")),
		uint32(abi.CMGetEvent), &abi.Response{}, uint32(abi.CMResolveRoute),
		&abi.ResolveRoute{TimeoutMS: 1},
		uint32(abi.CMConnect), &abi.Connect{ConnParam: param(1, "x")}, uint32(abi.CMInitQPAttr),
		&abi.InitQPAttr{QPState: 1},
		uint32(abi.CMDestroyID), &abi.DestroyID{})
	seed(uint32(abi.CMCreateID), &abi.CreateID{PS: abi.PortSpaceIB}, uint32(abi.CMBind),
		&abi.Bind{AddrSize: 48, Addr: abi.SockaddrStorage{0: abi.FamilyIB}},
		uint32(abi.CMQuery), &abi.Query{Option: 2}, uint32(abi.CMMigrateID), &abi.MigrateID{FD: 1},
		uint32(abi.CMSetOption), &abi.SetOption{OptLen: 4})
	vctx, err := ibverbs.Open(engine.New(nil), "")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := vctx.Close(); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, input []byte) {
		prog := newProgram(t)
		b := New(vctx, prog, nil)
		defer b.Close()
		fd, err := b.OpenCM(unix.O_NONBLOCK | unix.O_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer prog.close(fd)
		_, room := prog.alloc(4096)
		for range 32 {
			if len(input) < 2 {
				return
			}
			n := min(int(binary.NativeEndian.Uint16(input)), len(input)-2)
			cmd := append([]byte(nil), input[2:2+n]...)
			input = input[2+n:]
			pointTo(cmd, room)
			taken, err := prog.File(fd).Write(cmd)
			var e syscall.Errno
			switch {
			case err == nil && taken != n:
				t.Errorf("%d of %d bytes were taken", taken, n)
			case err != nil && (!errors.As(err, &e) || !cmErrnos[e]):
				t.Errorf("%x: %v", cmd, err)
			}
		}
	})
}

// pointTo sets the address of a command's answer.
func pointTo(cmd []byte, addr uint64) {
	if len(cmd) < 24 {
		return
	}
	at := 8
	switch binary.NativeEndian.Uint32(cmd) {
	case abi.CMCreateID:
		at = 16
	case abi.CMBind, abi.CMResolveIP, abi.CMResolveAddr, abi.CMResolveRoute, abi.CMConnect,
		abi.CMListen, abi.CMAccept, abi.CMReject, abi.CMDisconnect, abi.CMNotify:
		return
	}
	binary.NativeEndian.PutUint64(cmd[at:], addr)
}
