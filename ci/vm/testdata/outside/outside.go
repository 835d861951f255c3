// Package outside is a project of somebody else's.
package outside

import "path/filepath"

// Devices returns the names of the RDMA devices that the kernel has.
func Devices() ([]string, error) {
	dirs, err := filepath.Glob("/sys/class/infiniband/*")
	for i, dir := range dirs {
		dirs[i] = filepath.Base(dir)
	}
	return dirs, err
}
