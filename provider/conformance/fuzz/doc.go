// Package fuzz plays random sequences of frames to providers and compares what they do.
//
// Generate makes a sequence of a seed and an index: valid start-up and messages, in which it then
// changes one thing, and divides the stream into writes. A Target plays it: a scripted peer sends
// the bytes, and the target's program has memory, receives and Reads. The Outcome is what the peer
// got back, how work completed, and what is in memory. Compare lists the differences of two
// outcomes, and Explain finds the note of kernel-notes/ for each. Minimise makes a sequence with an
// unexplained difference smaller.
//
// Only Target does I/O.
package fuzz
