package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
)

type compareCmd struct {
	Dir           string `arg:"" help:"Folder that run --collect wrote." type:"path"`
	Report        string `help:"Write index.html, report.json, junit.xml and the captures to this folder." placeholder:"DIR" type:"path"`
	JSON          string `name:"json" help:"Write the JSON report to this file." placeholder:"FILE" type:"path"`
	JUnit         string `name:"junit" help:"Write the JUnit report to this file." placeholder:"FILE" type:"path"`
	NoTshark      bool   `help:"Do not ask tshark."`
	RequireTshark bool   `help:"A missing tshark is a failure."`
}

// Run judges.
func (c *compareCmd) Run(ctx context.Context, out *output) error {
	col, err := report.ReadCollection(filepath.Join(c.Dir, collectionFile))
	if err != nil {
		return &environmentError{err}
	}
	if _, err := tshark.Version(); err != nil && c.RequireTshark {
		return &environmentError{err}
	}
	j := judging{Report: c.Report, JSON: c.JSON, JUnit: c.JUnit, NoTshark: c.NoTshark}
	return j.judge(ctx, out, col, c.Dir)
}

// judging is what run and compare have in common.
type judging struct {
	Report, JSON, JUnit string
	NoTshark            bool
}

// judge judges a collection whose captures are in dir, prints the matrix and
// writes the reports. The error is errFailed if the suite did not pass.
func (j *judging) judge(ctx context.Context, out *output, col *conformance.Collection, dir string) error {
	judge := conformance.Judge{Suite: scenarios.Suite(), Ledger: scenarios.Ledger(), Dir: dir, Reference: "engine"}
	witness := "not asked"
	if !j.NoTshark {
		v, err := tshark.Version()
		if err == nil {
			witness = v
			judge.Witness = tshark.Witness
		} else {
			witness = "not asked: " + err.Error()
		}
		fmt.Fprintf(out, "second witness: %s\n", witness)
	}
	rep, err := judge.Judge(ctx, col)
	if err != nil {
		return err
	}
	rep.Tshark = witness
	fmt.Fprintln(out)
	if err := report.Matrix(out, rep); err != nil {
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
	}
	if j.JUnit != "" {
		return report.WriteJUnit(j.JUnit, rep)
	}
	return nil
}
