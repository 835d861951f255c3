package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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

// check finds files that can't be written before there is something to write.
func (f *perfFiles) check() error {
	for _, file := range []struct{ option, name string }{{"json", f.JSON}, {"markdown", f.Markdown}} {
		if file.name == "" {
			continue
		}
		if err := unix.Access(filepath.Dir(file.name), unix.W_OK); err != nil {
			return fmt.Errorf("--%s %s: its folder can't be written to: %w", file.option, file.name, err)
		}
		if info, err := os.Stat(file.name); err == nil && info.IsDir() {
			return fmt.Errorf("--%s %s: is a folder: give it a file", file.option, file.name)
		}
	}
	return nil
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
