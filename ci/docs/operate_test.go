package docs

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// patience is how long the program of TestOperate may run on a busy machine.
const patience = 2 * time.Minute

// server is a program over the engine whose two ends exchange messages until it is killed. It has
// the handler of docs/operate.md and a profile, and prints where the profile is.
const server = `package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

func main() {
	ctx, config := context.Background(), &rdmacm.ConnConfig{Receives: 8, ReceiveSize: 64}
	vctx := must(ibverbs.Open(engine.New(nil), ""))
	HANDLER
	listener := must(rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil))
	accepted := make(chan *rdmacm.Conn)
	go func() { accepted <- must(must(listener.Accept(ctx)).Accept(ctx, config)) }()
	from := must(rdmacm.Dial(ctx, vctx, listener.Addr(), config))
	to := <-accepted
	profile := must(net.Listen("tcp", "127.0.0.1:0"))
	go http.Serve(profile, nil)
	fmt.Println(profile.Addr())
	for {
		check(from.SendBytes(ctx, make([]byte, 64)))
		message := must(to.Receive(ctx))
		check(message.Release())
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
`

// TestOperate runs what docs/operate.md says about a program that hangs, its profile and versions.
// TestCapturesOfDocument of cmd/govs-verbs-test runs the commands for captures.
func TestOperate(t *testing.T) {
	text := document(t, "docs/operate.md")
	handler := goBlock.FindStringSubmatch(section(t, text, "## When it hangs"))
	if handler == nil {
		t.Fatal("docs/operate.md has no handler of a signal")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	testkit.OK(t, os.WriteFile(source, []byte(strings.Replace(server, "HANDLER", handler[2], 1)), 0o600))
	shell(t, root, "go build -o "+program+" "+source)

	t.Run("versions", func(t *testing.T) {
		versions := section(t, text, "## Versions")
		has := func(said, want string) {
			if !strings.Contains(said, want) {
				t.Errorf("%q says nothing of %q", said, want)
			}
		}
		shell(t, root, "go build -o "+dir+" ./cmd/govs-verbs-test")
		has(shell(t, dir, "./"+command(t, versions, "    (govs-verbs-test version)")), "govs-verbs-test ")
		of := strings.Replace(command(t, versions, "    (go version -m PROGRAM)"), "PROGRAM", program, 1)
		has(shell(t, dir, of), "\tgithub.com/govs-rdma/govs\t")

		module := filepath.Join(dir, "module")
		testkit.OK(t, os.Mkdir(module, 0o700))
		testkit.OK(t, os.Symlink(testkit.Must(filepath.Abs(root))(t), filepath.Join(dir, "govs")))
		shell(t, module, "go mod init example.com/module")
		shell(t, module, command(t, versions, "    (go mod edit -replace .*[^ ]) *#"))
		shell(t, module, "go mod edit -require github.com/govs-rdma/govs@v0.0.0")
		has(shell(t, module, "go list -mod=mod -m github.com/govs-rdma/govs"), "=> ../govs")
	})

	cmd := exec.Command(program)
	stdout := testkit.Must(cmd.StdoutPipe())(t)
	stderr := testkit.Must(cmd.StderrPipe())(t)
	testkit.OK(t, cmd.Start())
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop() // then it prints no more
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	at := testkit.Must(bufio.NewReader(stdout).ReadString('\n'))(t)

	t.Run("WriteState", func(t *testing.T) {
		shell(t, dir, strings.Replace(command(t, text, "`(kill -USR1 PID)`"), "PID", strconv.Itoa(cmd.Process.Pid), 1))
		await(t, stderr, `govs0, provider engine\n`, `  2 connections open, 1 of them accepted`,
			`  cq \d+ of govs0 \(room for \d+ completions\): `, `  qp \d+ \(IBV_QPS_RTS, `,
			`  cm id of govs0: listens on 127\.0\.0\.1:\d+, `)
	})
	t.Run("profile", func(t *testing.T) {
		profile := command(t, text, "    (go tool pprof 'http.*')")
		profile = strings.NewReplacer("127.0.0.1:6060", strings.TrimSpace(at),
			"seconds=10", "seconds=1").Replace(profile)
		for said := ""; !strings.Contains(said, "provider/engine.(*qp).PostSend"); {
			// In a second of a busy machine the program may have no CPU. After patience there is no
			// profile, and the loop ends.
			said = shell(t, dir, "export PPROF_TMPDIR="+dir+"; echo top100 -cum | "+profile)
		}
	})
}

// command returns the command that the parentheses of a pattern have in text.
func command(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("docs/operate.md has no %s", pattern)
	}
	return m[1]
}

// shell runs a command in a folder, and returns what it prints.
func shell(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// await reads from r until all patterns have matched.
func await(t *testing.T, r io.Reader, patterns ...string) {
	t.Helper()
	said := ""
	lines := bufio.NewScanner(r)
	for _, p := range patterns {
		for !regexp.MustCompile(p).MatchString(said) {
			if !lines.Scan() {
				t.Fatalf("no %q in\n%s", p, said)
			}
			said += lines.Text() + "\n"
		}
	}
}
