//go:build !race

package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// installed runs make install with a build folder of its own, removes that folder, and returns the
// folder below which the command is installed. So the command can use only installed files.
func installed(t *testing.T, prefix string) string {
	t.Helper()
	// The headers, without which there are no libraries to install.
	vmtest.NeedPackages(t, "kernel", "witnesses")
	built, stage := t.TempDir(), t.TempDir()
	cmd := exec.Command("make", "-C", "../..", "install",
		"OUT="+built, "DESTDIR="+stage, "PREFIX="+prefix)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, clip(string(out)))
	}
	testkit.OK(t, os.RemoveAll(built))
	return filepath.Join(stage, prefix)
}

// TestInstall: make install installs only the command and the libraries of exec. The command finds
// the libraries from there, called by its name, by a link or from any folder. A command that is
// copied without them reports where it has looked.
func TestInstall(t *testing.T) {
	root := installed(t, "/opt/govs")
	self := filepath.Join(root, "bin", name)
	var got []string
	testkit.OK(t, filepath.WalkDir(root, func(path string, file fs.DirEntry, err error) error {
		if err == nil && !file.IsDir() {
			info := testkit.Must(file.Info())(t)
			got = append(got, fmt.Sprintf("%s %o", strings.TrimPrefix(path, root), info.Mode().Perm()))
		}
		return err
	}))
	want := fmt.Sprintf("[/bin/%s 755 /lib/govs/%s 644 /lib/govs/%s 644]",
		name, bridgeLibrary, preloadLibrary)
	if fmt.Sprint(got) != want {
		t.Errorf("installed are %v, want %s", got, want)
	}

	elsewhere := t.TempDir()
	link := filepath.Join(elsewhere, "govs")
	testkit.OK(t, os.Symlink(self, link))
	start := func(command string, args ...string) *program {
		cmd := exec.Command(command, args...)
		cmd.Dir = elsewhere
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(elsewhere, "cache"))
		return startCmd(t, cmd)
	}
	for _, command := range []string{self, link} {
		start(command, "exec", "--", "ibv_devices").want(t, 0, "siw0")
		start(command, "exec", "--", "printenv", "LD_PRELOAD").want(t, 0,
			filepath.Join(root, "lib", "govs", preloadLibrary))
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "cache", "govs", "lib")); err == nil {
		t.Error("it has built libraries of its own")
	}

	alone := filepath.Join(elsewhere, name)
	testkit.OK(t, os.Link(self, alone))
	p := start(alone, "exec", "--", "ibv_devices")
	p.want(t, exitUsage)
	wantText(t, "the error", p.stderr.String(), parts(
		"are not in "+filepath.Join(filepath.Dir(elsewhere), "lib", "govs"),
		"make install PREFIX=/usr/local"))
}
