// Package remote is the contract of package provider over a control connection: the devices of an
// agent, which runs on another host, are used as if they were here. The conformance suite uses it
// to run between two hosts. Scenarios drive both sides in one program; what they do at the far
// side goes to the agent, and only the iWARP under test crosses the data network.
//
// # Calls
//
// Each call is a request with a number, its answer has the same number, and any number of them are
// under way at once, so that a call that waits delays no other. When the context of a call ends,
// the agent is asked to cancel it, and what it answers counts: an event that came in the meantime
// is not lost. Errors keep their types, texts and errnos ([errors.Is] and [errors.As] work).
//
// # Memory
//
// Memory that the program registers has a copy at the agent, at the same offset in a page, which
// is what the agent's device uses. Both ends keep a third copy, of what they agreed on last, and
// exchange the bytes that differ from it, no others: so neither end undoes what the other has
// changed meanwhile. What the program has changed goes with each request except queries, polls and
// waits, and, if the provider of the near side is wrapped by [Session.Beside], before each of its
// posts. What the device has changed comes with the answer of each call after which a program
// looks: completions, events, and the end of regions, queue pairs and connections.
// [Device.Push] and [Device.Pull] are for programs that have another reason.
//
// On either side of a copy is a page of bytes that must not change; [Device.Intact] says if one
// has.
//
// # What it lacks
//
// Regions over an io.ReaderAt, completion sinks and sources of receives, which are objects of the
// program, are an [*provider.UnsupportedError]. So are counters (Stats). Memory that is not there
// can't be registered to see the error: reading it ends the program.
//
// # Security
//
// Both ends prove that they know a secret, and every message after that has a code of
// authentication. Nothing is encrypted. Whoever knows the secret can use the agent's devices, as
// the user that the agent runs as, and get the packets of any TCP port from [Agent.Capture], and
// nothing else.
package remote
