package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type execCmd struct {
	P2P            bool         `name:"p2p" help:"Ask for MPA's peer-to-peer mode when connecting. It is seldom needed, because the side that connects opens the stream with a Write of no bytes, which has the same effect with any peer. It can crash siw of Linux 6.1."`
	NoOpeningWrite bool         `help:"Do not open connections with a Write of no bytes. Then the side that accepts can't send before the program that connects has sent."`
	CRC            string       `name:"crc" help:"Whether connections have CRCs. preferred: always; off: only if the peer asks; required: always, and refuse servers that do not ask. Default ${default}." enum:"preferred,off,required" default:"preferred"`
	Extensions     bool         `help:"Take RFC 7306's messages from peers. Programs can't send them: siw's library refuses immediate data and atomic operations."`
	Address        []netip.Addr `help:"The device's addresses, one for IPv4 and one for IPv6. Programs that name no address listen at these and connect from these; other addresses are refused. Default: all addresses of this machine." placeholder:"IP"`
	Trace          bool         `help:"Print each command and its answer, as strace would, on the standard error."`
	Output         string       `short:"o" help:"Print commands and answers to this file, with or without --trace." placeholder:"FILE"`
	Record         string       `help:"Write each command's bytes and those of its answer to this file, as package provider/bridge/recording reads them." placeholder:"FILE"`
	Log            bool         `help:"Print what the engine reports on the standard error: failed start-ups, Terminates, limits."`
	Library        string       `help:"Where libgovs-preload.so and libgovs-bridge.so are. Default: lib/govs beside the command's folder." placeholder:"DIR"`
	Congestion     string       `help:"The congestion control of TCP, reno for example. Default: the system's." placeholder:"NAME"`
	Command        []string     `arg:"" optional:"" passthrough:"" help:"The program and its arguments."`
}

// Help implements kong's HelpProvider.
func (*execCmd) Help() string {
	return `Runs a C program that uses libibverbs and librdmacm over the Go engine, without a kernel module and without root. The program finds one RDMA device, siw0; ` +
		`it reaches other programs under exec, govs' own commands, and siw on other machines.

    govs-verbs-test exec -- rping -s -a 127.0.0.1

Flags of exec stand before the program; what follows is the program's. ` +
		`The program replaces this command, so signals and the exit status are its own. ` +
		`It must be linked dynamically with glibc, and not be setuid. ` +
		`Children that it starts have the device, too. The exit status is 2 if the program can't be run this way.`
}

// execUsage is the usage of exec: flags after the program are the program's.
const execUsage = name + " exec [flags] [--] PROGRAM [ARGUMENTS]"

// Run replaces this process with the program.
func (c *execCmd) Run() error {
	command, err := programOf("exec", execUsage, c.Command)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		var lookup *exec.Error
		if errors.As(err, &lookup) {
			err = fmt.Errorf("%s: %w", lookup.Name, lookup.Err)
		}
		return unable(fmt.Errorf("exec: %w", err))
	}
	if err := canPreload(path); err != nil {
		return unable(fmt.Errorf("exec: %s: %w", path, err))
	}
	libraries, err := c.libraries()
	if err != nil {
		return unable(fmt.Errorf("exec: %w", err))
	}
	sysfs, err := sysfsFolder()
	if err != nil {
		return unable(fmt.Errorf("exec: the files that stand for sysfs: %w", err))
	}
	env, err := c.environment(os.Environ(), libraries, sysfs)
	if err != nil {
		return unable(fmt.Errorf("exec: %w", err))
	}
	return unable(fmt.Errorf("exec: %s: %w", path, become(path, command, env)))
}

// programOf returns the program and its arguments from the arguments that kong left for a command.
// Errors show the command's usage.
func programOf(command, usage string, args []string) ([]string, error) {
	program := args
	if len(program) > 0 && program[0] == "--" {
		program = program[1:]
	}
	switch {
	case len(program) == 0:
		return nil, &usageError{fmt.Errorf("%s: no program is given; usage: %s", command, usage)}
	case len(args) == len(program) && strings.HasPrefix(program[0], "-"):
		// kong takes an unknown flag for the program.
		return nil, &usageError{fmt.Errorf("%s: unknown flag %s; usage: %s", command, program[0], usage)}
	}
	return program, nil
}

