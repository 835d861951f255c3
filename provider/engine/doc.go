// Package engine is the provider that needs no RDMA device. It implements iWARP (MPA, DDP and
// RDMAP: RFC 5044, 5041 and 5040, with the enhanced start-up of RFC 6581) in Go, over the system's
// TCP. Its peers can be any that speak iWARP; it is tested with Linux's siw.
//
//	dev, err := engine.New(nil).Open("")
//
// [New] takes [Options], whose zero values are the defaults. The device implements the interfaces
// of package provider, whose rules apply here. All methods may be called concurrently. Only methods
// that take a context wait, and a waiting method holds no OS thread.
//
// # Which goroutines move the data
//
// A post is sent on the poster's goroutine, as far as the socket takes it. A deferred post is sent
// by the goroutine that ends the deferral (QP.PostSend in package ibverbs). A poll of an empty CQ
// receives on the poller's goroutine. For the rest a device has progress goroutines, which are
// parked in the runtime's netpoller. They serve programs that wait for a completion event instead
// of polling, sockets that were full, and peers whose Writes and Reads need no action of the
// program. [Options].ProgressGoroutines sets how many there are: by default GOMAXPROCS, at most 16,
// or one where the network is not TCP. One of them serves a connection until it ends. Nothing is
// allocated between a post and its completion. A connection with nothing in flight holds no buffer
// and no goroutine.
//
// # Memory
//
// An MR's LKey and RKey are its STag: 32 bits from crypto/rand. An STag is not used again for the
// next 65536 deregistrations, so a key that a peer still has after the deregistration refers to
// nothing. MR.Addr is a random page-aligned number (0 with AccessZeroBased, the program's choice
// with RegMRIova), so a peer learns no address of the process from it. Every access is checked to
// the byte against region, protection domain and rights immediately before the copy. MR.Close is a
// barrier: after it returns, the engine neither reads nor writes any byte of the region. It waits
// only for copies in progress, never for a peer, so it may be called anywhere, even where
// completions are polled.
//
// For a region over an object (RegObject), Close waits until the object's running method returns.
// PD.RegObject of package ibverbs says what a failing method does to the connection.
//
// The MR holds the region's Go slice. The slice stays where it is, because Go does not move heap
// memory. The engine passes slices, never addresses.
//
// A Send with Invalidate ends remote use only of a region that was registered with
// provider.AccessRemoteInvalidate. For any other region the engine answers with a Terminate (RFC
// 5040 section 8.1.1). The MR itself remains: it can be used locally, and must be closed.
//
// # Windows and registration by work request
//
// Windows of type 1 are for all QPs of their PD. Windows of type 2 are for the peer of the QP that
// bound them: type 2B of InfiniBand, the only kind that the RDMA Consortium defines for iWARP. As
// InfiniBand and the Consortium require, a type 2 window must be invalidated before it is bound
// again, and a bind of length zero does not unbind it. The window ends with its QP. WRRegMR
// registers regions of AllocFastRegMR, and WRLocalInv invalidates them. Both kinds of STag have a
// fixed index, and a key that every bind or registration must change.
//
// Such work takes its turn in the send queue and sends nothing. It waits until all earlier work has
// been handed to TCP, and until the uses in progress of the key that it ends are over. It waits for
// Reads only with a fence: a Read whose sink is invalidated before its response has come ends the
// connection. It does not wait for a peer that doesn't read, because the engine has copied the
// bytes that such a peer has not taken. If the work fails, it completes with WCMWBindErr and ends
// the connection with a Terminate (0/0/0xff). WRLocalInv of a key that is already invalid succeeds,
// because the peer's Send with Invalidate may have been faster. A region with a window bound to it
// can't be closed, re-registered or invalidated: the result is EBUSY, WCMWBindErr or a Terminate.
//
// A region over an object has no windows, because invalidating a window would have to wait for the
// object. It can't share a work request with a region of AllocFastRegMR either.
//
// # Shared receive queues
//
// An SRQ serves QPs of any PD of the device; its receives name regions of the SRQ's own PD, as with
// siw. A QP takes a receive when the first segment of a Send has come, which frees its place in the
// SRQ, and keeps it until the message ends. If a Send finds the SRQ empty, its connection ends with
// the Terminate for an empty receive queue (RFC 5041 section 7.1), because iWARP cannot make the
// peer wait. The limit event is there to prevent that. Unlike siw, the engine has SRQ.Query,
// SRQ.Modify with SRQAttrMaxWR, and EventQPLastWQEReached. It raises this event when a QP in ERR
// takes no more from its SRQ. It never raises EventSRQErr, because an SRQ cannot fail.
//
// # Placement
//
// The engine places an FPDU when all of it has come and its CRC is right (RFC 5044 section 4.4), so
// no byte of a corrupt FPDU reaches registered memory. That costs a copy of the payload. siw places
// payload while it arrives and verifies the CRC afterwards.
//
// # The device
//
// There is one device, govs0, with one port. Its MAC address, from which its GID and GUID are made,
// is invented (02:67:6f:76:73:00: "govs" after the bit for locally administered addresses). It is
// the same on every host, because there is no interface to take one from and iWARP addresses peers
// by IP. Every limit that Device.Query returns is enforced. Limits are siw's where siw has one, so
// a program that fits one fits the other. The exceptions are scatter/gather entries and inline
// data, of which the engine takes more.
//
// Each Open returns a separate device, whose objects other devices reject.
//
// # Security
//
// The engine checks everything that a peer sends before using it. A peer can end only its own
// connection, and can make the engine hold only bounded resources. docs/bounds.md describes the
// bounds for each state, and for each attack of RFC 5042. iWARP itself has neither authentication
// nor encryption: CRC32C is no message authentication code, and STags travel in the clear. An
// attacker who can write to the path can write to the granted memory. RFC 5042 asks for IPsec;
// WireGuard also works.
//
// The engine panics when one of its own invariants is broken. It recovers from no panic, so that
// the process does not continue with memory in an unknown state. Nothing that a peer sends may
// cause a panic; the fuzz tests search for such input.
//
// # Limitations
//
//   - RC only, over TCP only.
//   - Immediate data has the 32 bits of libibverbs, where RFC 7306 has 64: they are the first 32.
//     The others are sent as zero and ignored when received. Immediate Data that follows a Write is
//     reported as the Write's, as in WRRDMAWriteWithImm, even if it was posted as a WRSendWithImm.
//   - Rights of a region are for all QPs of its protection domain. If peers distrust each other,
//     use windows of type 2, or one domain per peer.
//   - Atomic operations are the CPU's, on words that are aligned in memory, whatever the region's
//     addresses are. Bytes that a Write or Send places are not atomic with them. An operation is
//     performed when its request arrives; its response may wait for the responses of earlier Reads,
//     whose bytes may be read later than the operation. Neither the word nor the sink can be in the
//     region of an object.
//   - AccessRemoteAtomic without Options.Extensions is accepted but not granted, as with siw.
//     Unlike siw, AccessRemoteRead is enforced.
//   - A CQ that overflows loses the completions that do not fit, and raises EventCQErr once until
//     it is polled. Size it for all that its QPs can have posted.
//   - One completion vector; no CQ moderation.
//   - TCP segments consist of whole FPDUs (RFC 5044 section 5.1) as far as a socket lets its user
//     decide. TCP cuts elsewhere where the peer's window ends, and while segments carry selective
//     acknowledgements. For a peer that fails at some of these cuts (siw,
//     kernel-notes/siw-crc-split.md), records with MSG_EOR keep TCP from making them.
//   - Device.AsyncEvent keeps 256 events; it counts later ones, and returns their number.
package engine

// Words of this package's code that are not the field's:
//
//   - receive side, transmit side: the halves of a stream, each with a state and a lock (receiver,
//     sender).
//   - turn: the work of one stream in one direction before other streams are served. Budget: how
//     much it may move in a turn, in bytes (tx_transmit.go).
//   - event loop, or loop: a progress goroutine with the poller and the streams that it serves
//     (device.go).
//   - batch: the FPDUs of one vectored write (internal/frames). Chunk: a pooled buffer of 64 KiB.
//   - record: bytes that TCP must not put into a segment with others (MSG_EOR).
//   - part: the beginning of an FPDU that was moved out of a receive context (rxPart).
//   - object: an io.ReaderAt that a region is over, instead of memory.
//   - gate: counts the uses of something and waits for their end (internal/rundown).
//   - over: a stream is over when it has a reason to end. Settled: its QP is in ERR and flushed.
//     phase: how far the end is (stream.go).
//   - linger: what a connection does after that, until its socket is closed (linger.go).
//   - orphan: a call of an object whose stream has ended.
