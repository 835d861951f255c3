package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/engine"
)

// Names of the libraries.
const (
	preloadLibrary = "libgovs-preload.so"
	bridgeLibrary  = "libgovs-bridge.so"
)

// libraries returns the folder with the two libraries. It is the one of a flag, or one beside the
// command, or one in which it builds them from the command's source.
func (c *execCmd) libraries() (string, error) {
	if c.Library != "" {
		if !complete(c.Library) {
			return "", noLibraries(c.Library)
		}
		return filepath.Abs(c.Library)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if resolved, err := filepath.EvalSymlinks(self); err == nil {
		self = resolved
	}
	return librariesOf(self, sourceFolder())
}

// librariesOf finds the libraries for the command self that was built from source, which is empty
// if unknown.
func librariesOf(self, source string) (string, error) {
	beside := filepath.Dir(self)
	places := []string{filepath.Join(filepath.Dir(beside), "lib", "govs"), beside}
	for _, dir := range places {
		if complete(dir) {
			if err := trusted(self, filepath.Join(dir, preloadLibrary),
				filepath.Join(dir, bridgeLibrary)); err != nil {
				return "", err
			}
			return filepath.Abs(dir)
		}
	}
	if source == "" {
		return "", noLibraries(strings.Join(places, " or "))
	}
	ci := filepath.Join(source, "ci")
	if err := trusted(self, source, ci, filepath.Join(ci, "build")); err != nil {
		return "", err
	}
	return build(source, self)
}

// trusted returns an error unless this user, root or the owner of the command self owns all of
// files, because they are executed. If the command was copied to another machine, or its source
// removed, anybody could make a folder of that name in /tmp.
func trusted(self string, files ...string) error {
	command, err := ownerOf(self)
	if err != nil {
		return err
	}
	for _, file := range files {
		owner, err := ownerOf(file)
		if err != nil {
			return err
		}
		if owner != 0 && owner != os.Getuid() && owner != command {
			return fmt.Errorf("%s is of user %d, not of this user, root or the owner of %s; "+
				"--library DIR names libraries to be used all the same", file, owner, self)
		}
	}
	return nil
}

// ownerOf returns the number of the user who owns a file.
func ownerOf(file string) (int, error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: its owner is not known", file)
	}
	return int(stat.Uid), nil
}

func noLibraries(where string) error {
	return fmt.Errorf("%s and %s are not in %s; from a clone, make build puts them into "+
		"out/lib/govs, and make install PREFIX=/usr/local installs them with the command",
		preloadLibrary, bridgeLibrary, where)
}

// complete reports whether a folder has both libraries.
func complete(dir string) bool { return !oldest(dir).IsZero() }

// oldest returns when the older of the two libraries was written, or zero if one is missing.
func oldest(dir string) (when time.Time) {
	for _, library := range []string{preloadLibrary, bridgeLibrary} {
		info, err := os.Stat(filepath.Join(dir, library))
		if err != nil || !info.Mode().IsRegular() {
			return time.Time{}
		}
		if when.IsZero() || info.ModTime().Before(when) {
			when = info.ModTime()
		}
	}
	return when
}

// sourceFolder returns the project folder from which the command was built. It is empty if the
// folder does not exist or is not known: go run, go install and go build record its name in the
// program, but ci/build does not. No other folder is safe, because its contents are executed.
func sourceFolder() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return ""
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(root, "ci", "build")); err != nil {
		return ""
	}
	return root
}

// build builds the libraries below the user's cache folder, unless they exist and are newer than
// the command and the source. The command's age is not enough: the go command keeps a command whose
// own source has not changed, and the libraries have more sources.
func build(source, self string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("building the libraries: %w", err)
	}
	sum := sha256.Sum256([]byte(source))
	dir := filepath.Join(cache, "govs", "lib", fmt.Sprintf("%x", sum[:8]))
	command, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	last, err := changed(source)
	if err != nil {
		return "", fmt.Errorf("building the libraries: %w", err)
	}
	if built := oldest(dir); built.After(command.ModTime()) && built.After(last) {
		return dir, nil
	}
	fmt.Fprintf(os.Stderr, "%s exec: building the libraries in %s\n", name, dir)
	cmd := exec.Command("bash", filepath.Join(source, "ci", "build"), "--libraries", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the libraries with %s: %w\n%s", cmd, err, out)
	}
	return dir, nil
}

// changed returns when the libraries' sources last changed: a file, or the list of files in a
// folder.
func changed(source string) (last time.Time, err error) {
	for _, part := range []string{"go.mod", "go.sum", "ci/build", "cgo/bridge", "ibverbs",
		"provider"} {
		err := filepath.WalkDir(filepath.Join(source, part), func(path string, e fs.DirEntry,
			err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && e.Name() == "testdata":
				return fs.SkipDir
			case strings.HasSuffix(path, "_test.go"):
				return nil
			}
			info, err := e.Info()
			if err == nil && info.ModTime().After(last) {
				last = info.ModTime()
			}
			return err
		})
		if err != nil {
			return time.Time{}, err
		}
	}
	return last, nil
}

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
