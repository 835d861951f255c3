package main

import (
	"regexp"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// version is govs' own version, as the Go toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
			v += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelVersion is the release of the sources that the running kernel was built
// of, or empty. Debian's uname -r names the ABI (6.1.0-50-amd64) and its uname -v
// the package (Debian 6.1.176-1); others begin uname -r with the release.
func kernelVersion() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return sourceRelease(unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]))
}

var (
	debianRelease = regexp.MustCompile(`\bDebian (\d+\.\d+\.\d+)\b`)
	release       = regexp.MustCompile(`^\d+\.\d+\.\d+`)
)

func sourceRelease(unameR, unameV string) string {
	if m := debianRelease.FindStringSubmatch(unameV); m != nil {
		return m[1]
	}
	return release.FindString(unameR)
}
