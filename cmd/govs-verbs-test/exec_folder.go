package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/engine"
)

// sysfsFolder returns the folder with the files that stand for sysfs. All programs share it, so
// none has to remove it.
func sysfsFolder() (string, error) {
	vctx, err := ibverbs.Open(engine.New(nil), "")
	if err != nil {
		return "", err
	}
	defer func() { _ = vctx.Close() }()
	files, err := bridge.Sysfs(vctx, "")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err == nil {
		dir := filepath.Join(cache, "govs", "exec", files.Digest())
		if err = files.Write(dir); err == nil {
			return dir, nil
		}
	}
	// The user has no home, or cannot write there.
	temp, tempErr := ownFolder(filepath.Join(os.TempDir(), fmt.Sprintf("govs-%d", os.Getuid())))
	if tempErr == nil {
		dir := filepath.Join(temp, "exec", files.Digest())
		if tempErr = files.Write(dir); tempErr == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("set XDG_CACHE_HOME to a folder for them: %w", errors.Join(err, tempErr))
}

// ownFolder makes a folder inside one that everybody can write, unless it exists, and returns its
// name. If another user has made it, or a link instead, it is an error, because this process would
// read or write where that user wants.
func ownFolder(name string) (string, error) {
	if err := os.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return "", fmt.Errorf("%s is not a folder", name)
	case !ok || int(stat.Uid) != os.Getuid():
		return "", fmt.Errorf("%s belongs to another user", name)
	case info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("%s can be written by others", name)
	}
	return name, nil
}
