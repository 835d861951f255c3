package conformance

import (
	"path"
	"strconv"
	"strings"
)

// A ProfileEntry is a known divergence: something that one provider does
// differently from what the scenario expects or the other provider does.
// Package profile reads them from files, and checks them.
type ProfileEntry struct {
	// ID names the fact, stable, kebab-case: "siw-terminate-layout". A fact that appears
	// under several keys has an entry for each.
	ID       string
	Scenario string // slug or path.Match pattern

	// Provider is the one that diverges, and As its part in the run: RoleInitiator,
	// RoleResponder, or empty for either.
	Provider string
	As       Role

	// Key is a path.Match pattern on the divergence's key. It must not be "*".
	Key string

	Reason  string // why, in one or two sentences
	Kernels string // kernel versions on which it was seen, or found in the source

	// Fixed names the first release of each series of kernels that is free of
	// it: "6.1.178", "6.12.96". Nil means that none is known to be.
	Fixed []string

	Evidence string // the note: "kernel-notes/siw-terminate-layout.md"

	// Requirements are ids of the catalogue that the provider does not keep here.
	Requirements []string

	// Sometimes says that the divergence depends on timing, and its absence is
	// no XPASS.
	Sometimes bool

	// Variants are the module variants (default, crc, p2p) it concerns; nil
	// means all.
	Variants []string
}

// applies reports whether the entry is about this run of the collection,
// whatever diverged in it.
func (e *ProfileEntry) applies(slug string, p Pairing, c *Collection) bool {
	if ok, err := path.Match(e.Scenario, slug); err != nil || !ok {
		return false
	}
	return e.As != RoleResponder && e.concerns(p.Initiator, c) ||
		e.As != RoleInitiator && e.concerns(p.Responder, c)
}

// concerns reports whether the entry is about the provider that a pairing names.
func (e *ProfileEntry) concerns(name string, c *Collection) bool {
	if stack, is := OnTarget(name); is {
		return stack == e.Provider // its version and variant are not known
	}
	provider, far := OnPeer(name)
	siw, kernel := c.Siw, c.KernelVersion
	if far && c.Peer != nil {
		siw, kernel = c.Peer.Siw, c.Peer.KernelVersion
	}
	return provider == e.Provider && (e.Variants == nil || contains(e.Variants, siw)) &&
		e.age(kernel) != after
}

// open reports whether the pairing has a provider that the entry is about, and for which it is not
// known whether the divergence has ended.
func (e *ProfileEntry) open(p Pairing, c *Collection) bool {
	for _, name := range []string{p.Initiator, p.Responder} {
		if stack, is := OnTarget(name); is && stack == e.Provider {
			return true
		}
		provider, far := OnPeer(name)
		kernel := c.KernelVersion
		if far && c.Peer != nil {
			kernel = c.Peer.KernelVersion
		}
		if provider == e.Provider && e.age(kernel) == unknown {
			return true
		}
	}
	return false
}

// age compares a kernel with the releases that ended the divergence. The answer is open
// in a series that Fixed does not name, and for a kernel without a version.
func (e *ProfileEntry) age(kernel string) age {
	if e.Fixed == nil {
		return before
	}
	at, ok := ParseKernel(kernel)
	if !ok {
		return unknown
	}
	for _, f := range e.Fixed {
		if end, ok := ParseKernel(f); ok && at[0] == end[0] && at[1] == end[1] {
			if at[2] < end[2] {
				return before
			}
			return after
		}
	}
	return unknown
}

type age int

const (
	before age = iota
	after
	unknown
)

// ParseKernel parses a kernel's release, such as "6.1.178"; ok is false if s is not one.
func ParseKernel(s string) (v [3]int, ok bool) {
	parts := strings.Split(s, ".")
	if len(parts) != len(v) {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// The checks that the runner and the judge make of each run, whatever its scenario.
const (
	checkPanics   = "nothing panics"
	checkEnds     = "the run ends by itself"
	checkChecks   = "the scenario checks something"
	checkWritten  = "the capture can be written"
	checkReadable = "our decoder can read the capture"
)

// covers reports whether the entry explains a divergence of a run that it
// applies to. Some checks guard the suite itself, such as the check that the run
// ends by itself. No pattern explains their failure; Key has to be the exact key.
func (e *ProfileEntry) covers(key string) bool {
	switch strings.TrimPrefix(key, "check:") {
	case checkPanics, checkEnds, checkChecks, checkWritten, checkReadable:
		return e.Key == key
	}
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
