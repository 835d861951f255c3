package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/goleak"
)

// asCommand, set in the environment of the test's binary, makes it the command.
const asCommand = "GOVS_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "1" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// transcript collects what a command prints while it runs.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// await waits until the text matches a pattern and returns its submatches.
func (w *transcript) await(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(w.String()); m != nil {
			return m
		}
	}
	t.Fatalf("nothing that matches %q in:\n%s", pattern, clip(w.String()))
	return nil
}

// matched returns a channel that is closed when the text matches a pattern.
func (w *transcript) matched(t *testing.T, pattern string) <-chan struct{} {
	re := regexp.MustCompile(pattern)
	found := make(chan struct{})
	go func() {
		for t.Context().Err() == nil {
			if re.MatchString(w.String()) {
				close(found)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return found
}

// patience limits a step that normally takes seconds, even in an emulated guest or beside one.
const patience = 2 * time.Minute

// command is a run of the command inside the test's process.
type command struct {
	args           []string
	stdout, stderr transcript
	stop           context.CancelFunc // as SIGINT does
	done           chan struct{}
	status         int
}

// start starts the command, and checks that it has ended when the test ends.
func start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &command{args: args, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.status = run(ctx, args, &c.stdout, &c.stderr)
	}()
	t.Cleanup(c.kill)
	return c
}

// wait waits for the command's end and returns its status.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatalf("%s does not end\nstdout:\n%s\nstderr:\n%s", c, clip(c.stdout.String()), clip(c.stderr.String()))
	}
	return c.status
}

// kill ends the command, and waits until it has ended.
func (c *command) kill() {
	c.stop()
	<-c.done
}

// want checks how the command ended: its status, and what stdout and stderr contain.
func (c *command) want(t *testing.T, status int, stdout, stderr []string) {
	t.Helper()
	if got := c.wait(t); got != status {
		t.Errorf("%s: status %d, want %d\nstdout:\n%s\nstderr:\n%s", c, got, status, clip(c.stdout.String()), clip(c.stderr.String()))
	}
	wantText(t, c.String()+": stdout", c.stdout.String(), stdout)
	wantText(t, c.String()+": stderr", c.stderr.String(), stderr)
}

func (c *command) String() string { return name + " " + strings.Join(c.args, " ") }

func wantText(t *testing.T, what, text string, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s has no %q:\n%s", what, clip(part), clip(text))
		}
	}
}

// parts is a list of the parts that an output must have.
func parts(p ...string) []string { return p }

// clip leaves out the middle of long lines and of long text.
func clip(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(cut(line, 400))
	}
	return cut(b.String(), 8000)
}

// cut leaves out the middle of text that is longer than most.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most/2] + " ... " + text[len(text)-most/2:]
}

var update = flag.Bool("update", false, "write the golden files anew")

// hint is the end of every error about usage.
const hint = "Run govs-verbs-test --help, or any of its commands with --help.\n"

func lines(w *transcript) int { return strings.Count(w.String(), "\n") }

func decodeJSON(t *testing.T, c *command, v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(c.stdout.String()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		t.Errorf("%s: %v in:\n%s", c, err, &c.stdout)
	}
}

// TestGrammar: a command's name finds only that command, and anything else finds all commands.
func TestGrammar(t *testing.T) {
	commands := func(args ...string) (names []string) {
		for _, n := range kong.Must(grammar(args)).Model.Children {
			names = append(names, n.Name)
		}
		return names
	}
	all := commands()
	for _, name := range all {
		if got := commands(name, "--help"); len(got) != 1 || got[0] != name {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, other := range []string{"--version", "help", "VM", "Run", "ru"} {
		if got := commands(other, "run"); len(got) != len(all) || len(got) < 10 {
			t.Errorf("%s: %q, want %q", other, got, all)
		}
	}
}

// markProcesses sets an environment variable for the processes that this test starts, and returns
// it as NAME=VALUE.
func markProcesses(t *testing.T) string {
	value := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv("GOVS_TEST_MARK", value)
	return "GOVS_TEST_MARK=" + value
}

// self returns the command as a new process, with the race detector if the test has it.
func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "REQUIRE_SIW=")
	return cmd
}

func TestSourceRelease(t *testing.T) {
	for _, tc := range []struct{ r, v, want string }{
		{"6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-06-19)", "6.1.176"},
		{"6.12.117+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1~deb12u1 (2026-11-01)", "6.12.117"},
		{"6.18.44-generic", "#1 SMP PREEMPT_DYNAMIC", "6.18.44"},
		{"next", "#1 SMP", ""},
	} {
		if got := sourceRelease(tc.r, tc.v); got != tc.want {
			t.Errorf("uname -r %q, uname -v %q: release %q, want %q", tc.r, tc.v, got, tc.want)
		}
	}
}
