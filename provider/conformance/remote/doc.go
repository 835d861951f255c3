// Package remote is the contract of package provider over a control connection. It makes the
// devices of an agent, which runs on another host, usable as if they were here. The conformance
// suite uses it to run between two hosts: scenarios drive both sides in one program, the far side's
// calls go to the agent, and only the iWARP under test crosses the data network.
//
// # Calls
//
// Each call is a request with a number, and its answer has the same number. Up to 4096 requests may
// be outstanding, so a call that waits does not delay another. A further call returns EAGAIN, and a
// call whose arguments or answer have more than 4 MiB returns EMSGSIZE. When the context of a call
// ends, the agent is asked to cancel the call, but its answer still counts. So an event that
// arrived during the cancellation is not lost. Errors keep their types, texts and errnos
// ([errors.Is] and [errors.As] work).
//
// # Memory
//
// The agent mirrors each region that the program registers, at the same offset in a page, and its
// device uses this copy. Both ends also keep a third copy with the bytes that they agreed on last,
// and exchange only the bytes that differ from it. So neither end undoes what the other has changed
// in the meantime.
//
// The program's changes go with each request except queries, polls and waits. If the provider of
// the near side is wrapped by [Session.Beside], they also go before each of its posts. The device's
// changes come with the answer to each call after which a program reads memory: completions,
// events, and the end of regions, queue pairs and connections. [Device.Push] and [Device.Pull] are
// for programs that have another reason.
//
// On each side of a copy is a guard page that must not change; [Device.Intact] reports whether one
// has.
//
// # What it lacks
//
// Regions over an io.ReaderAt, completion sinks and sources of receives are an
// [*provider.UnsupportedError], because these are objects of the program. So are counters (Stats).
// A test cannot register memory that does not exist to see the error, because reading it ends the
// program.
//
// # Security
//
// Both ends prove that they know a secret, and every later message has an authentication code.
// Nothing is encrypted. A client that knows the secret can use the agent's devices, as the user
// that the agent runs as, and get the packets of any TCP port from [Agent.Capture]. It can do
// nothing else.
package remote
