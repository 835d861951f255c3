package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/bench/worker/workertest"
	"github.com/govs-rdma/govs/ci/testkit"
)

// asCommand, in the environment, makes the test's binary the command.
const asCommand = "GOVS_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command runs this command as a process, with two CPUs.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	client, server := workertest.Two(t)
	args = append(args, "-client-cpu", strconv.Itoa(client), "-server-cpu", strconv.Itoa(server))
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

func wantParts(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// TestFigures runs ends of govs-verbs-test, and checks the tables and the plot, but not the values.
func TestFigures(t *testing.T) {
	dir := t.TempDir()
	cmd := command(t, "figures", "-command", workertest.Command(t), "-rounds", "1", "-time-per", "5ms",
		"-only", "write-[14][mk]*,bandwidth", "-markdown", filepath.Join(dir, "all.md"), "-svg", dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(testkit.Must(os.ReadFile(filepath.Join(dir, "all.md")))(t))
	if text != string(out) {
		t.Errorf("the file has\n%s\nand stdout\n%s", text, out)
	}
	wantParts(t, text, "\n| Writes of 1 MiB / raw TCP | ", "| <=1.25",
		"\n| Writes of 4 KiB / raw TCP, a call each | ",
		"| bytes | engine RDMA Write, CRC on | engine RDMA Write, CRC off | raw TCP in Go |",
		"\n| 4194304 | ", "| congestion control | cubic |")
	for _, not := range []string{"The path", "1,000 QPs"} {
		if strings.Contains(text, not) {
			t.Errorf("%q in\n%s", not, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "bandwidth.svg")); err != nil {
		t.Error(err)
	}
}

// TestVictim runs three processes and rounds, and checks the tables and that the peers worked.
func TestVictim(t *testing.T) {
	dir := t.TempDir()
	// With the usual policy, because tests that run at the same time would leave the peers no CPU.
	cmd := command(t, "victim", "-normal", "-rounds", "1", "-time", "200ms", "-peers", "1,3", "-kind", "zero,terminate",
		"-every", "1ms", "-markdown", filepath.Join(dir, "victim.md"))
	out, err := cmd.Output()
	var exit *exec.ExitError
	beyond := errors.As(err, &exit) && exit.ExitCode() == exitFailed &&
		strings.Contains(string(exit.Stderr), errBeyond.Error())
	if err != nil && !beyond {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(testkit.Must(os.ReadFile(filepath.Join(dir, "victim.md")))(t))
	wantParts(t, text, "\n| zero | 1 | ", "\n| terminate | 3 | ", "| peers' policy | SCHED_OTHER |")
	if strings.Contains(text, "failed: ") {
		t.Errorf("a case failed:\n%s", text)
	}
	// Tests beside this one may leave the peers of a case no CPU, but hardly of all four.
	within := 0
	for _, at := range []struct {
		poll   string
		column int // of the ratio
	}{{"block", 6}, {"spin", 10}} {
		worked := 0
		for line := range strings.Lines(text) {
			cells := strings.Split(line, "|")
			if len(cells) != 13 || !strings.Contains(cells[11], "<=") {
				continue
			}
			if ratio := strings.TrimSpace(cells[at.column]); !strings.Contains(ratio, "peers idle") {
				worked++
				if strings.HasSuffix(ratio, ")") {
					within++
				}
			}
		}
		if worked == 0 {
			t.Errorf("%s: the peers of no case did anything:\n%s", at.poll, text)
		}
	}
	if (within == 8) == beyond {
		t.Errorf("%d of 8 within their limits, and the exit says %v\n%s", within, err, text)
	}
}

func TestWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                        "figures|victim",
		"all":                                     "figures or victim",
		"figures -rounds 0":                       "rounds",
		"figures -time-per 0s":                    "measurement",
		"figures -only nothing-like-it":           "no row or plot",
		"figures -only write-1m,nothing":          `like "nothing": there are bandwidth, path-1500-`,
		"figures -only [":                         "pattern",
		"figures -markdown /nonexistent/x.md":     "no such folder",
		"figures -server-cpu 0":                   "two CPUs",
		"figures -procs 0":                        "GOMAXPROCS",
		"figures write-1m":                        "unexpected argument write-1m",
		"victim -kind loud":                       `kind "loud": there are [reader slow`,
		"victim -peers 0":                         "0 peers: has to be 1 to 4096",
		"victim -peers many":                      "-peers many: ",
		"victim -poll sometimes":                  `poll "sometimes"`,
		"victim -rounds 0":                        "--rounds 0",
		"victim -time 0s":                         "at least 1ms is needed",
		"victim -server-cpu 0 -hostile-cpu 0":     "CPU 0: the server needs one to itself",
		"victim -markdown /nonexistent/victim.md": "no such folder",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// TestInterrupted: when a run that measures the path is interrupted, no process is left, and so no
// network namespace.
func TestInterrupted(t *testing.T) {
	testkit.NeedRoot(t, "network namespaces need root")
	mark := fmt.Sprintf("GOVS_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	cmd := command(t, "figures", "-command", workertest.Command(t), "-rounds", "100000", "-time-per", "5ms",
		"-only", "path-1500-rtt-spin")
	cmd.Env = append(cmd.Env, mark)
	said := testkit.Must(cmd.StderrPipe())(t)
	testkit.OK(t, cmd.Start())
	var text []byte
	for buf := make([]byte, 512); !bytes.Contains(text, []byte("round 1 of 100000")); {
		n, err := said.Read(buf)
		if text = append(text, buf[:n]...); err != nil {
			t.Fatalf("%v after %s", err, text)
		}
	}
	if n := len(testkit.Marked(t, mark)); n < 3 { // the command, and two ends
		t.Errorf("%d processes", n)
	}
	testkit.OK(t, cmd.Process.Signal(syscall.SIGINT))
	rest, _ := io.ReadAll(said)
	if err := cmd.Wait(); err == nil || !bytes.Contains(rest, []byte("interrupted")) {
		t.Errorf("%v, after %s", err, rest)
	}
	testkit.NoneMarked(t, mark)
}
