// Package report writes judged runs of the suite: JSON, JUnit, text for terminals and logs, and
// a page of HTML.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/govs-rdma/govs/provider/conformance"
)

// WriteJSON writes v as indented JSON to the file called name, in one step, so that no
// reader gets half of it.
func WriteJSON(name string, v any) error {
	return writeFile(name, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	})
}

// ReadCollection reads a collection that WriteJSON wrote. It refuses what no run of the suite
// writes: captures outside of the collection's folder, or a run twice, of which a report would show
// only one.
func ReadCollection(name string) (*conformance.Collection, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var c conformance.Collection
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s: not a collection: %w", name, err)
	}
	ran := make(map[string]bool)
	for i := range c.Outcomes {
		o := &c.Outcomes[i]
		run := o.Scenario + " " + o.Pairing.String()
		if ran[run] {
			return nil, fmt.Errorf("%s: not a collection: it has the run %s twice", name, run)
		}
		ran[run] = true
		for _, capture := range []string{o.Capture, o.CaptureAtPeer} {
			if capture != "" && filepath.Base(capture) != capture {
				return nil, fmt.Errorf("%s: not a collection: the capture %q of the run %s is not in "+
					"its folder", name, capture, run)
			}
		}
	}
	return &c, nil
}

// writeFile makes write fill a temporary file, and renames the file to name.
func writeFile(name string, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
