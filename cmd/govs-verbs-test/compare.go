package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
)

type compareCmd struct {
	Dir           string `arg:"" help:"The folder that run --collect wrote." type:"path"`
	Report        string `help:"Write index.html, report.json, junit.xml and the captures to this folder." placeholder:"DIR" type:"path"`
	JSON          string `name:"json" help:"Write the JSON report to this file." placeholder:"FILE" type:"path"`
	JUnit         string `name:"junit" help:"Write the JUnit report to this file." placeholder:"FILE" type:"path"`
	NoTshark      bool   `help:"Decode the captures without tshark as the second decoder." xor:"tshark"`
	Verbose       bool   `short:"v" help:"Print a row per scenario without a terminal, too, not one per area."`
	RequireTshark bool   `help:"Fail with status 2 if tshark is not installed." xor:"tshark"`

	profileFlags
}

// Validate implements kong's check.
func (c *compareCmd) Validate() error {
	_, err := c.load()
	return err
}

// Run judges.
func (c *compareCmd) Run(ctx context.Context, out *output) error {
	col, err := report.ReadCollection(filepath.Join(c.Dir, collectionFile))
	if err != nil {
		return unable(fmt.Errorf("%s is not a folder that run --collect wrote: %w", c.Dir, err))
	}
	if _, err := tshark.Version(); err != nil && c.RequireTshark {
		return unable(err)
	}
	known, err := c.load()
	if err != nil {
		return unable(err)
	}
	j := judging{
		Report: c.Report, JSON: c.JSON, JUnit: c.JUnit, NoTshark: c.NoTshark, Verbose: c.Verbose,
		Profiles: known,
	}
	if err := j.prepare(); err != nil {
		return unable(err)
	}
	return j.judge(ctx, out, col, c.Dir)
}
