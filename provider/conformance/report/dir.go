package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
)

// Names of the files that WriteDir writes besides captures.
const (
	jsonFile  = "report.json"
	junitFile = "junit.xml"
	htmlFile  = "index.html"
)

// WriteDir writes a report to a folder, which it makes if it is not there: index.html, report.json,
// junit.xml, and one pcapng file per scenario with the packets of all its runs, each run's on an
// interface that is named after its pairing. Captures come from captureDir, which may be the same
// folder; then they are replaced by the merged files. WriteDir removes captures that an earlier
// report in the folder named and this one does not. Notes that the page names are links to the
// checkout that contains the folder or, if none does, to the report's release on the web.
//
// The results' Capture and Interface are set to what was written. Where a capture
// cannot be read, all else is still written, and the error says so.
func WriteDir(dir string, rep *conformance.Report, captureDir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old := capturesNamedBy(filepath.Join(dir, jsonFile))
	written, mergeErr := mergeCaptures(dir, rep, captureDir)
	for _, name := range old {
		if !slices.Contains(written, name) {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
	return errors.Join(
		mergeErr,
		WriteJSON(filepath.Join(dir, jsonFile), rep),
		WriteJUnit(filepath.Join(dir, junitFile), rep),
		writeFile(filepath.Join(dir, htmlFile), func(w io.Writer) error {
			return HTML(w, rep, filesFor(dir, rep.Version))
		}),
	)
}

// capturesNamedBy returns the captures that a report.json names, none if there is no such file.
// Names with a folder do not count, because nothing outside of the report's folder may ever be
// removed.
func capturesNamedBy(name string) []string {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	var rep conformance.Report
	if json.Unmarshal(data, &rep) != nil || rep.Schema != conformance.ReportSchema {
		return nil
	}
	var names []string
	for i := range rep.Results {
		for _, c := range []string{rep.Results[i].Capture, rep.Results[i].CaptureAtPeer} {
			if strings.HasSuffix(c, ".pcapng") && filepath.Base(c) == c && !slices.Contains(names, c) {
				names = append(names, c)
			}
		}
	}
	return names
}

// mergeCaptures writes one file per scenario, and returns their names.
func mergeCaptures(dir string, rep *conformance.Report, captureDir string) (written []string, err error) {
	var order []string
	runs := make(map[string][]*conformance.Result)
	for i := range rep.Results {
		res := &rep.Results[i]
		if res.Capture == "" {
			continue
		}
		if runs[res.Scenario] == nil {
			order = append(order, res.Scenario)
		}
		runs[res.Scenario] = append(runs[res.Scenario], res)
	}
	var errs []error
	for _, slug := range order {
		name := strings.ReplaceAll(slug, "/", "-") + ".pcapng"
		if err := mergeRuns(filepath.Join(dir, name), slug, runs[slug], captureDir); err != nil {
			errs = append(errs, fmt.Errorf("captures of %s: %w", slug, err))
			continue
		}
		written = append(written, name)
		far, err := mergeAtPeer(dir, slug, rep.Peer, runs[slug], captureDir)
		if err != nil {
			errs = append(errs, fmt.Errorf("captures of %s at the other host: %w", slug, err))
		} else if far != "" {
			written = append(written, far)
		}
	}
	return written, errors.Join(errs...)
}

// mergeAtPeer merges what the other host captured of one scenario's runs into a file of its own.
// One file for both hosts would have each packet twice, in the order of two clocks. It returns the
// file's name, empty if nothing was captured.
func mergeAtPeer(dir, slug string, peer *conformance.PeerHost, runs []*conformance.Result,
	captureDir string) (string, error) {
	var parts []capture.Part
	name := strings.ReplaceAll(slug, "/", "-") + ".at-peer.pcapng"
	clock := "the times are those of the other host's clock"
	if peer != nil {
		clock += fmt.Sprintf(", which was %+v ahead, within %v", time.Duration(peer.ClockAhead),
			time.Duration(peer.ClockWithin))
	}
	for _, res := range runs {
		if res.CaptureAtPeer == "" {
			continue
		}
		pairing := res.Initiator + "->" + res.Responder
		file := filepath.Join(captureDir, res.CaptureAtPeer)
		parts = append(parts, capture.Part{File: file, Interface: pairing + " at the other host",
			Comment: fmt.Sprintf("%s, %s, port %d: %s", slug, pairing, res.Port, clock)})
		res.CaptureAtPeer = name
	}
	if len(parts) == 0 {
		return "", nil
	}
	err := capture.Merge(filepath.Join(dir, name), slug+": "+clock, parts...)
	for _, p := range parts {
		if err == nil && sameFile(filepath.Dir(p.File), dir) && filepath.Base(p.File) != name {
			err = os.Remove(p.File)
		}
	}
	for _, res := range runs {
		if err != nil {
			res.CaptureAtPeer = ""
		}
	}
	return name, err
}

// mergeRuns merges the captures of one scenario's runs and sets their Capture to the new file. If
// that fails, it empties their Capture.
func mergeRuns(name, slug string, runs []*conformance.Result, captureDir string) error {
	var parts []capture.Part
	for _, res := range runs {
		pairing := res.Initiator + "->" + res.Responder
		parts = append(parts, capture.Part{
			File: filepath.Join(captureDir, res.Capture), Interface: pairing,
			Comment: fmt.Sprintf("%s, %s, port %d: %s", slug, pairing, res.Port, res.Verdict),
		})
	}
	if err := capture.Merge(name, slug+": "+runs[0].Title, parts...); err != nil {
		for _, res := range runs {
			res.Capture, res.Interface = "", ""
		}
		return err
	}
	var errs []error
	for i, res := range runs {
		res.Capture, res.Interface = filepath.Base(name), parts[i].Interface
		if sameFile(filepath.Dir(parts[i].File), filepath.Dir(name)) && !sameFile(parts[i].File, name) {
			errs = append(errs, os.Remove(parts[i].File))
		}
	}
	return errors.Join(errs...)
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
