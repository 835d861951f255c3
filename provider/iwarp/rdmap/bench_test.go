package rdmap

import (
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// BenchmarkSend is the cost of the protocol layers per Send of one segment: header out, header in,
// checks, commit.
func BenchmarkSend(b *testing.B) {
	r := NewReceiver(ReceiverConfig{})
	buf := make([]byte, 0, ddp.MaxHeaderLen)
	b.ReportAllocs()
	for msn := uint32(ddp.FirstMSN); b.Loop(); msn++ {
		h := SendHeader(OpSend, 0, msn, 0, true)
		buf = h.AppendTo(buf[:0])
		got, n, err := ddp.ParseHeader(buf, ddp.MaxHeaderLen+1000)
		if err != nil || n == 0 {
			b.Fatal(n, err)
		}
		a, err := r.Begin(&got, 1000)
		if err != nil {
			b.Fatal(err)
		}
		r.Commit(&a)
	}
}

// BenchmarkWrite is the cost of an RDMA Write, including the check of its region.
func BenchmarkWrite(b *testing.B) {
	r := NewReceiver(ReceiverConfig{})
	region := ddp.Region{Valid: true, Associated: true, Allowed: true, Base: 0x1000, Len: 1 << 20}
	buf := make([]byte, 0, ddp.MaxHeaderLen)
	b.ReportAllocs()
	for b.Loop() {
		h := WriteHeader(7, 0x2000, true)
		buf = h.AppendTo(buf[:0])
		got, n, err := ddp.ParseHeader(buf, ddp.TaggedHeaderLen+1000)
		if err != nil || n == 0 {
			b.Fatal(n, err)
		}
		a, err := r.Begin(&got, 1000)
		if err != nil {
			b.Fatal(err)
		}
		if err := ddp.CheckTagged(&region, a.TO, a.Len); err != nil {
			b.Fatal(err)
		}
		r.Commit(&a)
	}
}

// BenchmarkReadRequest writes and reads the header of a Read Request.
func BenchmarkReadRequest(b *testing.B) {
	want := ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	buf := make([]byte, 0, ReadRequestLen)
	b.ReportAllocs()
	for b.Loop() {
		buf = want.AppendTo(buf[:0])
		if got, err := ParseReadRequest(buf); err != nil || got != want {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkTerminate writes and reads the largest Terminate, which contains the headers of a Read
// Request.
func BenchmarkTerminate(b *testing.B) {
	seg := ReadRequestHeader(ddp.FirstMSN)
	read := ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	cause := &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteProtection, Code: iwarp.RDMAPInvalidSTag}
	buf := make([]byte, 0, MaxTerminateLen)
	b.ReportAllocs()
	for b.Loop() {
		t := NewTerminate(cause, &seg, ddp.UntaggedHeaderLen+ReadRequestLen, &read)
		buf = t.AppendTo(buf[:0])
		if got, err := ParseTerminate(buf, PhaseAfterFirstFPDU); err != nil || got.Read != read {
			b.Fatal(got, err)
		}
	}
}
