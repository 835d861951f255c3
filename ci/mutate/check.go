package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// check is what may notice a fault: the suite, or the tests of a package.
type check struct {
	notices verdict
	pkg     string                         // is built
	build   []string                       // the go command's arguments that build it
	folder  string                         // where it runs
	measure func(counters string) []string // arguments that make it count what it reaches
	args    func(limit time.Duration, names []string) []string
	fails   *regexp.Regexp // lines that name what has failed
	stop    *regexp.Regexp // a line after which it need not go on, or nil

	// Of the run without a fault.
	took    time.Duration
	reaches coverage
	fail    []string // tests that fail, for example because counting allocates
}

// suiteOf returns the suite, which is a program. It prints a line for each scenario that has run,
// and a table of verdicts at the end.
func suiteOf(pkg string, args []string) *check {
	const ran = `^\[ *\d+/\d+\] (?:differs|setup) +(\S+) .*\n`
	return &check{
		notices: bySuite,
		pkg:     pkg,
		build:   []string{"build"},
		measure: func(string) []string { return args },
		args: func(_ time.Duration, names []string) []string {
			if len(names) == 0 {
				return args
			}
			return append(args[:len(args):len(args)], "--only", strings.Join(names, ","))
		},
		fails: regexp.MustCompile(`(?m)` + ran + `|^(\S+/\S+) .*\b(?:FAIL|XPASS|SETUP)\b.*\n`),
		stop:  regexp.MustCompile(`(?m)` + ran),
	}
}

// testsOf returns the tests of a package.
func testsOf(pkg string) *check {
	anyOf := func(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }
	c := &check{
		notices: byTests,
		pkg:     pkg,
		build:   []string{"test", "-c"},
		folder:  pkg,
		measure: func(counters string) []string {
			return []string{"-test.gocoverdir=" + counters, "-test.timeout=" + firstRun.String()}
		},
		// Tests that still run at the end of the time count, too.
		fails: regexp.MustCompile(`(?m)^--- FAIL: (\w+)|^\t\t(Test\w+)[/ ]`),
	}
	c.args = func(limit time.Duration, names []string) []string {
		args := []string{"-test.failfast", "-test.timeout=" + limit.String()}
		if len(names) > 0 {
			args = append(args, "-test.run="+anyOf(names))
		}
		if len(c.fail) > 0 {
			args = append(args, "-test.skip="+anyOf(c.fail))
		}
		return args
	}
	return c
}

// failure is what failed in a run of a check.
type failure struct {
	failed bool
	names  []string // of the scenarios or tests, if they are known
	what   string   // in a line
}

// failed returns the names of what failed in a run that printed text.
func (c *check) failed(text string) (names []string) {
	for _, found := range c.fails.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Join(found[1:], ""))
	}
	return names
}

var crash = regexp.MustCompile(`(?m)^(?:panic|fatal error|runtime): .*`)

// runCheck runs what was built for a check.
func (t *trier) runCheck(c *check, limit time.Duration, args []string) failure {
	folder := filepath.Join(t.root, c.folder)
	// Tests end themselves, and print where they are, shortly before.
	out, err := t.run(limit+10*time.Second, folder, c.stop, t.path("program"), args...)
	if err == nil {
		return failure{}
	}
	f := failure{failed: true, names: c.failed(out)}
	switch {
	case len(f.names) > 0:
		f.what = f.names[0]
	case crash.MatchString(out):
		f.what = oneLine(crash.FindString(out))
	case errors.Is(err, context.DeadlineExceeded):
		f.what = "it does not end"
	default:
		last := out[strings.LastIndexByte(strings.TrimSpace(out), '\n')+1:]
		f.what = oneLine(fmt.Sprintf("%v: %s", err, last))
	}
	return f
}

// buildCheck builds the program of a check, with flags of the go command.
func (t *trier) buildCheck(c *check, flags ...string) error {
	args := append(append([]string{}, c.build...), flags...)
	return t.goCommand(append(args, "-o", t.path("program"), "./"+c.pkg)...)
}

// goCommand runs the go command.
func (t *trier) goCommand(args ...string) error {
	out, err := t.run(firstRun, t.root, nil, "go", args...)
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// empty makes a folder in t.dir, or empties it.
func (t *trier) empty(name string) error {
	return errors.Join(os.RemoveAll(t.path(name)), os.MkdirAll(t.path(name), 0o755))
}

// run runs a program in a folder, and returns what it prints. The program, and all that it has
// started, is ended after limit, or once it has printed what stop matches.
func (t *trier) run(
	limit time.Duration, folder string, stop *regexp.Regexp, name string, args ...string,
) (string, error) {
	if err := t.empty("tmp"); err != nil { // what was ended has left files there
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+os.Getenv("GOFLAGS")+" -ldflags=-w",
		"TMPDIR="+t.path("tmp"), "GOCOVERDIR="+t.path("counters"), "NO_GUEST=1", "REQUIRE_SIW=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute
	out := &output{stop: stop, cancel: cancel}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // instead of "signal: killed"
	}
	return out.text.String(), err
}

// output keeps what a program prints.
type output struct {
	text   bytes.Buffer
	stop   *regexp.Regexp
	cancel func()
}

// outputMost is how much a program may print, in bytes: a fault may make it print without end.
const outputMost = 1 << 20

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	if o.text.Len()+len(b) > outputMost {
		o.cancel()
		return 0, fmt.Errorf("it prints more than %d bytes", outputMost)
	}
	o.text.Write(b)
	if o.stop != nil && o.stop.Match(o.text.Bytes()) {
		o.cancel()
	}
	return len(b), nil
}
