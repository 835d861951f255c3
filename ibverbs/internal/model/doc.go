// Package model has property tests: random legal sequences of verbs, and some
// illegal ones among them, run between two devices and beside a small model that
// says what has to come of them. It has no other code.
//
// A plan is a list of numbers that rapid draws, each a step. The run makes of each
// what is possible at the moment: registers memory, posts lists of work requests,
// polls, connects, ends connections in all ways there are, breaks rules. The model
// follows with two pieces of memory, the windows and registrations over them, and the
// queues; it knows which bytes work that is posted may still read or write, and which
// keys it may still change, so that the run never asks for what has no definite outcome,
// except where a connection ends.
//
// The same property runs on the engine over the simulated network, on the engine
// over TCP, and in the guest between the engine and siw. What siw does otherwise is
// in the functions that ask whether an end is on the kernel.
package model
