package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// output is where commands print: results to the output itself, and messages about them to errors.
// If writing fails, it stops the command, because nobody reads its output any more, and remembers
// the error. So a full disk does not count as success, and commands need not check. Goroutines may
// print concurrently.
type output struct {
	stdout io.Writer
	errors io.Writer
	stop   func()
	mu     sync.Mutex
	err    error // the first failed write to stdout; guarded by mu while there are goroutines
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.stdout.Write(b)
	if err != nil && o.err == nil {
		o.err = err
		o.stop()
	}
	return n, err
}

// terminal reports whether the output is a terminal.
func (o *output) terminal() bool {
	f, ok := o.stdout.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// json prints v as JSON.
func (o *output) json(v any) error {
	enc := json.NewEncoder(o)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows under headings, in columns.
func (o *output) table(headings []string, rows [][]string) error {
	tw := tabwriter.NewWriter(o, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}
