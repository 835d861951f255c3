package ibverbs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

var update = flag.Bool("update", false, "write testdata/wrong-uses.golden, or in the guest $VM_OUT/wrong-uses-siw.golden")

// wrongUse is an error that programs make. do makes it, and returns what the program sees of it.
type wrongUse struct {
	name string
	do   func(t *testing.T) []seen
	not  string // why siw cannot show it; empty if it can

	waits bool // for ten seconds on siw, so it runs beside others
}

// seen is what a program sees of a wrong use: a text, and where it appears.
type seen struct{ where, text string }

// saw returns the view of one call, completion or event.
func saw(where string, err error) []seen {
	if err == nil {
		return []seen{{where, "nil"}}
	}
	return []seen{{where, err.Error()}}
}

// wrongUses are all wrong uses, by subject.
var wrongUses = []struct {
	about string
	uses  []wrongUse
}{
	{"Connecting", wrongConnections},
	{"Waiting", wrongWaits},
	{"Posting", wrongPosts},
	{"Local memory", wrongLocalMemory},
	{"The peer's memory and receives", wrongRemoteMemory},
	{"Making objects", wrongObjects},
	{"Using and closing objects", wrongEnds},
}

// TestWrongUses compares what programs see of wrong uses with a table in testdata, one for the
// engine and one for siw. To write the engine's anew:
//
//	go test ./ibverbs -run TestWrongUses -update
//
// and siw's, with a test binary of the package, in a directory DIR of the host:
//
//	ci/vm/run --out DIR -- env GOVS_PROVIDER=kernel GOVS_DEVICE=siw0 GOVS_ADDR=192.0.2.1 BINARY -test.run TestWrongUses -update
func TestWrongUses(t *testing.T) {
	count := 0
	table := make(map[string][]seen) // by the name of the use
	var mu sync.Mutex
	var waiting sync.WaitGroup
	note := func(name string, rows []seen) {
		mu.Lock()
		defer mu.Unlock()
		table[name] = rows
	}
	for _, group := range wrongUses {
		for _, use := range group.uses {
			count++
			if onKernel() && use.not != "" {
				note(use.name, []seen{{"(not tried)", use.not}})
				continue
			}
			try := func() { t.Run(use.name, func(t *testing.T) { note(use.name, use.do(t)) }) }
			if use.waits {
				waiting.Go(try)
			} else {
				try()
			}
		}
	}
	waiting.Wait()
	if count < 40 || len(table) != count && !t.Failed() {
		t.Errorf("%d wrong uses with %d names", count, len(table))
	}
	var b strings.Builder
	b.WriteString(heading())
	for _, group := range wrongUses {
		fmt.Fprintf(&b, "\n%s\n\n", group.about)
		for _, use := range group.uses {
			writeUse(&b, use.name, table[use.name])
		}
	}
	name := "wrong-uses.golden"
	if onKernel() {
		name = "wrong-uses-siw.golden"
	}
	compareGolden(t, name, b.String())
}

// TestErrnoLast: a text of the tables that has an errno ends with it, after the reason and what to
// do about it.
func TestErrnoLast(t *testing.T) {
	for _, name := range []string{"wrong-uses.golden", "wrong-uses-siw.golden"} {
		table := testkit.Must(os.ReadFile(filepath.Join("testdata", name)))(t)
		ends := 0
		for line := range strings.Lines(string(table)) {
			line = strings.TrimSuffix(line, "\n")
			for errno := syscall.Errno(1); errno <= 132; errno++ { // Linux's last one, ERFKILL
				switch before, after, has := strings.Cut(line, ": "+errno.Error()); {
				case has && after != "":
					t.Errorf("%s: %q is not at the end of %q", name, errno, before+": "+errno.Error()+after)
				case has:
					ends++
				}
			}
		}
		if ends < 60 {
			t.Errorf("%s: only %d errnos", name, ends)
		}
	}
}

func heading() string {
	on := "the engine"
	if onKernel() {
		on = "siw"
	}
	return fmt.Sprintf("What programs see of wrong uses on %s.\nTestWrongUses of package ibverbs compares this table and writes it.\n", on)
}

// writeUse writes a row of the table for each place where a use appears.
func writeUse(b *strings.Builder, name string, rows []seen) {
	for _, row := range rows {
		fmt.Fprintf(b, "%-52s  %-14s  %s\n", name, row.where, stable(row.text))
		name = ""
	}
}

// compareGolden compares a table with its file, or writes it.
func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if out := os.Getenv("VM_OUT"); out != "" {
			path = filepath.Join(out, name) // the guest discards changes to other files
		}
		testkit.OK(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	testkit.OK(t, err)
	had, have := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range max(len(had), len(have)) {
		var w, g string
		if i < len(had) {
			w = had[i]
		}
		if i < len(have) {
			g = have[i]
		}
		if w != g {
			t.Fatalf("%s, line %d:\n got %s\nwant %s\nRun TestWrongUses with -update if it should be so.", path, i+1, g, w)
		}
	}
}

