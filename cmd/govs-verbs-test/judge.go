package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
)

// referenceName is the provider with which the others are compared.
const referenceName = "engine"

// judging holds the flags that run and compare share.
type judging struct {
	Report, JSON, JUnit string
	NoTshark            bool
	Verbose             bool // print a row per scenario even without a terminal
	Profiles            *profiles
}

// prepare checks that the reports can be written, so that a user learns of a problem before a run
// of minutes.
func (j *judging) prepare() error {
	if j.Report != "" {
		if err := os.MkdirAll(j.Report, 0o755); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
		if err := canWrite(j.Report); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	for _, f := range []struct{ flag, file string }{{"--json", j.JSON}, {"--junit", j.JUnit}} {
		if f.file == "" {
			continue
		}
		if info, err := os.Stat(f.file); err == nil && info.IsDir() {
			return fmt.Errorf("%s: %s is a folder, a file is needed", f.flag, f.file)
		}
		if err := canWrite(filepath.Dir(f.file)); err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	return nil
}

// canWrite returns why no file can be made in a folder.
func canWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".govs-*")
	if path := new(fs.PathError); errors.As(err, &path) {
		return fmt.Errorf("no file can be made in %s: %w", dir, path.Err)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// judge judges a collection whose captures are in dir, prints the result and writes the reports.
// The error is errFailed if the suite did not pass.
func (j *judging) judge(ctx context.Context, out *output, col *conformance.Collection, dir string) error {
	judge := conformance.Judge{Suite: scenarios.Suite(), Profile: j.Profiles.entries(),
		Dir: dir, Reference: referenceName}
	witness := "not asked"
	if !j.NoTshark {
		v, err := tshark.Version()
		if err == nil {
			witness = v
			judge.Witness = tshark.Witness
		} else {
			witness = "not asked: " + err.Error()
		}
	}
	fmt.Fprintf(out, "second decoder: %s\n", witness)
	rep, err := judge.Judge(ctx, col)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted while judging %d runs", len(col.Outcomes))
	}
	rep.Tshark, rep.Profiles = witness, j.Profiles.names
	fmt.Fprintln(out)
	text := report.Areas
	if j.Verbose || out.terminal() {
		text = report.Matrix
	}
	if err := text(out, rep); err != nil {
		return err
	}
	if err := j.write(out, rep, dir); err != nil {
		return err
	}
	if !rep.Passed {
		return errFailed
	}
	return nil
}

// write writes the requested reports.
func (j *judging) write(out *output, rep *conformance.Report, dir string) error {
	if j.Report != "" {
		if err := report.WriteDir(j.Report, rep, dir); err != nil {
			return err
		}
		fmt.Fprintf(out, "report: %s\n", filepath.Join(j.Report, "index.html"))
	}
	if j.JSON != "" {
		if err := report.WriteJSON(j.JSON, rep); err != nil {
			return err
		}
		fmt.Fprintf(out, "report: %s\n", j.JSON)
	}
	if j.JUnit != "" {
		if err := report.WriteJUnit(j.JUnit, rep); err != nil {
			return err
		}
		fmt.Fprintf(out, "report: %s\n", j.JUnit)
	}
	return nil
}
