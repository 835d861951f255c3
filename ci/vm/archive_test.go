package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// archiveLists stands in for apt-cache and its lists: a line for each package and version.
const archiveLists = `#!/usr/bin/env bash
set -eu
case $1 in
pkgnames) sed -n "s/^\($2[^ ]*\) .*/\1/p" "$LISTS" | sort -u ;;
show) sed -n "s/^$3 /Version: /p" "$LISTS" | head -n 1 ;;
madison)
	for name in "${@:2}"; do
		sed -n "s/^$name \(.*\)/$name | \1 | archive amd64 Packages/p" "$LISTS"
	done
	;;
*) exit 1 ;;
esac
`

// TestArchiveInParts: a kernel counts if the archive has every package of it at one version.
// Debian's lists had the content of "a new version arrives" on 2026-11-28.
func TestArchiveInParts(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{"apt-cache": archiveLists, "apt-get": "#!/bin/true\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const older = `
linux-headers-6.1.0-50-amd64 6.1.176-1
linux-headers-6.1.0-50-common 6.1.176-1
linux-image-6.1.0-50-amd64 6.1.176-1
linux-kbuild-6.1 6.1.176-1
linux-source-6.1 6.1.176-1
`
	const of56 = `
linux-headers-6.1.0-56-amd64 6.1.192-2
linux-headers-6.1.0-56-common 6.1.192-2
linux-image-6.1.0-56-amd64 6.1.192-2
linux-image-6.1.0-56-amd64-unsigned 6.1.192-2
linux-source-6.1 6.1.192-2
`
	const of57 = `
linux-headers-6.1.0-57-amd64 6.1.192-3
linux-headers-6.1.0-57-common 6.1.192-3
linux-kbuild-6.1 6.1.192-3
linux-source-6.1 6.1.192-3
`
	const of612 = `
linux-headers-6.12.117+deb12-amd64 6.12.117-1~deb12u1
linux-headers-6.12.117+deb12-common 6.12.117-1~deb12u1
linux-image-6.12.117+deb12-amd64 6.12.117-1~deb12u1
linux-kbuild-6.12.117+deb12 6.12.117-1~deb12u1
linux-source-6.12 6.12.117-1~deb12u1
`
	for _, c := range []struct{ name, wanted, lists, want string }{
		{"all of one version", "6.1", older, "6.1.0-50-amd64 6.1.176-1 linux-headers-6.1.0-50-amd64 " +
			"linux-headers-6.1.0-50-common linux-source-6.1 linux-image-6.1.0-50-amd64 linux-kbuild-6.1"},
		{"a new version arrives", "6.1", older + of56 + of57 + "linux-image-6.1.0-57-amd64-unsigned 6.1.192-3\n",
			"6.1.0-57-amd64 6.1.192-3 linux-headers-6.1.0-57-amd64 linux-headers-6.1.0-57-common " +
				"linux-source-6.1 linux-image-6.1.0-57-amd64-unsigned linux-kbuild-6.1"},
		{"the new one has no image yet", "6.1", older + of56 + of57, "6.1.0-50-amd64 6.1.176-1 " +
			"linux-headers-6.1.0-50-amd64 linux-headers-6.1.0-50-common linux-source-6.1 " +
			"linux-image-6.1.0-50-amd64 linux-kbuild-6.1"},
		{"a release without build tools", "6.1.0-56", older + of56 + of57, ""},
		{"build tools of each release", "6.12", older + of612, "6.12.117+deb12-amd64 6.12.117-1~deb12u1 " +
			"linux-headers-6.12.117+deb12-amd64 linux-headers-6.12.117+deb12-common linux-source-6.12 " +
			"linux-image-6.12.117+deb12-amd64 linux-kbuild-6.12.117+deb12"},
		{"no such release", "6.1.0-58", older + of57, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := t.TempDir()
			lists := filepath.Join(cache, "lists")
			if err := os.WriteFile(lists, []byte(c.lists), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("./kernel", "--cached", c.wanted)
			cmd.Env = append(os.Environ(), "GOVS_CACHE="+cache, "LISTS="+lists, "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			status, says := 1, "" // no kernel was made
			if c.want == "" {
				status, says = 2, "no kernel "+c.wanted+" for amd64 with headers, source and build tools"
			}
			if cmd.ProcessState.ExitCode() != status || !strings.Contains(string(out), says) {
				t.Errorf("%v, want status %d and %q; said:\n%s", err, status, says, out)
			}
			found, _ := os.ReadFile(filepath.Join(cache, "vm", "packages-"+c.wanted))
			if got := strings.TrimSpace(string(found)); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
