// Package model has property tests. Random sequences of verbs, legal and some illegal, run between
// two devices, and a small model predicts their results. The package has no other code.
//
// A plan is a list of numbers that rapid draws, each a step. For each step the run does what is
// possible at the moment: it registers memory, posts lists of work requests, polls, connects, ends
// connections in every possible way, breaks rules. The model covers two pieces of memory, the
// windows and registrations over them, and the queues. It knows which bytes posted work may still
// read or write, and which keys it may still change. So the run requests nothing without a definite
// outcome, except when a connection ends.
//
// The same property runs on the engine over the simulated network, on the engine over TCP, and in
// the guest between the engine and siw. siw's differences are in the functions that check whether
// an end is on the kernel.
package model
