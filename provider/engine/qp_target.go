package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A peer names memory of ours by STag and TO. The three functions below make
// the checks that the RFCs ask for, in their order, and give the error whose
// Terminate they ask for. Their errors are the package variables of ddp and
// rdmap, so that nothing is allocated.

// writeTarget checks the n octets that a tagged segment of a Write names on q.
// With a nil error they are in use until m.releaseRemote. For n = 0
// nothing is checked and m is nil. Where the region is an object b is nil.
//
//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
//rfc:5041 DDP-8.3.1-1-01 Stream cannot use STag of another PD
func writeTarget(q *qp, stag uint32, to uint64, n int) (m *mr, b []byte, err error) {
	if n == 0 {
		return nil, nil, nil
	}
	m, r := q.region(stag, provider.AccessRemoteWrite)
	if err := ddp.CheckTagged(&r, to, n); err != nil {
		m.leave()
		return nil, nil, err
	}
	m.willBeWritten()
	b, _ = m.slice(to, uint64(n))
	return m, b, nil
}

// readSource is writeTarget for the source of an RDMA Read. It is called when
// the request arrives and again for each part of the response, as the region
// may go in between.
//
//rfc:5040 RDMAP-7.2-07 ReadReq source STag valid
//rfc:5040 RDMAP-7.2-08 ReadReq source STag associated with this stream
func readSource(q *qp, stag uint32, to uint64, n uint32) (m *mr, b []byte, err error) {
	if n == 0 {
		return nil, nil, nil
	}
	m, r := q.region(stag, provider.AccessRemoteRead)
	if err := rdmap.CheckReadSource(&r, to, n); err != nil {
		m.leave()
		return nil, nil, err
	}
	b, _ = m.slice(to, uint64(n))
	return m, b, nil
}

// invalidateRemote does what a Send with Invalidate asks on q. A region must have
// been registered with AccessRemoteInvalidate, and have no windows bound to it; a
// window must be one that only the peer of q can use. The caller holds no use of it.
//
//rfc:5040 RDMAP-7.2-05 Invalidate STag valid
//rfc:5040 RDMAP-7.2-06 Invalidate STag belongs to this stream
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
//rfc:5042 SEC-6.4.5-01 No STag valid on several streams when peers distrust
func invalidateRemote(q *qp, stag uint32) error {
	m, r := q.region(stag, provider.AccessRemoteInvalidate)
	m.leave()
	err := rdmap.CheckInvalidate(&r)
	switch {
	case err != nil:
		return err
	case m.owner != nil:
		return m.owner.invalidate(q, stag, true)
	case m.windows.Held():
		return rdmap.ErrMayNotInvalidate
	}
	m.remote.Shut()
	return nil
}

// region returns what the checks want to know about stag as the peer of q sees it. A
// region that is not nil is in use for the peer until releaseRemote.
//
//rfc:5041 DDP-8.2-01 PD mismatch: not placed, local error surfaced
//rfc:5041 DDP-8.2-02 Stream-ID mismatch: not placed, local error
//rfc:5041 DDP-8.3.1-2-01 Single-stream STag not usable by other streams
//rfc:5042 SEC-6.1.1-03 Stream-limited STag refused on other streams
func (q *qp) region(stag uint32, need provider.Access) (*mr, ddp.Region) {
	m := q.dev.stags.lookup(stag)
	if m == nil || !m.acquireRemote() {
		return nil, ddp.Region{}
	}
	if m.stag != stag {
		m.releaseRemote()
		return nil, ddp.Region{}
	}
	return m, ddp.Region{
		Valid:      true,
		Associated: m.pd == q.pd && (m.qp == nil || m.qp == q),
		Allowed:    m.access&need == need,
		Base:       m.base,
		Len:        m.size(),
	}
}
