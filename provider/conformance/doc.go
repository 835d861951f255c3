// Package conformance runs the same scenarios over any pairing of providers, and reports each
// difference, with the reason if it is known.
//
// A [Scenario] is tried either by two programs with verbs (two [Side]s) or by a scripted
// peer against one program ([RawRun]). [Run] tries a [Suite] of them over [Pairing]s and
// returns an [Outcome] for each run: checks that held or did not, observations, and the
// name of a capture. A [Judge] looks at them later, and possibly on another machine: it
// decodes the captures, makes a [Witness] decode them too, compares each run with that of a
// reference pairing, and looks each difference up in the profiles of the stacks.
// The result is a [Report] with a [Verdict] for each run.
//
// The scenarios are in package scenarios; package wire reads captures. SCHEMA.md
// describes collections and reports as JSON.
package conformance
