package scenarios

import (
	"errors"
	"math"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// memories are about regions of the responder that the peer names by an address of the
// program's choice, and regions that are registered anew. A responder without them, such
// as siw, is recognised by the errors of its verbs.
func memories() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "memory/zero-based", Level: conformance.Must,
			Title:        "a zero-based region is read, written and sent from by addresses from 0 on, and not beyond its length",
			Requirements: []string{"DDP-7.1t4-01"},
			Verbs: func(r *conformance.VerbsRun) {
				addressed(r, 0, func(pd *ibverbs.PD, b []byte) (*ibverbs.MR, error) {
					return pd.RegMR(b, everyRight|ibverbs.AccessZeroBased)
				})
			}, Wire: terminated("1/1/0x01"),
		},
		{
			Slug: "memory/iova", Level: conformance.Must,
			Title:        "a region is read, written and sent from by the address that was asked for, and not in front of it",
			Requirements: []string{"DDP-7.1t3-01"},
			Verbs:        func(r *conformance.VerbsRun) { chosen(r, 0x7000) }, Wire: terminated("1/1/0x01"),
		},
		{
			Slug: "memory/iova-last", Level: conformance.Must,
			Title:        "a region's address may be the last that there is room for, and what reaches beyond 2^64 is not let in at 0",
			Requirements: []string{"DDP-7.1t5-01"},
			Verbs:        func(r *conformance.VerbsRun) { chosen(r, math.MaxUint64-memorySize) }, Wire: terminated("1/1/0x03", "1/1/0x01"),
		},
		{
			Slug: "memory/rereg-access", Level: conformance.Must,
			Title:        "re-registration gives a region other rights: the peer is let in by the key that it has then, and not by the old one",
			Requirements: []string{"DDP-7.1t1-01"},
			Verbs:        reregAccess, Wire: terminated("1/1/0x00"),
		},
		{
			Slug: "memory/rereg-rights-lost", Level: conformance.Must,
			Title:        "re-registration takes rights from a region: the peer may read it then, and no longer write",
			Requirements: []string{"DDP-7.1t2-01"},
			Verbs:        reregRightsLost, Wire: terminated("1/1/0x00", "1/1/0x02", "0/1/0x02"),
		},
		{
			Slug: "memory/rereg-translation", Level: conformance.Must,
			Title:        "re-registration puts a region over other memory: the peer reads and writes that, and never the first again",
			Requirements: []string{"DDP-7.1t1-01"},
			Verbs:        reregTranslation, Wire: terminated("1/1/0x00"),
		},
		{
			Slug: "memory/rereg-pd", Level: conformance.Must,
			Title:        "re-registration moves a region to another protection domain: to that of the connection, and away from it",
			Requirements: []string{"DDP-7.1t1-01"},
			Verbs:        reregPD, Wire: terminated("1/1/0x02"),
		},
		{
			Slug: "memory/rereg-refused", Level: conformance.Must,
			Title: "a re-registration that is refused changes nothing",
			Verbs: reregRefused, Wire: legal,
		},
	}
}

const (
	everyRight = remoteWrite | remoteRead

	memorySize = 8192
	memoryOff  = 5000 // of what is written: beyond the first page
)

// chosen calls addressed with ibv_reg_mr_iova as the registration.
func chosen(r *conformance.VerbsRun, iova uint64) {
	addressed(r, iova, func(pd *ibverbs.PD, b []byte) (*ibverbs.MR, error) { return pd.RegMRIova(b, iova, everyRight) })
}

// addressed makes the peer write to, read from and receive from a region of the responder
// at iova, and then reach across one of its ends.
func addressed(r *conformance.VerbsRun, iova uint64, reg func(*ibverbs.PD, []byte) (*ibverbs.MR, error)) {
	var in *conformance.Buffer
	i, p := r.Connect(&conformance.SideConfig{Before: func(s *conformance.Side) {
		in = s.Buffer("the receive buffer", windowLen, local)
		s.PostRecv(recv(7, in))
	}}, nil)
	b, err := p.BufferBy("the region", memorySize, func(data []byte) (*ibverbs.MR, error) { return reg(p.PD, data) })
	lacks(r, err, "region with an address of its own")
	conformance.Equal(r.T, b.MR.Addr(), iova, "the region has the address that was asked for")
	written := through(i, r.Seed, uint64(b.MR.RKey()), iova+memoryOff)
	b.HoldsAt(memoryOff, written, "the Write is where the address says")
	untouchedBut(b, memoryOff, windowLen)

	// The responder's own work requests count from there as well.
	wr := ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}
	wr.SGList = []ibverbs.SGE{{Addr: iova + memoryOff, Length: windowLen, LKey: b.MR.LKey()}}
	p.PostSend(wr)
	p.WantWC(p.SendWCs(1), 0, 3, ibverbs.WCSuccess, "a Send from the region completes")
	i.WantWC(i.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "it arrives")
	in.Holds(written, "with the octets that the address says")

	at := iova - 1
	switch {
	case iova == 0:
		at = memorySize - windowLen + 1
	case iova+memorySize+windowLen < iova:
		at = iova + memorySize - 1
	}
	refusedWrite(i, p, r.Seed+1, windowLen, b.MR.RKey(), at)
	b.HoldsAt(memoryOff, written, "what was written is as it was")
	untouchedBut(b, memoryOff, windowLen)
}

