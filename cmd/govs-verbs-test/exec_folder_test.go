//go:build !race

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

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
