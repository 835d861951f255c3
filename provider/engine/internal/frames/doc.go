// Package frames lays out FPDUs: the headers and the payload of messages become the vector of one
// write to a socket, a [Batch]. It decides what is copied and what is sent from where it lies,
// calculates the CRCs, and divides the FPDUs into records, each of which begins a TCP segment. It
// owns the vector, the copies and the uses of regions. It chooses no message and writes to no
// socket: both are for package engine.
//
//	           engine: next WQE, next response
//	                    | headers, payload, SGEs
//	Format --> Prepare, Add..., Room                     memory.Domain
//	                    |                   finds, uses        |
//	                  Batch <----------------------------------+
//	                    | Pending, Records       ends uses: Release, CopyPending
//	             engine: writes to the socket
//	                    | bytes taken, or none
//	     Advance, Undo, CopyPending, Hold, Remainder
//
// # A batch's life
//
// An idle Batch is lent to a stream that has something to send. Prepare gives it the connection's
// [Format]. Until Room reports false, the engine adds FPDUs: AddShort for runs of short messages,
// AddLong for many FPDUs of a message in one region, AddResolved for any other message from memory,
// AddResponse for RDMA Read Responses, and Add for everything else. The engine writes Pending, and
// calls Advance, which returns the Sends and Writes that are over.
//
// A socket that takes no more ends the fill. Undo removes those FPDUs that can be built again, and
// CopyPending copies the others, because no region may be in use while a stream waits for its peer.
// If the socket stays full, Hold moves what is left into a [Held] of its size, and the batch goes
// to another stream. At the end of the stream Remainder is what must still be sent.
//
// Whoever fills a batch calls Reset before the batch goes back to the free list.
//
// # Another LLP
//
// The engine passes DDP headers and payload, and learns how many segments fit by Format.MULPDU
// alone. What belongs to MPA is in this package: lengths, pad, CRC, Markers and records. Over
// SCTP a DDP segment is a message (RFC 5043), without any of them, so it would be another Format.
//
// # Locks
//
// The package has no lock. The txMu of the stream that a Batch is lent to guards the Batch, its
// Held and the stream's Format. Only the free list of chunks takes a lock, FreeList.
package frames
