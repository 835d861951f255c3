package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// firstRun is how long a run without a fault may take.
const firstRun = 30 * time.Minute

// patience returns how long a run with a fault may take if it took d without one. A run that takes
// longer has not ended because of the fault.
func patience(d time.Duration) time.Duration { return 3*d + time.Minute }

// trier tries one fault after another.
type trier struct {
	*project
	ctx    context.Context
	dir    string // has everything that is built and written
	root   string // the project's folder
	module string
	checks map[string]*check // by package; the suite is that of its program
}

func newTrier(ctx context.Context, p *project) (t *trier, err error) {
	t = &trier{project: p, ctx: ctx, checks: map[string]*check{}}
	if t.root, err = os.Getwd(); err != nil {
		return nil, err
	}
	if t.dir, err = os.MkdirTemp("", "mutate-"); err != nil {
		return nil, err
	}
	t.module, err = t.run(firstRun, t.root, nil, "go", "list", "-m")
	if err != nil {
		t.close()
	}
	t.module = strings.TrimSpace(t.module)
	return t, err
}

func (t *trier) close() { _ = os.RemoveAll(t.dir) }

func (t *trier) path(name string) string { return filepath.Join(t.dir, name) }

// try finds out who notices a fault.
func (t *trier) try(f *fault) (result, error) {
	if _, err := t.measured(t.command); err != nil { // so that all compiles without a fault
		return result{}, err
	}
	overlay, err := t.overlay(f)
	if err != nil {
		return result{}, err
	}
	if t.goCommand("build", overlay, "./"+f.pkg) != nil {
		return result{by: noCompile}, t.ctx.Err()
	}
	r := result{by: notReached}
	for _, pkg := range append([]string{t.command}, t.testedBy(f.pkg)...) {
		c, err := t.measured(pkg)
		if err != nil {
			return result{}, err
		}
		if !c.reaches.reaches(f) {
			continue
		}
		if r = t.tryCheck(overlay, c); r.by != byNobody {
			break
		}
	}
	return r, t.ctx.Err()
}

// overlay writes the file with the fault, and returns the go command's flag that puts it in place.
func (t *trier) overlay(f *fault) (string, error) {
	file := filepath.Join(t.root, f.file)
	src, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	changed := string(src[:f.from]) + f.to + string(src[f.end:])
	if err := os.WriteFile(t.path("changed.go"), []byte(changed), 0o644); err != nil {
		return "", err
	}
	replace := map[string]map[string]string{"Replace": {file: t.path("changed.go")}}
	text, err := json.Marshal(replace)
	if err != nil {
		return "", err
	}
	return "-overlay=" + t.path("overlay.json"), os.WriteFile(t.path("overlay.json"), text, 0o644)
}

func (t *trier) tryCheck(overlay string, c *check) result {
	if t.buildCheck(c, overlay) != nil {
		return result{by: noCompile}
	}
	limit := patience(c.took)
	what := again(func(names []string) failure { return t.runCheck(c, limit, c.args(limit, names)) })
	if what == "" {
		return result{by: byNobody}
	}
	return result{c.notices, what}
}

// again returns what fails, or "" if nothing does. run gets the names of what it runs, or none for
// everything. What has failed must fail again in one of three more runs, because it may have failed
// only because the machine was busy.
func again(run func(names []string) failure) (what string) {
	f := run(nil)
	for range 3 {
		if !f.failed {
			break
		}
		if run(f.names).failed {
			return f.what
		}
	}
	return ""
}

// measured returns the check of a package, which has run once without a fault.
func (t *trier) measured(pkg string) (*check, error) {
	if c := t.checks[pkg]; c != nil {
		return c, nil
	}
	c := testsOf(pkg)
	if pkg == t.command {
		c = suiteOf(pkg, t.suite)
	}
	// A program writes counters only if its own package has some.
	counted := "./" + t.command + ",./" + strings.Join(t.packages, ",./")
	if err := t.buildCheck(c, "-cover", "-coverpkg="+counted); err != nil {
		return nil, err
	}
	if err := t.empty("counters"); err != nil {
		return nil, err
	}
	began := time.Now()
	f := t.runCheck(c, firstRun, c.measure(t.path("counters")))
	c.took, c.fail = time.Since(began), f.names
	log.Printf("without a fault %s takes %v", pkg, c.took.Round(time.Second))
	if f.failed && (c.notices == bySuite || len(c.fail) == 0) {
		return nil, fmt.Errorf("%s fails without a fault: %s", pkg, f.what)
	}
	if f.failed {
		log.Printf("these tests are left out, because they fail: %v", c.fail)
	}
	if err := t.goCommand("tool", "covdata", "textfmt",
		"-i", t.path("counters"), "-o", t.path("profile")); err != nil {
		return nil, err
	}
	profile, err := os.ReadFile(t.path("profile"))
	if err != nil {
		return nil, err
	}
	if c.reaches, err = parseCoverage(profile, t.module); err != nil {
		return nil, err
	}
	if len(c.reaches) == 0 { // a program that crashes writes none
		return nil, fmt.Errorf("%s has counted nothing without a fault: %s", pkg, f.what)
	}
	t.checks[pkg] = c
	return c, nil
}

// coverage says which parts of files have run, by file below the project's folder.
type coverage map[string][]block

type block struct {
	from, end place
	ran       bool
}

// parseCoverage reads a profile of the go command, whose files have the module's path before them.
func parseCoverage(profile []byte, module string) (coverage, error) {
	c := coverage{}
	for line := range bytes.Lines(profile) {
		file, rest, ok := strings.Cut(strings.TrimPrefix(string(line), module+"/"), ":")
		if !ok || file == "mode" {
			continue
		}
		var n [6]int // first and last position, statements, how often they ran
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d",
			&n[0], &n[1], &n[2], &n[3], &n[4], &n[5]); err != nil {
			return nil, fmt.Errorf("a line of the coverage, %q: %w", line, err)
		}
		c[file] = append(c[file], block{placeOf(n[0], n[1]), placeOf(n[2], n[3]), n[5] > 0})
	}
	return c, nil
}

// reaches reports whether a fault has run. What is in no block, such as the expression of a case,
// has run if its function has; a declaration outside of functions always has.
func (c coverage) reaches(f *fault) bool {
	inFunction, found := false, false
	for _, b := range c[f.file] {
		if b.from <= f.probe && f.probe < b.end {
			found = true
			if b.ran {
				return true
			}
		}
		inFunction = inFunction || b.ran && b.from.line() >= f.fn[0] && b.end.line() <= f.fn[1]
	}
	return !found && (inFunction || f.fn[0] == 0)
}
