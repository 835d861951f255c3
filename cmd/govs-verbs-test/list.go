package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

type listCmd struct {
	Only string `help:"Glob patterns of scenarios, comma-separated; a group's name stands for all in it." placeholder:"GLOB"`
	JSON bool   `name:"json" help:"Print JSON."`
}

// listed is a scenario as list --json prints it.
type listed struct {
	Slug         string   `json:"scenario"`
	Title        string   `json:"title"`
	Kind         string   `json:"kind"`
	Level        string   `json:"level"`
	Requirements []string `json:"requirements,omitempty"`
	OnlyByName   string   `json:"only_by_name,omitempty"`
}

// Run lists.
func (c *listCmd) Run(out *output) error {
	suite := scenarios.Suite()
	chosen := suite.All()
	if c.Only != "" {
		var err error
		if chosen, err = suite.Select(c.Only); err != nil {
			return &environmentError{err}
		}
	}
	rows := make([]listed, 0, len(chosen))
	for _, sc := range chosen {
		rows = append(rows, listed{sc.Slug, sc.Title, sc.Kind(), string(sc.Level), sc.Requirements, sc.OnlyByName})
	}
	if c.JSON {
		return printJSON(out, rows)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SCENARIO\tKIND\tLEVEL\tWHAT IS RIGHT")
	for _, r := range rows {
		title := r.Title
		if r.OnlyByName != "" {
			title += " [only by name: " + r.OnlyByName + "]"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", r.Slug, r.Kind, r.Level, title)
	}
	return tw.Flush()
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
