package conformance

import (
	"fmt"
	"path"
	"strings"
)

// A LedgerEntry is a known divergence: something that one provider does
// differently from what the scenario expects or the other provider does.
type LedgerEntry struct {
	ID       string // stable, kebab-case: "siw-terminate-bit-layout"
	Scenario string // slug or path.Match pattern

	// Provider is the one that diverges, and As its part in the run: RoleInitiator,
	// RoleResponder, or empty for either.
	Provider string
	As       Role

	// Key is a path.Match pattern on the divergence's key. It must not be "*".
	Key string

	Reason   string // why, in one or two sentences
	Kernels  string // the kernel versions it was seen on, or read in the source of
	Evidence string // the note: "kernel-notes/terminate-layout.md"

	// Sometimes says that the divergence depends on timing, and its absence is
	// no XPASS.
	Sometimes bool

	// Variants are the module variants (default, crc, p2p) it concerns; nil
	// means all.
	Variants []string
}

// Ledger is the list of known divergences.
type Ledger []LedgerEntry

// Check returns an error about the first entry that is incomplete or that
// names no scenario of the suite.
func (l Ledger) Check(s *Suite) error {
	ids := make(map[string]bool)
	for _, e := range l {
		switch {
		case e.ID == "" || ids[e.ID]:
			return fmt.Errorf("ledger: entry id %q is empty or used twice", e.ID)
		case strings.Trim(e.Key, "*") == "":
			return fmt.Errorf("ledger: %s: key %q would cover everything", e.ID, e.Key)
		case e.Reason == "" || e.Kernels == "" || e.Evidence == "" || e.Provider == "":
			return fmt.Errorf("ledger: %s: reason, kernels, evidence and provider have to be said", e.ID)
		}
		if _, err := path.Match(e.Key, ""); err != nil {
			return fmt.Errorf("ledger: %s: key pattern %q: %w", e.ID, e.Key, err)
		}
		ids[e.ID] = true
		found := false
		for _, sc := range s.scenarios {
			ok, err := path.Match(e.Scenario, sc.Slug)
			if err != nil {
				return fmt.Errorf("ledger: %s: scenario pattern: %w", e.ID, err)
			}
			found = found || ok
		}
		if !found {
			return fmt.Errorf("ledger: %s: no scenario matches %q", e.ID, e.Scenario)
		}
	}
	return nil
}

// applies reports whether the entry is about this run, whatever diverged in it.
func (e *LedgerEntry) applies(slug string, p Pairing, variant string) bool {
	if ok, err := path.Match(e.Scenario, slug); err != nil || !ok {
		return false
	}
	if e.Variants != nil && !contains(e.Variants, variant) {
		return false
	}
	switch e.As {
	case RoleInitiator:
		return p.Initiator == e.Provider
	case RoleResponder:
		return p.Responder == e.Provider
	}
	return p.Has(e.Provider)
}

// covers reports whether the entry explains a divergence of a run that it
// applies to.
func (e *LedgerEntry) covers(key string) bool {
	ok, err := path.Match(e.Key, key)
	return err == nil && ok
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
