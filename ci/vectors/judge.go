package main

import (
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// judge returns an error unless the layers decode v without an error, or refuse it as v says. It
// sets the reason and the Terminate of a refusal.
func (v *vector) judge() (err error) {
	switch {
	case v.Kind == "crc32c":
		return mpa.CheckCRC(mpa.CRC(0, v.Octets), v.CRC32C)
	case v.Refuse == nil && v.frame == nil:
		return errors.New("can't be decoded")
	case v.Refuse == nil:
		return v.frame.Err
	}
	var seg *ddp.Header
	var length int
	var read *rdmap.ReadRequest
	switch v.Kind {
	case "request":
		r, _ := mpa.NewResponder(mpa.Config{})
		_, _, err = r.Receive(v.Octets)
	case "reply":
		f, _, _ := mpa.ParseFrame(v.Request, mpa.KindRequest)
		e, _, _ := f.SplitPrivateData()
		i, _ := mpa.NewInitiator(mpa.Config{Revision: f.Revision, RTR: e.RTR()},
			mpa.Offer{IRD: int(e.IRD), ORD: int(e.ORD), PeerToPeer: e.A})
		_, _, err = i.Receive(v.Octets)
	default:
		seg, length, read, err = v.receive()
	}
	var e *iwarp.Error
	if err == nil {
		return errors.New("the layers accept it")
	}
	if !errors.As(err, &e) || e.Layer != v.Refuse.Layer || e.EType != v.Refuse.EType || e.Code != v.Refuse.Code {
		return fmt.Errorf("the layers refuse it for another reason: %w", err)
	}
	v.Refuse.Reason = e.Reason
	if v.Kind == "fpdu" || e.Code > iwarp.MPALocalCatastrophic { // the codes of RFC 6581
		v.Refuse.Terminate = new(rdmap.NewTerminate(e, seg, length, read)).AppendTo(nil)
	}
	return nil
}

// receive makes the layers receive an FPDU on a new stream, without any buffer. It returns what a
// Terminate about it contains.
func (v *vector) receive() (seg *ddp.Header, length int, read *rdmap.ReadRequest, err error) {
	s := v.Stream
	in, f := mpa.NewReceiver(s.Markers, s.CRC), mpa.NewFramer(s.Markers, s.CRC)
	if s.Position > 0 {
		_, _, err = in.Next(must(f.AppendFPDU(nil, before(s.Position))), nil)
	}
	span, _, err2 := in.Next(v.Octets, nil)
	if err = errors.Join(err, err2); err != nil {
		return nil, 0, nil, err
	}
	h, payload, err := ddp.Parse(span.ULPDU)
	if err != nil {
		return nil, 0, nil, err
	}
	r := rdmap.NewReceiver(rdmap.ReceiverConfig{
		Inbound: rdmap.NewInboundReads(1), Extensions: s.RFC7306, RDMAC: s.Version == 0,
	})
	a, err := r.Begin(&h, len(payload))
	if err != nil {
		return &h, len(span.ULPDU), nil, err
	}
	switch a.Kind {
	case rdmap.PlaceSend:
		err = ddp.CheckUntagged(a.MO, a.Len, false, 0)
	case rdmap.PlaceWrite:
		err = ddp.CheckTagged(&ddp.Region{}, a.TO, a.Len)
	case rdmap.TakeReadRequest:
		read = new(must(rdmap.ParseReadRequest(payload)))
		err = rdmap.CheckReadSource(&ddp.Region{}, read.SourceTO, read.Size)
	case rdmap.TakeAtomicRequest:
		err = rdmap.CheckAtomic(&ddp.Region{}, new(must(rdmap.ParseAtomicRequest(payload))))
	}
	return &h, len(span.ULPDU), read, err
}
