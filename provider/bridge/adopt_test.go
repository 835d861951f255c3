package bridge

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// TestDescriptorsBeyond: a descriptor that the program cannot adopt, because its number is beyond
// the table, is EMFILE, and nothing of it remains.
func TestDescriptorsBeyond(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	bare := testkit.Must(b.OpenUverbs(unix.O_CLOEXEC))(t)
	defer prog.close(bare)
	without := &libDevice{t: t, prog: prog, fd: bare}
	held := testkit.Must(b.OpenCM(unix.O_CLOEXEC))(t) // otherwise the first one would start goroutines
	defer prog.close(held)
	before := descriptors(t)
	prog.full = true
	defer func() { prog.full = false }()
	for name, open := range map[string]func() error{
		"uverbs": func() error { _, err := b.OpenUverbs(unix.O_CLOEXEC); return err },
		"CM":     func() error { _, err := b.OpenCM(unix.O_CLOEXEC); return err },
		"asynchronous events": func() error {
			return without.command(abi.UverbsGetContext, &abi.Response{}, nil, &abi.GetContextResp{},
				&abi.SiwAllocCtxResp{})
		},
		"completions": func() error {
			return d.command(abi.UverbsCreateCompChannel, &abi.Response{}, nil,
				&abi.CreateCompChannelResp{}, nil)
		},
	} {
		if err := open(); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%s: %v, want EMFILE", name, err)
		}
		if n := descriptors(t); n != before {
			t.Errorf("%s: %d descriptors are open, before there were %d", name, n, before)
		}
	}
	if b.cm.files != 1 {
		t.Errorf("%d descriptors of rdma_cm are counted, there is 1", b.cm.files)
	}
}

// descriptors returns the process's number of descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(testkit.Must(os.ReadDir("/proc/self/fd"))(t))
}
