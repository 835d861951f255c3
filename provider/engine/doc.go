// Package engine is the provider that needs no RDMA device: iWARP (MPA, DDP and
// RDMAP, RFC 5044, 5041 and 5040, with the enhanced start-up of RFC 6581)
// written in Go over the TCP of the system. Its peers are any that speak iWARP; it
// is tested with Linux's siw.
//
//	dev, err := engine.New(nil).Open("")
//
// [New] takes [Options]; their zero values are the defaults. The device has the interfaces of
// package provider, whose rules hold here: all methods may be called concurrently, only those that
// take a context wait, and a method that waits holds no OS thread.
//
// # Which goroutines move the data
//
// A QP that is posted to sends on the poster's goroutine, as far as the socket takes it, or,
// where a post waits for others, on that of whoever ends the wait (QP.PostSend in package
// ibverbs). A CQ that is polled and empty receives on the poller's goroutine. A
// device has goroutines of its own, parked in the runtime's netpoller, for
// the rest: applications that wait for a completion event instead of polling,
// sockets that were full, and peers whose Writes and Reads the application
// takes no part in. There are as many as GOMAXPROCS, but at most 16 and one where the network is
// not TCP, or [Options].ProgressGoroutines, and each connection is served by one of them until it
// ends. Nothing is allocated from post to completion, and a connection on which nothing is in
// flight holds no buffer and no goroutine.
//
// # Memory
//
// LKey and RKey of an MR are its STag: 32 bits from crypto/rand, not given again
// for the next 65536 deregistrations, so that what a peer still knows names
// nothing. MR.Addr is a random page-aligned number (0 with AccessZeroBased, the
// program's choice with RegMRIova); a peer learns no address of the process from it. Every
// access is checked to the byte against region, protection domain and rights immediately before
// the copy, and MR.Close is a barrier: when it has returned, no byte of the
// region is read or written on behalf of anybody. It waits for copies in
// progress only, never for a peer, so that it may be called anywhere, also where
// completions are polled.
//
// A region over an object (RegObject) has its Close wait for the object's method that
// is under way. PD.RegObject of package ibverbs says what a failing method does to the connection.
//
// The region's Go slice is held by the MR and stays where it is, as Go does not
// move what is on its heap; the engine passes slices, never addresses.
//
// A Send with Invalidate ends the remote use of a region that was registered
// with provider.AccessRemoteInvalidate, and only of such a region; another is
// answered with a Terminate (RFC 5040 section 8.1.1). The MR stays, for local
// use and to be closed.
//
// # Windows and registration by work request
//
// Windows are of type 1, for all QPs of their PD, and of type 2, for the peer of the QP
// that bound them: 2B in InfiniBand's words, the only kind that the RDMA Consortium has
// for iWARP. A window of type 2 has to be invalidated before it is bound again, as
// InfiniBand and the Consortium want it, and is not unbound by a length of zero; it ends
// with its QP. Regions of AllocFastRegMR are registered by WRRegMR and ended by
// WRLocalInv. The STags of both have an index that stays, and a key that every bind or
// registration has to change.
//
// Such work takes its turn in the send queue and sends nothing. It waits until all earlier work has
// been handed to TCP, and until the uses in progress of the key that it ends are over. It waits for
// Reads only with a fence: a Read whose sink is invalidated before its response has come ends the
// connection. It does not wait for a peer that doesn't read, because what such a peer has not taken
// was copied. Work of this kind that fails has the status WCMWBindErr, and ends the connection with
// a Terminate (0/0/0xff). WRLocalInv on what is invalid already is no failure, as the peer's Send
// with Invalidate may have been faster. A region with a window bound to it can't be closed,
// re-registered or invalidated: EBUSY, WCMWBindErr, or a Terminate.
//
// A region over an object has no windows, because the end of one would have to wait for the
// object; nor can it be in one work request with a region of AllocFastRegMR.
//
// # Shared receive queues
//
// QPs of any PD of the device may be made with an SRQ; its receives name regions of the SRQ's own
// PD, as with siw. A QP takes a receive when the first segment of a Send has come, which frees its
// place in the SRQ, and keeps it until the message ends. A Send that finds none ends its connection
// with the Terminate for an empty receive queue (RFC 5041 section 7.1): iWARP has nothing to make
// the peer wait with. The limit event is there to prevent it. Unlike siw, the engine has SRQ.Query,
// SRQ.Modify with SRQAttrMaxWR, and EventQPLastWQEReached, which is raised once a QP in ERR takes
// no more from its SRQ. EventSRQErr is never raised: there is nothing to fail.
//
// # Placement
//
// An FPDU is placed when all of it has come and its CRC was found right (RFC 5044 section 4.4), so
// nothing of a corrupt FPDU reaches registered memory. That costs a copy of the payload. siw places
// payload while it arrives, and verifies the CRC after that.
//
// # The device
//
// There is one device, govs0, with one port. Its MAC address, and so its GID and
// its GUID, are made up (02:67:6f:76:73:00, "govs" with the bit for locally
// administered addresses) and the same on every host: there is no interface
// underneath to take them from, and iWARP addresses peers by IP. Every limit
// that Device.Query returns is enforced; they are siw's where siw has one, so that
// what fits one fits the other, but for scatter/gather entries and inline data,
// of which the engine takes more.
//
// Each Open gives a device of its own, whose objects are foreign to others.
//
// # Security
//
// What a peer sends is checked before it is used, a peer can end its own
// connection only, and what it can make the engine hold is bounded; docs/bounds.md
// says how, state by state and attack by attack of RFC 5042. But
// iWARP has no authentication or encryption of its own: CRC32C is no MAC, and
// STags travel in the clear. An attacker that can write to the path can write to
// the granted memory. RFC 5042 asks for IPsec; WireGuard serves as well.
//
// The engine panics where an invariant of its own is broken, and recovers from
// no panic, so that the process does not go on with memory in an unknown state.
// Nothing that a peer sends may cause a panic; the fuzz tests look for such input.
//
// # Limitations
//
//   - RC only, over TCP only.
//   - Immediate data has the 32 bits of libibverbs, where RFC 7306 has 64: they are
//     the first of these, the others are zero when sent and ignored when received.
//     Immediate Data that follows a Write is reported as the Write's, as in
//     WRRDMAWriteWithImm, even if it was posted as a WRSendWithImm.
//   - Rights of a region are for all QPs of its protection domain. Use windows of type
//     2, or one domain per peer, where peers distrust each other.
//   - Atomic operations are the CPU's, on words that are aligned in memory, whatever
//     the region's addresses are. A peer's bytes that a Write or Send places are not
//     atomic with them. An operation is performed when its request arrives; the
//     response may wait for those of earlier Reads, whose bytes may be of later.
//     Neither the word nor the sink can be in the region of an object.
//   - AccessRemoteAtomic without Options.Extensions is accepted
//     and not granted, as with siw. Unlike siw, AccessRemoteRead is enforced.
//   - A CQ that overflows loses the completions that do not fit, and says so
//     once with EventCQErr until it is polled. Size it for what its QPs can have
//     posted.
//   - One completion vector; no CQ moderation.
//   - TCP segments consist of whole FPDUs (RFC 5044 section 5.1) as far as a
//     socket lets its user decide. Where the peer's window ends, and while
//     segments carry selective acknowledgements, TCP cuts elsewhere; for a peer that
//     fails at some of these cuts (siw, kernel-notes/siw-crc-split.md), records with
//     MSG_EOR keep TCP from making them.
//   - Device.AsyncEvent keeps 256 events; later ones are counted, and their number is
//     reported.
package engine

// Words of this package's code that are not the field's:
//
//   - receive side, transmit side: the halves of a stream, each with a state and a lock.
//   - turn: what one stream moves in one direction before others have theirs (stream_turn.go).
//   - lane: a progress goroutine with the poller and the streams that it serves (lanes.go).
//   - look: one attempt of a poller to receive on a stream that it reads directly.
//   - batch: the FPDUs of one vectored write (internal/frames). Chunk: a pooled buffer of 64 KiB.
//   - record: bytes that TCP must not put into a segment with others (MSG_EOR).
//   - part: the beginning of an FPDU that was moved out of a receive context (rxPart).
//   - object: an io.ReaderAt that a region is over, instead of memory.
//   - gate: counts the uses of something and waits for their end (internal/rundown).
//   - over: said of a stream that has a reason to end. Settled: its QP is in ERR and flushed.
//     phase: how far the end is (stream_phase.go).
//   - linger: what a connection does after that, until its socket is closed (stream_linger.go).
//   - orphan: a call of an object whose stream has ended.
