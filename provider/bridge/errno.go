package bridge

import (
	"errors"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

// errno converts err to the errno for the program; nil stays nil.
func errno(err error) error {
	if err == nil {
		return nil
	}
	if e := ibverbs.Errno(err); e != 0 {
		return e
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return syscall.EOPNOTSUPP
	case errors.Is(err, os.ErrClosed):
		return syscall.EBADF
	}
	return syscall.EINVAL
}