// variable lists texts that differ between runs, with their replacements.
var variable = []struct {
	text *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`\b(127\.0\.0\.1|192\.0\.2\.1):(\d{2,5})`), "HOST:PORT"},
	{regexp.MustCompile(`\b(127\.0\.0\.1|192\.0\.2\.1)\b`), "HOST"},
	{regexp.MustCompile(`\b(qp|QP|cq|pd|srq|completion channel) \d+\b`), "$1 N"},
	{regexp.MustCompile(`\b(mr|mw|[lr]?key|[lr]keys?|STag) 0x[0-9a-f]+`), "$1 KEY"},
	{regexp.MustCompile(`\b0x[0-9a-f]{6,16}\b`), "ADDR"},
	{regexp.MustCompile(`\b(govs0|siw0)\b`), "DEVICE"},
	{regexp.MustCompile(`\bbytes ([0-9a-f]{2} )+[0-9a-f]{2}\b`), "bytes HEX"},
	{regexp.MustCompile(`\b(CompVector is \d+, and must be from 0 to) \d+`), "$1 N"}, // processors
	{regexp.MustCompile(`\n`), `; `},
}

// stable returns text with the replacements of variable.
func stable(text string) string {
	for _, v := range variable {
		text = v.text.ReplaceAllString(text, v.by)
	}
	return text
}

// lab is a pair of connected Conns of one device, with a region each.
type lab struct {
	ctx                context.Context
	vctx               *ibverbs.Context
	client, server     *rdmacm.Conn
	clientMR, serverMR *ibverbs.MR
}

// labConfig says how to make a lab.
type labConfig struct {
	open         func() (*ibverbs.Context, netip.AddrPort) // nil: open
	dial, accept rdmacm.ConnConfig
	access       ibverbs.Access // the server's region; 0: everything but atomics
	server       func(c *rdmacm.Conn) error
}

// newLab connects the device with itself, and closes everything when the test ends.
func newLab(t *testing.T, cfg labConfig) *lab {
	t.Helper()
	const all = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead
	if cfg.open == nil {
		cfg.open = open
	}
	if cfg.access == 0 {
		cfg.access = all
	}
	c := &lab{ctx: timeout(t)}
	vctx, addr := cfg.open()
	c.vctx = vctx
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	l := testkit.Must(rdmacm.Listen(c.ctx, vctx, addr, nil))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	size := ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxInlineData: 16}
	for _, side := range []*rdmacm.ConnConfig{&cfg.dial, &cfg.accept} {
		if side.Cap == (ibverbs.QPCap{}) {
			side.Cap = size
		}
	}
	cfg.dial.Prepare = func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
		c.clientMR, err = conn.PD().AllocMR(4096, all)
		return err
	}
	cfg.accept.Prepare = func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
		if c.serverMR, err = conn.PD().AllocMR(4096, cfg.access); err == nil && cfg.server != nil {
			err = cfg.server(conn)
		}
		return err
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(c.ctx)
		if err == nil {
			c.server, err = req.Accept(c.ctx, &cfg.accept)
		}
		accepted <- err
	}()
	c.client = testkit.Must(rdmacm.Dial(c.ctx, vctx, l.Addr(), &cfg.dial))(t)
	testkit.OK(t, <-accepted)
	t.Cleanup(func() {
		for _, close := range []func() error{c.client.Close, c.server.Close, c.clientMR.Close, c.serverMR.Close} {
			testkit.OK(t, close())
		}
	})
	return c
}

// sge returns an SGE of the first n bytes of the client's region.
func (c *lab) sge(t *testing.T, n int) ibverbs.SGE {
	return testkit.Must(c.clientMR.SGE(0, n))(t)
}

// posts returns what the client sees of a work request that PostSend should refuse.
func (c *lab) posts(wr ibverbs.SendWR) []seen { return saw("PostSend", c.client.QP().PostSend(wr)) }

// fails returns what the client sees of a work request that PostSend accepts and that ends the
// connection.
func (c *lab) fails(t *testing.T, wr ibverbs.SendWR) []seen {
	t.Helper()
	wr.WRID, wr.Flags = 7, wr.Flags|ibverbs.SendSignaled
	testkit.OK(t, c.client.QP().PostSend(wr))
	err := completion(t, c.ctx, c.client, c.client.SendCQ())
	rows := saw("completion", err)
	if err != nil {
		return rows // with the cause
	}
	return append(rows, c.ended(t, "QP.Cause", c.client)...)
}

// completion returns what the next completion of cq shows.
func completion(t *testing.T, ctx context.Context, c *rdmacm.Conn, cq *ibverbs.CQ) error {
	t.Helper()
	var wc [1]ibverbs.WC
	testkit.Must(cq.PollWait(ctx, wc[:]))(t)
	if !onKernel() && wc[0].Err() != nil {
		testkit.OK(t, c.Wait(ctx)) // for the cause
	}
	return c.Err(&wc[0])
}

// ended waits for the end of c, and returns the cause. siw never has one.
func (c *lab) ended(t *testing.T, where string, conn *rdmacm.Conn) []seen {
	t.Helper()
	if onKernel() {
		return nil
	}
	testkit.OK(t, conn.Wait(c.ctx))
	return saw(where, conn.QP().Cause())
}

// event returns the device's next asynchronous event.
func event(t *testing.T, vctx *ibverbs.Context) []seen {
	t.Helper()
	ev := testkit.Must(vctx.AsyncEvent(timeout(t)))(t)
	return saw("event", errors.New(ev.String()))
}

// soon returns a context whose deadline passes at once.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
