//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider"
)

var errNoCounters = &provider.UnsupportedError{
	Feature: "counters of a device",
	Reason:  "its driver has none (siw is one such)",
}

// Stats returns the driver's counters in DeviceStats.Counters. They come from the directories
// hw_counters of the device and of its ports in sysfs (the kernel's
// Documentation/ABI/stable/sysfs-class-infiniband).
func (d *device) Stats() (provider.DeviceStats, error) {
	const op = "device counters"
	if err := d.enter(); err != nil {
		return provider.DeviceStats{}, opError(op, d.name, err)
	}
	defer d.leave()
	counters, err := hwCounters(os.DirFS("/sys/class/infiniband/" + d.name))
	if err == nil && len(counters) == 0 {
		err = errNoCounters
	}
	if err != nil {
		return provider.DeviceStats{}, opError(op, d.name, err)
	}
	return provider.DeviceStats{Counters: counters}, nil
}

// hwCounters reads the counters below a device's directory in sysfs. The names of a port's counters
// begin with its number ("1/sent_pkts").
func hwCounters(dir fs.FS) (map[string]uint64, error) {
	counters := map[string]uint64{}
	for _, pattern := range []string{"hw_counters/*", "ports/*/hw_counters/*"} {
		files, err := fs.Glob(dir, pattern)
		if err != nil {
			return nil, err // only a bad pattern causes an error
		}
		for _, file := range files {
			name := filepath.Base(file)
			if name == "lifespan" { // for how many milliseconds the driver caches the counters
				continue
			}
			text, err := fs.ReadFile(dir, file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the device has been removed
			}
			if err != nil {
				return nil, err
			}
			count, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				return nil, err
			}
			if port, inPort := strings.CutPrefix(file, "ports/"); inPort {
				port, _, _ = strings.Cut(port, "/")
				name = port + "/" + name
			}
			counters[name] = count
		}
	}
	return counters, nil
}
