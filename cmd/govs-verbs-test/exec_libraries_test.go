//go:build !race

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestExecForeignLibraries: exec executes no files of another user where it looks for the libraries
// or their source, unless the command belongs to that user, too.
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

// TestExecBuildFails: if a build of the libraries fails, it reports why and leaves nothing.
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

// TestExecBuildsAgain: the libraries are built if the command or their source is newer than they
// are, and only then.
func TestExecBuildsAgain(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	source := t.TempDir()
	at := func(name string) string { return filepath.Join(source, filepath.FromSlash(name)) }
	files := map[string]string{"go.mod": "", "go.sum": "", "cgo/bridge/preload.c": "",
		"ibverbs/qp.go": "", "provider/bridge/cm.go": "", "provider/bridge/cm_test.go": "",
		"provider/bridge/testdata/a": "", "bin/command": "",
		"ci/build": "mkdir -p $2 && echo >>$2/builds && touch $2/" + preloadLibrary + " $2/" +
			bridgeLibrary}
	for name, text := range files {
		testkit.OK(t, os.MkdirAll(filepath.Dir(at(name)), 0o755))
		testkit.OK(t, os.WriteFile(at(name), []byte(text), 0o644))
	}
	now := time.Now()
	date := func(name string, ago time.Duration) {
		testkit.OK(t, os.Chtimes(name, now, now.Add(-ago)))
	}
	testkit.OK(t, filepath.WalkDir(source, func(path string, _ fs.DirEntry, err error) error {
		date(path, 3*time.Hour)
		return err
	}))
	builds := 0
	for _, c := range []struct {
		changed string
		builds  bool
	}{
		{"", true}, {"", false}, {"bin/command", true}, {"cgo/bridge/preload.c", true},
		{"provider/bridge/cm.go", true}, {"provider/bridge", true}, {"go.mod", true}, {"ci/build", true},
		{"provider/bridge/cm_test.go", false}, {"provider/bridge/testdata/a", false}, {"ci", false},
	} {
		if c.changed != "" {
			date(at(c.changed), time.Hour)
		}
		dir := testkit.Must(build(source, at("bin/command")))(t)
		got := len(testkit.Must(os.ReadFile(filepath.Join(dir, "builds")))(t))
		if want := map[bool]int{true: 1}[c.builds]; got-builds != want {
			t.Errorf("changed %q: built %d times, want %d", c.changed, got-builds, want)
		}
		builds = got
		if c.changed != "" { // older than the next change
			date(at(c.changed), 3*time.Hour)
		}
		date(filepath.Join(dir, preloadLibrary), 2*time.Hour)
		date(filepath.Join(dir, bridgeLibrary), 2*time.Hour)
	}
}

// TestOwnFolder: a folder below one that all users share is used if only this user can write it.
func TestOwnFolder(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for range 2 {
		if got, err := ownFolder(at("mine")); err != nil || got != at("mine") {
			t.Errorf("%s, %v", got, err)
		}
	}
	testkit.OK(t, os.Symlink(at("mine"), at("link")))
	testkit.OK(t, os.WriteFile(at("file"), nil, 0o644))
	testkit.OK(t, os.Mkdir(at("open"), 0o755))
	testkit.OK(t, os.Chmod(at("open"), 0o777))
	testkit.OK(t, os.Mkdir(at("foreign"), 0o755))
	bad := map[string]string{"link": "is not a folder", "file": "is not a folder",
		"open": "can be written by others"}
	if os.Getuid() == 0 {
		testkit.OK(t, os.Chown(at("foreign"), 65534, 65534))
		bad["foreign"] = "belongs to another user"
	} else {
		t.Log("a folder of another user: only root can make one")
	}
	for name, want := range bad {
		_, err := ownFolder(at(name))
		wantText(t, name, fmt.Sprint(err), parts(want))
	}
}

// TestExecWithoutHome: users without a home, or with one that can't be written, get a folder among
// temporary files. The folder is refused if another user could have made it.
func TestExecWithoutHome(t *testing.T) {
	b := newBridged(t)
	file := filepath.Join(t.TempDir(), "file")
	testkit.OK(t, os.WriteFile(file, nil, 0o644))
	for _, home := range []string{"", file} {
		temp := t.TempDir()
		run := func() *program {
			cmd := b.command(nil, "cat", "/sys/class/infiniband/siw0/node_type")
			cmd.Env = append(cmd.Env, "XDG_CACHE_HOME=", "HOME="+home, "TMPDIR="+temp)
			return startCmd(t, cmd)
		}
		run().want(t, 0, "4: RNIC")
		own := filepath.Join(temp, fmt.Sprintf("govs-%d", os.Getuid()))
		if left := testkit.Must(filepath.Glob(filepath.Join(own, "exec", "*")))(t); len(left) != 1 {
			t.Errorf("with HOME=%s: in the folder of temporary files is %v", home, left)
		}
		testkit.OK(t, os.RemoveAll(own))
		testkit.OK(t, os.Symlink(t.TempDir(), own))
		p := run()
		p.want(t, exitUsage)
		wantText(t, "the error", p.stderr.String(), parts("is not a folder", "XDG_CACHE_HOME"))
	}
}
