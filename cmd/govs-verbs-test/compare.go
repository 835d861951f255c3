package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
)

type compareCmd struct {
	Dirs          []string `arg:"" name:"dir" help:"The folder that run --collect wrote, or several that are judged together." type:"path"`
	Report        string   `help:"Write index.html, report.json, junit.xml and the captures to this folder." placeholder:"DIR" type:"path"`
	JSON          string   `name:"json" help:"Write the JSON report to this file." placeholder:"FILE" type:"path"`
	JUnit         string   `name:"junit" help:"Write the JUnit report to this file." placeholder:"FILE" type:"path"`
	NoTshark      bool     `help:"Decode the captures without tshark as the second decoder." xor:"tshark"`
	Verbose       bool     `short:"v" help:"Print a row per scenario even if the output is no terminal."`
	RequireTshark bool     `help:"Fail with status 2 if tshark is not installed." xor:"tshark"`

	profileFlags
}

// Help implements kong's HelpProvider.
func (*compareCmd) Help() string {
	return `Runs of the engine alone need no guest: with ` + name + ` run --collect outside ` +
		`and run --matrix --with kernel --collect in the guest, ` +
		`both with the same --seed, compare judges the two folders as one run of the suite.`
}

// Validate implements kong's check.
func (c *compareCmd) Validate() error {
	_, err := c.load()
	return err
}

// Run judges the collections.
func (c *compareCmd) Run(ctx context.Context, out *output) error {
	col, dir, err := c.read()
	if err != nil {
		return unable(err)
	}
	if _, err := tshark.Version(); err != nil && c.RequireTshark {
		return unable(err)
	}
	known, err := c.load()
	if err != nil {
		return unable(err)
	}
	var pairings []conformance.Pairing
	for i := range col.Outcomes {
		pairings = append(pairings, col.Outcomes[i].Pairing)
	}
	known.noteIdle(out, pairings)
	j := judging{
		Report: c.Report, JSON: c.JSON, JUnit: c.JUnit, NoTshark: c.NoTshark, Verbose: c.Verbose,
		Profiles: known,
	}
	if err := j.prepare(); err != nil {
		return unable(err)
	}
	return j.judge(ctx, out, col, dir)
}

// read reads the collections and returns the folder of their captures.
func (c *compareCmd) read() (*conformance.Collection, string, error) {
	var parts []conformance.Part
	for _, dir := range c.Dirs {
		col, err := report.ReadCollection(filepath.Join(dir, collectionFile))
		if err != nil {
			return nil, "", notCollected(dir, err)
		}
		parts = append(parts, conformance.Part{Dir: dir, Collection: col})
	}
	if len(parts) == 1 {
		return parts[0].Collection, parts[0].Dir, nil
	}
	col, err := conformance.Join(referenceName, parts...)
	return col, "/", err // the captures have absolute names
}

// notCollected explains why a folder cannot be judged.
func notCollected(dir string, err error) error {
	_, statErr := os.Stat(filepath.Join(dir, "report.json"))
	if statErr == nil && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is a report, which has been judged: compare takes the folder "+
			"that run --collect writes", dir)
	}
	return fmt.Errorf("%s is not a folder that run --collect wrote: %w", dir, err)
}
