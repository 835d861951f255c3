// Package frames lays out FPDUs: the headers and the payload of messages become the vector of one
// write to a socket, a [Batch]. It decides which bytes are copied and which are sent from where
// they lie, calculates the CRCs, and divides the FPDUs into records, each of which begins a TCP
// segment. It owns the vector, the copies and the uses of regions. It neither chooses messages nor
// writes to a socket; package engine does both.
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
// [Format]. The engine adds FPDUs for as long as Room reports true, which each Add requires, and
// calls BeginMessage before each message that Undo may take back or that Resolve finds in memory:
//
//   - AddShort: a run of short messages, which EndRun ends
//   - AddLong: many FPDUs of a resolved message in one region
//   - AddResolved: one FPDU of any other resolved message
//   - AddResponse: FPDUs of an RDMA Read Response
//   - Add: everything else
//
// The engine writes Pending. Then it calls Advance, which returns the WQEs that are over.
//
// If the socket takes no more, Undo removes those FPDUs that can be built again, and CopyPending
// copies the others, because no region may be in use while a stream waits for its peer. If the
// socket stays full, Hold returns a copy of what is left, as a [Held] of its size. Then the batch
// goes to another stream, and Restore fills one from the Held later. At the end of a stream
// Remainder returns what must still be sent.
//
// The engine calls Reset before it returns a batch to the free list.
//
// # Another LLP
//
// The engine passes DDP headers and payload. Format.MULPDU says how long a segment may be. What
// belongs to MPA on the transmit side is in this package: lengths, pad, CRC, Markers and records.
// Over SCTP (RFC 5043) a DDP segment is a message without any of these, so SCTP would have another
// Format.
//
// # Locks
//
// The package has no lock. A Batch, its Held and the stream's Format are guarded by the tx.mu of
// the stream to which the Batch is lent. Only the free list of chunks takes a lock, FreeList.
package frames
