package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// canPreload returns why a library cannot be loaded before a program's own, or nil if it can.
func canPreload(path string) error {
	return canPreloadAfter(path, 0)
}

// mostInterpreters limits how often a script's interpreter may be a script itself, as in Linux.
const mostInterpreters = 4

func canPreloadAfter(path string, scripts int) error {
	if err := isPrivileged(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrPermission) {
		return nil // it may still be executable; running it will show
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	line, err := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	if strings.HasPrefix(line, "#!") {
		if scripts == mostInterpreters {
			return fmt.Errorf("it is a script whose interpreter is a script, more than %d times",
				mostInterpreters)
		}
		interpreter, err := interpreterOf(line)
		if err != nil {
			return err
		}
		if err := canPreloadAfter(interpreter, scripts+1); err != nil {
			return fmt.Errorf("its interpreter %s: %w", interpreter, err)
		}
		return nil
	}
	return isDynamic(f)
}

// interpreterOf returns the program in a script's first line. For env it is the program that env
// looks for.
func interpreterOf(line string) (string, error) {
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if len(words) == 0 {
		return "", errors.New("its first line names no interpreter")
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		return exec.LookPath(words[1])
	}
	return words[0], nil
}

// isPrivileged returns why a program gets more rights than this process, or nil if it does not. The
// loader ignores LD_PRELOAD for a program with more rights.
func isPrivileged(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
	case info.Mode()&os.ModeSetuid != 0 && int(owner.Uid) != os.Getuid():
		return fmt.Errorf("it is setuid, so that the loader ignores LD_PRELOAD; run a copy "+
			"without that bit, or as user %d", owner.Uid)
	case info.Mode()&os.ModeSetgid != 0 && int(owner.Gid) != os.Getgid():
		return fmt.Errorf("it is setgid, so that the loader ignores LD_PRELOAD; run a copy "+
			"without that bit, or as group %d", owner.Gid)
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 &&
		os.Getuid() != 0 {
		return errors.New("it has file capabilities, so that the loader ignores LD_PRELOAD; run a " +
			"copy without them")
	}
	return nil
}

var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "386": elf.EM_386, "arm": elf.EM_ARM,
	"riscv64": elf.EM_RISCV,
	"ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390, "loong64": elf.EM_LOONGARCH,
}

// isDynamic returns nil if glibc's loader loads the file on this machine, and otherwise why it does
// not.
func isDynamic(f *os.File) error {
	p, err := elf.NewFile(f)
	if err != nil {
		return fmt.Errorf("it is neither a program nor a script: %w", err)
	}
	if want, known := machines[runtime.GOARCH]; known && p.Machine != want {
		return fmt.Errorf("it is a program for %s, and the libraries are for %s", p.Machine, want)
	}
	loader := ""
	for _, s := range p.Progs {
		if s.Type == elf.PT_INTERP {
			name, err := io.ReadAll(io.LimitReader(s.Open(), 4096))
			if err != nil {
				return err
			}
			loader = strings.TrimRight(string(name), "\x00")
		}
	}
	goProgram := p.Section(".go.buildinfo") != nil
	switch {
	case loader == "" && goProgram:
		return errors.New("it is a Go program without cgo, which calls the kernel directly; it " +
			"can use package provider/engine instead")
	case loader == "":
		return errors.New("it is linked statically, so that no library can stand before libc; " +
			"link it dynamically")
	case strings.Contains(loader, "musl"):
		return fmt.Errorf("its loader is %s, and the libraries need glibc", loader)
	}
	return nil
}
