// Package memory owns the registered memory of a device of the engine: regions, windows, and the
// table that finds both by STag. It checks each access to the byte, and ends each registration
// with a barrier. It sends and receives nothing, and copies only for atomic operations and objects.
//
//	RegMR, AllocMW      SGEs of work requests      STag and TO of the peer
//	      |                       |                          |
//	   Domain                   Table                      Peer
//	      | registers             | finds by STag            | checks, invalidates
//	      +---------> Region, FastRegion, Window <-----------+
//
// A device has one [Table]. A PD contains a [Domain], and a QP contains a [Peer]: the other end of
// its connection, which names memory by STag and tagged offset (TO). A work request names memory by
// SGEs, which Domain.Resolve turns into slices of regions. A bind or a registration is a [Work]
// while it is in the send queue: Peer.Check accepts it when it is posted, and Work.Do performs it
// when its turn comes. An invalidation has no Work: it becomes a call of Peer.InvalidateLocal.
//
// # Uses and ends
//
// Code uses a region before it touches the region's bytes. Table.Local, Domain.Resolve and
// Domain.Pieces begin uses by work requests; Peer.WriteTarget and Peer.ReadSource begin uses by the
// peer. The caller ends each use with the matching Release. A use lasts as long as a copy or a
// system call that does not block. Close and invalidations refuse new uses and wait for those in
// progress, so they always end. Only the calls of an object's methods (RegObject) may take longer.
//
// # Locks
//
// Lookups and uses take no lock: they are an atomic load and an atomic addition. Changes of a
// registration take, in the order of package locks, FastReg, Window, RegPosting, BoundWindows and
// STags. The caller may hold its stream and queue locks.
package memory