// become replaces this process with a program. It returns only on failure.
func become(path string, args, env []string) error {
	// The program would inherit SIGPIPE as ignored, because main ignores it. A handled signal gets
	// its default action instead. (signal.Reset leaves it ignored.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return syscall.Exec(path, args, env)
}

// ofThisMachine returns an error if programs cannot listen at addr.
func ofThisMachine(addr netip.Addr) error {
	if addr.IsMulticast() {
		return errors.New("is a multicast address; name one of this machine")
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("no interface of this machine has it; ip addr prints the addresses: %w",
			syscall.EADDRNOTAVAIL)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// environment returns the program's environment: env, and the variables that the libraries read.
func (c *execCmd) environment(env []string, libraries, sysfs string) ([]string, error) {
	set := map[string]string{
		"GOVS_BRIDGE_LIBRARY": filepath.Join(libraries, bridgeLibrary),
		"GOVS_BRIDGE_SYSFS":   sysfs,
		"SYSFS_PATH":          sysfs,
		"LD_PRELOAD":          filepath.Join(libraries, preloadLibrary),
		"GOVS_BRIDGE_CRC":     c.CRC,
		// Programs built with the address sanitizer insist that its library is loaded first.
		"ASAN_OPTIONS": "verify_asan_link_order=0",
	}
	if strings.ContainsAny(set["LD_PRELOAD"], ": ") {
		return nil, fmt.Errorf("the libraries are in %s: LD_PRELOAD takes no name with a space or "+
			"a colon in it; copy them to another folder, and name it with --library", libraries)
	}
	for name, on := range map[string]bool{"P2P": c.P2P, "EXTENSIONS": c.Extensions, "LOG": c.Log,
		"NO_OPENING_WRITE": c.NoOpeningWrite} {
		if on {
			set["GOVS_BRIDGE_"+name] = "1"
		}
	}
	if len(c.Address) > 0 {
		list := make([]string, len(c.Address))
		families := make(map[bool]netip.Addr)
		for i, addr := range c.Address {
			is4 := addr.Unmap().Is4()
			if first, twice := families[is4]; twice {
				return nil, fmt.Errorf("--address %s and --address %s are of one family: the "+
					"device has one address for IPv4 and one for IPv6", first, addr)
			}
			families[is4] = addr
			if addr.Unmap().IsUnspecified() {
				return nil, fmt.Errorf("--address %s is any address; leave the option out for "+
					"that", addr)
			}
			if err := ofThisMachine(addr); err != nil {
				return nil, fmt.Errorf("--address %s: %w", addr, err)
			}
			list[i] = addr.Unmap().String()
		}
		set["GOVS_BRIDGE_ADDRESSES"] = strings.Join(list, ",")
	}
	if c.Congestion != "" {
		if err := checkCongestion("--congestion", c.Congestion); err != nil {
			return nil, err
		}
		set["GOVS_BRIDGE_CONGESTION"] = c.Congestion
	}
	if c.Trace {
		set["GOVS_BRIDGE_TRACE"] = "-"
	}
	for name, file := range map[string]string{"TRACE": c.Output, "RECORD": c.Record} {
		if file == "" {
			continue
		}
		file, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return nil, err
		}
		set["GOVS_BRIDGE_"+name] = file
	}
	var out []string
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case name == "LD_PRELOAD" && value != "":
			set[name] += ":" + value // after the value that is already there
		case name == "ASAN_OPTIONS" && value != "":
			set[name] = value + ":" + set[name]
		case set[name] == "" && !strings.HasPrefix(name, "GOVS_BRIDGE_"):
			out = append(out, entry)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out, nil
}