// untouchedBut checks that a buffer is as it was made, except for n octets from off on.
func untouchedBut(b *conformance.Buffer, off, n int) {
	b.Holds([]byte(strings.Repeat("\x5a", off)), "nothing in front of it is touched")
	b.UntouchedFrom(off+n, "nor after it")
}

// rereg registers a region anew, and returns the key that it had before.
func rereg(r *conformance.VerbsRun, mr *ibverbs.MR, flags ibverbs.ReregFlags, pd *ibverbs.PD, buf []byte, access ibverbs.Access) uint32 {
	old := mr.RKey()
	lacks(r, mr.Rereg(flags, pd, buf, access), "re-registration")
	return old
}

func reregAccess(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	b := p.Buffer("the region", windowLen, local)
	at := b.MR.Addr()
	old := rereg(r, b.MR, ibverbs.ReregAccess, nil, nil, everyRight)
	conformance.Equal(r.T, b.MR.Access(), everyRight, "the region has the new rights")
	conformance.Equal(r.T, b.MR.Addr(), at, "and the old address")
	written := through(i, r.Seed, uint64(b.MR.RKey()), at)
	b.Holds(written, "the region has what was written")
	refusedWrite(i, p, r.Seed+1, windowLen, old, at)
	b.Holds(written, "the old key lets nothing in")
}

func reregRightsLost(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	b := p.Buffer("the region", windowLen, everyRight)
	written := through(i, r.Seed, uint64(b.MR.RKey()), b.MR.Addr())
	rereg(r, b.MR, ibverbs.ReregAccess, nil, nil, remoteRead)
	back := i.Buffer("the sink", windowLen, remoteWrite)
	i.PostSend(read(3, back, b))
	i.WantWC(i.SendWCs(1), 0, 3, ibverbs.WCSuccess, "a Read completes")
	back.Holds(written, "it brings what was written before")
	refusedWrite(i, p, r.Seed+1, windowLen, b.MR.RKey(), b.MR.Addr())
	b.Holds(written, "the region is as it was")
}

func reregTranslation(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	first, second := p.Buffer("the first memory", windowLen, everyRight), p.Buffer("the second memory", 2*windowLen, local)
	at := first.MR.Addr()
	before := through(i, r.Seed, uint64(first.MR.RKey()), at)
	old := rereg(r, first.MR, ibverbs.ReregTranslation, nil, second.Data, 0)
	conformance.Equal(r.T, first.MR.Len(), uint64(len(second.Data)), "the region is as long as the second memory")
	conformance.Equal(r.T, first.MR.Access(), everyRight, "and has the rights from before")
	written := through(i, r.Seed+1, uint64(first.MR.RKey()), first.MR.Addr()+windowLen)
	second.HoldsAt(windowLen, written, "the second memory has what was written")
	refusedWrite(i, p, r.Seed+2, windowLen, old, at)
	first.Holds(before, "the first memory is as it was before")
	second.HoldsAt(windowLen, written, "and so is the second")
}

func reregPD(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	other, err := r.Responder.Context.AllocPD()
	r.NoError(err, "the responder can make another PD")
	closing(r, "the other PD", other)
	b := p.BufferIn(other, "the region", windowLen, everyRight)
	rereg(r, b.MR, ibverbs.ReregPD, p.PD, nil, 0)
	r.Check(b.MR.PD() == p.PD, "the region is in the connection's PD")
	written := through(i, r.Seed, uint64(b.MR.RKey()), b.MR.Addr())
	b.Holds(written, "the region has what was written")
	rereg(r, b.MR, ibverbs.ReregPD, other, nil, 0)
	refusedWrite(i, p, r.Seed+1, windowLen, b.MR.RKey(), b.MR.Addr())
	b.Holds(written, "in the other PD nothing is let in")
}

func reregRefused(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	b := p.Buffer("the region", windowLen, everyRight)
	key, at := b.MR.RKey(), b.MR.Addr()
	for _, c := range []struct {
		what   string
		flags  ibverbs.ReregFlags
		access ibverbs.Access
	}{
		{"one that changes nothing", 0, 0},
		{"one that changes what there is not", 1 << 9, 0},
		{"one to no memory", ibverbs.ReregTranslation, 0},
		{"one to no PD", ibverbs.ReregPD, 0},
		{"one to remote write without local write", ibverbs.ReregAccess, ibverbs.AccessRemoteWrite},
	} {
		err := b.MR.Rereg(c.flags, nil, nil, c.access)
		r.Check(ibverbs.Errno(err) == syscall.EINVAL || errors.Is(err, errors.ErrUnsupported), c.what+" is EINVAL, or not supported", "%v", err)
		r.Observe("errno."+strings.ReplaceAll(c.what, " ", "-"), "%s", errno(err))
		r.Log("%s: %v", c.what, err)
	}
	r.Check(b.MR.RKey() == key && b.MR.Addr() == at && b.MR.Access() == everyRight && b.MR.Len() == windowLen && b.MR.PD() == p.PD, "the region is what it was")
	b.Holds(through(i, r.Seed, uint64(key), at), "the peer reads and writes it as before")
	end(i, p)
}
