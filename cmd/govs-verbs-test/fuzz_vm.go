package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/fuzz"
)

// Files in --out.
const (
	progressFile = "progress.json"
	atFile       = "at"
)

// fuzzProgress is how far a seed has been played. The guest writes it every few seconds, and the
// driver on the host when the guest has ended.
type fuzzProgress struct {
	Seed      uint64
	Targets   string
	Next      int   // index of the next sequence
	Skip      []int // sequences that a target or the guest did not survive
	Played    int
	Taken     int // sequences of which both targets took each frame
	Confirmed int // sequences that were played again with more patience
	Spent     time.Duration
	Notes     map[string]int // sequences by the note that explains their differences
	Findings  []string
	Lost      int // 1 more than the index at which siw's listener was last found to be lost

	file string
}

// progress reads the progress of the seed, or begins anew.
func (c *fuzzCmd) progress() (*fuzzProgress, error) {
	p := &fuzzProgress{}
	file := filepath.Join(c.Out, progressFile)
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the progress of an earlier run: %w; remove %s to begin anew", err, file)
	}
	if targets := strings.Join(c.Targets, ","); p.Seed != c.Seed || p.Targets != targets {
		p = &fuzzProgress{Seed: c.Seed, Targets: targets}
	}
	if p.Notes == nil {
		p.Notes = map[string]int{}
	}
	p.file = file
	return p, nil
}

// save writes the progress. A guest that dies meanwhile leaves the old one.
func (p *fuzzProgress) save() error {
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(p.file+".new", p.file)
}

// keepFinding writes a sequence to a file below dir, whose name it returns.
func keepFinding(dir string, s *fuzz.Sequence, kind string, lines ...string) (string, error) {
	var numbers []string
	for _, word := range regexp.MustCompile(`\d+`).FindAllString(s.About, 2) { // seed and index
		numbers = append(numbers, word)
	}
	c := *s
	c.About = strings.Join(append([]string{strings.TrimSpace(s.About)}, lines...), "\n")
	file := filepath.Join(dir, strings.Join(append(numbers, kind), "-")+".txt")
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		return file, err
	}
	return file, os.WriteFile(file, b.Bytes(), 0o644)
}

// stuck is how long the guest may take for one sequence. It is ended then.
const stuck = 3 * time.Minute

// inVM runs the same command in a guest until --time has passed, and boots another guest when one
// has died or its siw can't be used any more.
func (c *fuzzCmd) inVM(ctx context.Context, out *output) error {
	p, err := c.progress()
	if err != nil {
		return unable(err)
	}
	until := p.Next + c.Count
	for begin, boots := time.Now(), 1; ; boots++ {
		left := (c.Time - time.Since(begin)).Round(time.Second)
		if ctx.Err() != nil || left < time.Second || c.Count > 0 && p.Next >= until {
			fmt.Fprintf(out, "%d guests\n", boots-1)
			return p.print(out)
		}
		before := p.Next + len(p.Skip) + p.Lost
		status, err := c.guest(ctx, out, left, until-p.Next)
		if err != nil {
			return unable(err)
		}
		if status == exitUsage {
			return unable(errors.New("no guest can run: see the lines before"))
		}
		if p, err = c.progress(); err != nil {
			return unable(err)
		}
		if status != exitPassed && status != exitFailed && ctx.Err() == nil {
			err = c.died(p, status)
		}
		if err == nil && p.Next+len(p.Skip)+p.Lost == before && ctx.Err() == nil {
			err = fmt.Errorf("a guest ended with status %d and played nothing", status)
		}
		if err != nil {
			return unable(err)
		}
	}
}

// guest runs the command in one guest, for at most count sequences if there is a --count, and
// returns its status.
func (c *fuzzCmd) guest(ctx context.Context, out *output, left time.Duration, count int) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	at := filepath.Join(c.Out, atFile)
	_ = os.Remove(at)
	args := []string{"vm", "--out", c.Out, "--timeout", (left + time.Hour).String(), "--", self, "fuzz",
		"--targets", strings.Join(c.Targets, ","), "--seed", strconv.FormatUint(c.Seed, 10),
		"--time", left.String(), "--out", c.Out}
	if c.Count > 0 {
		args = append(args, "--count", strconv.Itoa(count))
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = out, out.errors
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // vm ends its guest
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	last, since := "", time.Now()
	for {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, err
			}
			return cmd.ProcessState.ExitCode(), nil
		case <-time.After(time.Second):
		}
		now, err := os.ReadFile(at)
		if err != nil || string(now) != last {
			last, since = string(now), time.Now()
		} else if time.Since(since) > stuck {
			end()
		}
	}
}

// died keeps the sequence that the guest did not survive, unless the guest has said why it ends.
// The sequence may be over: its effect comes later, or the guest fails when it closes the targets.
func (c *fuzzCmd) died(p *fuzzProgress, status int) error {
	data, err := os.ReadFile(filepath.Join(c.Out, atFile))
	if err != nil {
		return fmt.Errorf("the guest ended with status %d before a sequence: %w", status, err)
	}
	index, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("the guest ended with status %d before a sequence: %w", status, err)
	}
	if slices.Contains(p.Skip, index) || p.Lost == index+1 {
		return nil // the guest has said why it ends
	}
	file, err := keepFinding(c.Out, fuzz.Generate(c.Seed, index), "guest-died",
		fmt.Sprintf("the guest ended with status %d", status))
	p.Findings = append(p.Findings, file)
	if index >= p.Next {
		p.Skip = append(p.Skip, index)
	}
	return errors.Join(err, p.save())
}

// kernelLog reads the kernel's messages; nil if they can't be read.
type kernelLog struct{ fd int }

func openKernelLog() *kernelLog {
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if _, err := syscall.Seek(fd, 0, 2); err != nil {
		_ = syscall.Close(fd)
		return nil
	}
	return &kernelLog{fd}
}

// warnings matches messages after which a kernel is not to be trusted.
var warnings = regexp.MustCompile(`WARNING: |BUG: |kernel BUG|Oops|refcount_t: |` +
	`list_(add|del) corruption|general protection`)

// warning returns a message that has come since the last call and matches warnings, "" if none.
func (l *kernelLog) warning() string {
	if l == nil {
		return ""
	}
	var found string
	buf := make([]byte, 8192)
	for {
		n, err := syscall.Read(l.fd, buf)
		if errors.Is(err, syscall.EPIPE) { // messages were overwritten
			continue
		}
		if err != nil || n <= 0 {
			return found
		}
		if found == "" && warnings.Match(buf[:n]) {
			_, text, _ := strings.Cut(string(buf[:n]), ";")
			found, _, _ = strings.Cut(text, "\n")
		}
	}
}
