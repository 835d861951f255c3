package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// AllocOption selects the kind of pages for a region's memory.
type AllocOption uint8

const (
	// HugePages maps pages of the system's default huge size (MAP_HUGETLB), which the administrator
	// has reserved (vm.nr_hugepages). If there are too few, AllocMR returns ENOMEM and the number
	// of pages.
	HugePages AllocOption = iota + 1

	// TransparentHugePages requests huge pages where the kernel can make them (MADV_HUGEPAGE), and
	// accepts small ones elsewhere. A kernel without transparent huge pages returns EINVAL.
	TransparentHugePages
)

// AllocMR maps n bytes of zeroed memory and registers them (mmap and ibv_reg_mr). The memory starts
// on a page boundary. It is outside the Go heap, so the garbage collector neither scans nor
// accounts it. Close unmaps it.
//
// Huge pages save address translations in the device, and in the CPU when it copies. HugePages and
// TransparentHugePages together are EINVAL.
func (pd *PD) AllocMR(n int, access Access, options ...AllocOption) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "the size is %d bytes, and must be at "+
			"least 1", n)
	}
	pages, err := mapPages(n, options)
	if err != nil {
		return nil, err
	}
	buf := pages[:n:n]
	mr, err := pd.register(op, buf, pages, func() (provider.MR, error) { return pd.p.RegMR(buf, access) })
	if err != nil {
		_ = unmap(pages)
		return nil, err
	}
	return mr, nil
}

// mapPages maps at least n bytes in whole pages. n must be above 0.
func mapPages(n int, options []AllocOption) ([]byte, error) {
	var huge, transparent bool
	for _, o := range options {
		switch o {
		case HugePages:
			huge = true
		case TransparentHugePages:
			transparent = true
		default:
			return nil, mapError(n, fmt.Errorf("unknown option %d; HugePages and TransparentHugePages "+
				"are possible: %w", o, syscall.EINVAL))
		}
	}
	page := os.Getpagesize()
	switch {
	case huge && transparent:
		return nil, mapError(n, fmt.Errorf("HugePages and TransparentHugePages exclude each other; leave out "+
			"one: %w", syscall.EINVAL))
	case huge:
		if page = hugePageSize(); page == 0 {
			return nil, mapError(n, fmt.Errorf("the kernel has no huge pages; leave HugePages "+
				"out: %w", syscall.EINVAL))
		}
	case transparent:
		page = max(page, hugePageSize())
	}
	if n > math.MaxInt-page {
		return nil, mapError(n, fmt.Errorf("the size is beyond the address space; ask for less: %w", syscall.EINVAL))
	}
	size := (n + page - 1) &^ (page - 1)
	pages, err := mapAnonymous(size, huge)
	switch {
	case !errors.Is(err, syscall.ENOMEM):
	case huge:
		err = fmt.Errorf("%d huge pages of %d KiB are needed, and %s are free; set more aside with sysctl "+
			"vm.nr_hugepages: %w", size/page, page>>10, freeHugePages(), err)
	default:
		err = fmt.Errorf("the system does not grant so much; ask for less, or see ulimit -v and sysctl "+
			"vm.overcommit_memory: %w", err)
	}
	if err != nil {
		return nil, mapError(size, err)
	}
	if transparent {
		if err := adviseHuge(pages); err != nil {
			_ = unmap(pages)
			return nil, &Error{Op: "madvise", Object: fmt.Sprintf("%d bytes", size),
				Err: fmt.Errorf("the kernel has no transparent huge pages; leave the option "+
					"out: %w", err)}
		}
	}
	return pages, nil
}

func mapError(n int, err error) error {
	return &Error{Op: "mmap", Object: fmt.Sprintf("%d bytes", n), Err: err}
}

// hugePageSize returns the page size of MAP_HUGETLB in bytes, 0 if there are no huge pages.
func hugePageSize() int {
	fields := strings.Fields(memInfo("Hugepagesize:"))
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.Atoi(fields[0]) // 0 if it is not a number
	return kib << 10
}

// freeHugePages returns the free and total numbers of huge pages for an error: "3 of 8".
func freeHugePages() string {
	return fmt.Sprintf("%s of %s", memInfo("HugePages_Free:"), memInfo("HugePages_Total:"))
}

// memInfo returns the value of name in /proc/meminfo, empty if there is none.
func memInfo(name string) string {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if rest, is := strings.CutPrefix(line, name); is {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
