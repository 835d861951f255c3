package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

type listCmd struct {
	Only string `help:"List only these: glob patterns of scenarios, comma-separated; an area's name stands for all in it. Default: all." placeholder:"GLOB"`
	JSON bool   `name:"json" help:"Print JSON, with the requirements that each scenario shows, and what those of the scripted peer need of the other side: listener, accept, receive (run --target-offers), connect or program (an agent)."`
}

// scenarioRow is a scenario as list --json prints it.
type scenarioRow struct {
	Slug         string   `json:"scenario"`
	Title        string   `json:"title"`
	Kind         string   `json:"kind"`
	Level        string   `json:"level"`
	Needs        string   `json:"needs,omitempty"` // from the other side, if the kind is raw
	Requirements []string `json:"requirements,omitempty"`
	OnlyByName   string   `json:"only_by_name,omitempty"`
}

// Validate implements kong's check.
func (c *listCmd) Validate(k *kong.Context) error { return checkOnly(k, c.Only) }

// Run lists.
func (c *listCmd) Run(out *output) error {
	suite := scenarios.Suite()
	chosen := suite.All()
	if c.Only != "" {
		var err error
		if chosen, err = suite.Select(c.Only); err != nil {
			return unable(err)
		}
	}
	rows := make([]scenarioRow, 0, len(chosen))
	for _, sc := range chosen {
		rows = append(rows, scenarioRow{sc.Slug, sc.Title, sc.Kind(), string(sc.Level),
			string(sc.Needs), sc.Requirements, sc.OnlyByName})
	}
	if c.JSON {
		return out.json(rows)
	}
	var cells [][]string
	byName := 0
	for _, r := range rows {
		title := r.Title
		if r.OnlyByName != "" {
			byName++
			title += " [only by name: " + r.OnlyByName + "]"
		}
		cells = append(cells, []string{r.Slug, r.Kind, r.Level, title})
	}
	if err := out.table([]string{"SCENARIO", "KIND", "LEVEL", "WHAT IS RIGHT"}, cells); err != nil {
		return err
	}
	fmt.Fprintf(out.errors, "%d scenarios, of which run without --only leaves out %d\n", len(rows), byName)
	return nil
}
