//go:build !race

package main

import "testing"

// TestExecSignals: handlers have a stack in the middle of the library's calls, signals come to the
// program's threads, and its dispositions, masks and limits stay as they are.
func TestExecSignals(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "signals", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}

// TestExecAllSignals: the action of every signal is the program's, faults included, and Go's
// runtime sends none.
func TestExecAllSignals(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "allsignals", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}
