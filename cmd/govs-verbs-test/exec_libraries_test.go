package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestExecForeignLibraries: what another user has put where the libraries are looked for, or where
// the source was that they are built from, is not executed, unless the command is that user's, too.
func TestExecForeignLibraries(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	const foreigner = 65534
	dir := t.TempDir()
	file := func(parts ...string) string {
		name := filepath.Join(append([]string{dir}, parts...)...)
		testkit.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.OK(t, os.WriteFile(name, []byte("touch \"$(dirname \"$0\")\"/executed\n"), 0o755))
		return name
	}
	self := file("bin", name)
	source := filepath.Join(dir, "source")
	script := file("source", "ci", "build")
	testkit.OK(t, os.Chown(script, foreigner, foreigner))
	_, err := librariesOf(self, source)
	wantText(t, "foreign source", fmt.Sprint(err), parts(script+" is of user 65534", "--library"))
	if _, err := os.Stat(filepath.Join(filepath.Dir(script), "executed")); err == nil {
		t.Error("another user's script was executed")
	}

	preload, bridge := file("lib", "govs", preloadLibrary), file("lib", "govs", bridgeLibrary)
	want := filepath.Dir(bridge)
	if got, err := librariesOf(self, ""); err != nil || got != want {
		t.Errorf("this user's libraries: %s, %v", got, err)
	}
	for _, library := range []string{preload, bridge} {
		testkit.OK(t, os.Chown(library, foreigner, foreigner))
		_, err := librariesOf(self, "")
		wantText(t, "foreign library", fmt.Sprint(err), parts("is of user 65534", "--library"))
	}
	testkit.OK(t, os.Chown(self, foreigner, foreigner))
	if got, err := librariesOf(self, ""); err != nil || got != want {
		t.Errorf("libraries of the command's owner: %s, %v", got, err)
	}
}

// TestExecBuildFails: a build of the libraries that fails says why, and leaves nothing.
func TestExecBuildFails(t *testing.T) {
	b := newBridged(t)
	fail := filepath.Join(t.TempDir(), "go")
	testkit.OK(t, os.WriteFile(fail, []byte("#!/bin/sh\n"+
		"[ \"$1\" != build ] || { echo it does not build >&2; exit 1; }\nexec go \"$@\"\n"), 0o755))
	t.Setenv("GOCACHE", goCache(t))
	t.Setenv("GO", fail)
	t.Setenv("XDG_CACHE_HOME", b.cache)
	_, err := build(sourceFolder(), testkit.Must(os.Executable())(t))
	wantText(t, "the error", fmt.Sprint(err), parts("building the libraries", "it does not build"))
	for _, left := range testkit.Must(filepath.Glob(filepath.Join(b.cache, "govs", "lib", "*",
		".*")))(t) {
		t.Errorf("it leaves %s", left)
	}
}
