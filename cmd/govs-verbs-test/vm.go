package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci"
)

type vmCmd struct {
	Siw     string        `enum:"default,crc,p2p,mended,mended-p2p" default:"default" help:"Which build of siw: default, crc (it requires CRC), p2p (it asks for MPA's peer-to-peer mode), mended (without its known faults), mended-p2p. Default ${default}." placeholder:"VARIANT"`
	Rxe     bool          `help:"Also make a soft RoCE device: rxe0 on the interface d1, 198.51.100.1/24."`
	Link    string        `default:"siw0" help:"Name of the siw device; none: make neither the device nor d0. Default ${default}." placeholder:"NAME"`
	Net     string        `help:"A network to this machine: the tap interface TAP, which is there already, leads to the guest's interface n0 with ADDRESS, such as 10.0.0.2/24. The siw device is on n0 then, and there is no d0." placeholder:"TAP=ADDRESS"`
	Kernel  string        `default:"6.1" help:"Series or release of a kernel in Debian 12's archive: 6.1, 6.12. Default ${default}." placeholder:"VERSION"`
	Memory  uint32        `env:"GOVS_VM_MEMORY" default:"2048" help:"Memory of the guest. Default ${default}." placeholder:"MIB"`
	CPUs    uint16        `name:"cpus" env:"GOVS_VM_CPUS" help:"Processors of the guest. Default: those of this machine, at most 4." placeholder:"N"`
	Accel   string        `enum:"tcg,kvm,auto" env:"GOVS_VM_ACCEL" default:"tcg" help:"tcg: emulate the processor; kvm: use this machine's; auto: kvm if a short trial boot shows that it works, otherwise tcg. Default ${default}." placeholder:"HOW"`
	Timeout time.Duration `default:"10m" help:"Time limit of COMMAND, in whole seconds. Boots have one of their own. Default ${default}." placeholder:"TIME"`
	Out     string        `help:"Folder of this machine that the guest may write to, as $$VM_OUT. Default: a temporary one, which is removed at the end." placeholder:"DIR"`
	Env     []string      `sep:"none" help:"A variable for COMMAND; without =VALUE the value that it has here. May be repeated. Always passed on: HOME, PATH, REQUIRE_SIW, and those whose names begin with GO." placeholder:"NAME[=VALUE]"`
	Install bool          `help:"Install the Debian packages that the guest needs and this machine lacks (as root)."`
	Command []string      `arg:"" passthrough:"" help:"The command and its arguments."`
}

// Help implements kong's HelpProvider.
func (*vmCmd) Help() string {
	return `Boots a virtual machine whose kernel has siw, runs COMMAND there as root in this folder, and passes on its output and exit status. For the tests of any project:

    ` + name + ` vm -- ibv_devinfo
    ` + name + ` vm --siw crc -- make check
    go test -exec '` + name + ` vm --' ./...

The guest sees the files of this machine; what COMMAND writes stays in the guest's memory, except below $VM_OUT. The device is siw0 on the interface d0, 192.0.2.1/24. A signal that ends this command ends the guest. ` +
		`Linux on x86-64 and Debian 12's archive are needed, and a few of its packages; the first run downloads a kernel and builds siw for it, in about 40 seconds, and keeps both in ~/.cache/govs. A boot takes about 5 seconds. See docs/ci.md.

Exit status: COMMAND's own, or 2 for wrong usage or if no guest is possible here, 120 if the guest's kernel logged a WARN, BUG or the like, 121 if the guest ended without a status, 124 if the time limit passed.`
}

// vmUsage is the usage of vm.
const vmUsage = name + " vm [flags] [--] COMMAND [ARGUMENTS]"

// maxVMSeconds is the longest time limit that the guest's script accepts, in seconds.
const maxVMSeconds = 999999

// Validate implements kong's check.
func (c *vmCmd) Validate() error {
	if c.Timeout < time.Second || c.Timeout%time.Second != 0 || c.Timeout > maxVMSeconds*time.Second {
		return fmt.Errorf("--timeout %v: has to be a whole number of seconds, from 1s to %ds", c.Timeout, maxVMSeconds)
	}
	if c.Memory < 256 {
		return fmt.Errorf("--memory %d: has to be at least 256, in MiB", c.Memory)
	}
	for _, v := range c.Env {
		if n, _, _ := strings.Cut(v, "="); n == "" {
			return fmt.Errorf("--env %s: NAME=VALUE is needed, or NAME", v)
		}
	}
	return nil
}

// Run replaces this process with the script that boots the guest, so signals, output and exit
// status are the script's.
func (c *vmCmd) Run() error {
	command, err := programOf("vm", vmUsage, c.Command)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return unable(fmt.Errorf("vm: %w", err))
	}
	vars, err := c.variables()
	if err != nil {
		return unable(fmt.Errorf("vm: %w", err))
	}
	scripts, err := ci.Unpack()
	if err != nil {
		return unable(fmt.Errorf("vm: %w", err))
	}
	script := filepath.Join(scripts, "vm", "run")
	args := append([]string{script}, c.options(dir)...)
	args = append(append(append(args, "--"), vars...), command...)
	env := (&exec.Cmd{Env: append(os.Environ(), c.settings()...)}).Environ() // removes duplicate names
	err = become(script, args, env)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("set GOVS_CACHE to a folder in which programs may be run: %w", err)
	}
	return unable(fmt.Errorf("vm: %s: %w", script, err))
}

// options returns the script's options, for a command that starts in dir.
func (c *vmCmd) options(dir string) []string {
	options := []string{"--dir", dir, "--siw", c.Siw, "--link", c.Link, "--kernel", c.Kernel,
		"--timeout", strconv.Itoa(int(c.Timeout / time.Second)), "--out", "none"}
	if c.Out != "" {
		options[len(options)-1] = c.Out
	}
	if c.Net != "" {
		options = append(options, "--net", c.Net)
	}
	if c.Rxe {
		options = append(options, "--rxe")
	}
	if c.Install {
		options = append(options, "--install")
	}
	return options
}

// settings returns the variables for the script.
func (c *vmCmd) settings() []string {
	settings := []string{"GOVS_VM_ACCEL=" + c.Accel, "GOVS_VM_MEMORY=" + strconv.Itoa(int(c.Memory))}
	if c.CPUs > 0 {
		settings = append(settings, "GOVS_VM_CPUS="+strconv.Itoa(int(c.CPUs)))
	}
	return settings
}

// variables returns words that set the command's variables in the guest. They precede the command
// there; nothing if there are no variables.
func (c *vmCmd) variables() ([]string, error) {
	var words []string
	for _, v := range c.Env {
		if len(words) == 0 {
			words = append(words, "env", "--")
		}
		if !strings.Contains(v, "=") {
			value, ok := os.LookupEnv(v)
			if !ok {
				return nil, fmt.Errorf("--env %s: the variable is not set here; --env %s=VALUE gives it a value", v, v)
			}
			v += "=" + value
		}
		words = append(words, v)
	}
	return words, nil
}
