package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
)

// perfFiles are the flags of commands that write a report to files.
type perfFiles struct {
	JSON     string `name:"json" help:"Write all that was measured to this file." placeholder:"FILE"`
	SVG      string `name:"svg" help:"Write the plots into this folder." placeholder:"DIR"`
	Markdown string `help:"Write the table to this file." placeholder:"FILE"`
}

// writtenReport is a report that can be written in each of these forms. encoding/json writes the
// first.
type writtenReport interface {
	WriteSVGs(dir string) error
	Markdown(w io.Writer) error
}

// write writes the files that are asked for.
func (f *perfFiles) write(rep writtenReport) error {
	if f.JSON != "" {
		err := writeFile(f.JSON, func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", " ")
			enc.SetEscapeHTML(false)
			return enc.Encode(rep)
		})
		if err != nil {
			return err
		}
	}
	if f.Markdown != "" {
		if err := writeFile(f.Markdown, rep.Markdown); err != nil {
			return err
		}
	}
	if f.SVG != "" {
		return rep.WriteSVGs(f.SVG)
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
