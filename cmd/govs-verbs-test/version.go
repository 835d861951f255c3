package main

import (
	"regexp"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// revision is set by ci/build: git describe, with -dirty if the tree has changes.
var revision string

// version returns govs' own version: the module's if the Go toolchain knows it, otherwise "devel"
// and the revision that was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return versionOf("", revision)
	}
	stamped := revision
	if stamped == "" {
		stamped = revisionOf(info.Settings)
	}
	return versionOf(info.Main.Version, stamped)
}

// revisionOf returns the go command's build stamp in ci/build's form: with -dirty if the tree
// differed from the revision.
func revisionOf(settings []debug.BuildSetting) string {
	stamp := make(map[string]string)
	for _, s := range settings {
		stamp[s.Key] = s.Value
	}
	r := stamp["vcs.revision"]
	r = r[:min(12, len(r))]
	if r != "" && stamp["vcs.modified"] == "true" {
		r += "-dirty"
	}
	return r
}

func versionOf(module, stamped string) string {
	switch {
	case module != "" && module != "(devel)":
		return module // without a release, the pseudo-version contains the revision
	case stamped != "":
		return "devel " + stamped
	}
	return "devel"
}

// kernelRelease returns the output of uname -r.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelVersion returns the release of the running kernel's sources, or "". Debian's uname -r names
// the ABI (6.1.0-50-amd64) and its uname -v the package (Debian 6.1.176-1); elsewhere uname -r
// begins with the release.
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
