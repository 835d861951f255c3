//go:build !race

package main

import "testing"

// TestExecSignals: handlers have a stack during the library's calls, signals go to the program's
// threads, and the program's dispositions, masks and limits are unchanged.
func TestExecSignals(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "signals", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}

// TestExecAllSignals: the action of every signal is the program's, for faults too, and Go's runtime
// sends no signals.
func TestExecAllSignals(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "allsignals", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}
