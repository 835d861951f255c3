// Package ci has the scripts of ci/vm, which boot the guest with siw, for programs that run without
// the project's tree: the command govs-verbs-test, and tests of other modules (package vmtest).
package ci

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// scripts are vm/run, vm/check and deps, which programs start, and the files that these need.
//
//go:embed deps lib.sh
//go:embed vm/run vm/check vm/kernel vm/initramfs vm/init vm/session
//go:embed vm/accel.sh vm/boot.sh vm/verdict.sh
//go:embed vm/mend vm/mended
var scripts embed.FS

// Unpack returns a folder that has the scripts with the same names as the folder ci: deps, vm/run,
// vm/check. It is in the cache of the guest's kernels ($GOVS_CACHE, otherwise govs below
// $XDG_CACHE_HOME or ~/.cache), and its name has a hash of the content, so that programs of several
// versions don't disturb each other. Unpack keeps the files that are right and writes the others.
// Several processes may call Unpack at the same time.
func Unpack() (string, error) {
	cache, err := filepath.Abs(cacheFolder())
	if err != nil {
		return "", fmt.Errorf("finding the cache for the scripts of the guest: %w", err)
	}
	dir := filepath.Join(cache, "ci-"+digest())
	err = each(func(name string, text []byte) error {
		return put(filepath.Join(dir, filepath.FromSlash(name)), text)
	})
	if err != nil {
		return "", fmt.Errorf("unpacking the scripts of the guest; GOVS_CACHE can name "+
			"another folder for them: %w", err)
	}
	return dir, nil
}

// cacheFolder returns the cache folder, which vm/kernel uses, too.
func cacheFolder() string {
	home := cmp.Or(os.Getenv("HOME"), "/root")
	return cmp.Or(os.Getenv("GOVS_CACHE"),
		filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "govs"))
}

// each calls visit for each script, in the order of their names.
func each(visit func(name string, text []byte) error) error {
	return fs.WalkDir(scripts, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := scripts.ReadFile(name)
		if err != nil {
			return err
		}
		return visit(name, text)
	})
}

// digest returns a hash of the names and the content of all scripts.
func digest() string {
	all := sha256.New()
	_ = each(func(name string, text []byte) error { // reading embedded files does not fail
		fmt.Fprintf(all, "%s %d\n%s", name, len(text), text)
		return nil
	})
	return hex.EncodeToString(all.Sum(nil)[:6])
}

// put writes an executable file, unless it has the right content and mode. The file appears whole,
// because another process may be running it.
func put(file string, text []byte) (err error) {
	if is(file, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	part, err := write(filepath.Dir(file), text)
	if err == nil {
		err = os.Rename(part, file)
	}
	if err != nil && part != "" {
		_ = os.Remove(part)
	}
	return err
}

// is reports whether a file is a script with that text.
func is(file string, text []byte) bool {
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false
	}
	have, err := os.ReadFile(file)
	return err == nil && bytes.Equal(have, text)
}

// write makes an executable file with a new name in dir, and returns the name.
func write(dir string, text []byte) (name string, err error) {
	// A process that is forked now would have the file open for writing, and Linux runs no
	// file that is open for writing (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	part, err := os.CreateTemp(dir, ".part-*")
	if err != nil {
		return "", err
	}
	_, err = part.Write(text)
	if err == nil {
		err = part.Chmod(0o755)
	}
	if e := part.Close(); err == nil {
		err = e
	}
	return part.Name(), err
}
