package engine

import (
	"bytes"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestPostSendRefusals: an impossible work request is refused, and those before it in the list are
// posted nevertheless.
//
//rfc:5041 DDP-5.2-02 ULP message shorter than 2^32
func TestPostSendRefusals(t *testing.T) {
	sges := func(n int, length uint32) []provider.SGE {
		l := make([]provider.SGE, n)
		for i := range l {
			l[i].Length = length
		}
		return l
	}
	for what, c := range map[string]struct {
		wr   provider.SendWR
		want error
	}{
		"many SGEs":              {provider.SendWR{Opcode: provider.WRSend, SGList: sges(5, 1)}, syscall.EINVAL},
		"4 GiB":                  {provider.SendWR{Opcode: provider.WRSend, SGList: sges(2, 1<<31)}, syscall.EINVAL},
		"long inline":            {provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: make([]byte, 65)}, syscall.EINVAL},
		"inline and SGEs":        {provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, SGList: sges(1, 1)}, syscall.EINVAL},
		"inline without flag":    {provider.SendWR{Opcode: provider.WRSend, Inline: []byte{1}}, syscall.EINVAL},
		"inline Read":            {provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendInline}, syscall.EINVAL},
		"unknown flag":           {provider.SendWR{Opcode: provider.WRSend, Flags: 1 << 9}, syscall.EINVAL},
		"unknown opcode":         {provider.SendWR{Opcode: 77}, syscall.EINVAL},
		"bind of nothing":        {provider.SendWR{Opcode: provider.WRBindMW}, syscall.EINVAL},
		"invalidation with SGEs": {provider.SendWR{Opcode: provider.WRLocalInv, SGList: sges(1, 1)}, syscall.EINVAL},
		"an opcode of our own":   {provider.SendWR{Opcode: opRegMR}, syscall.EINVAL},
		"Read without any depth": {provider.SendWR{Opcode: provider.WRRDMARead}, syscall.EINVAL},
	} {
		t.Run(what, func(t *testing.T) {
			p := params(true)
			p.ORD = 0
			story(t, Options{}, p, func(s *side, r *raw) {
				n, err := s.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend}, c.wr, {Opcode: provider.WRSend}})
				testkit.Equal(t, "posted", n, 1)
				wantErr(t, err, c.want)
				r.want("the one before", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
				r.wantIdle("and nothing after")
			})
		})
	}
}

func TestPostRecvRefusals(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxRecvSGE: 1}})
	n, err := s.qp.PostRecv([]provider.RecvWR{{}, {SGList: make([]provider.SGE, 2)}})
	testkit.Equal(t, "posted", n, 1)
	wantErr(t, err, syscall.EINVAL)
	n, err = s.qp.PostRecv(make([]provider.RecvWR, 2))
	testkit.Equal(t, "posted", n, 1)
	wantErr(t, err, syscall.ENOMEM)
}

// TestFullQueue: a full send queue refuses. Unsignalled work requests leave it when a later
// one is reported, or when they are over and their places are needed: otherwise a queue that
// is full of them would stay full forever.
func TestFullQueue(t *testing.T) {
	storyOn(t, memnet.Options{}, Options{}, params(true), sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxRecvWR: 1}}, func(s *side, r *raw) {
		unsignalled := provider.SendWR{Opcode: provider.WRSend}
		for range 10 {
			s.send(unsignalled, unsignalled, unsignalled)
			s.noWC("unsignalled")
			s.send(provider.SendWR{WRID: 9, Opcode: provider.WRSend, Flags: provider.SendSignaled})
			s.wantWC("the signalled one makes room", provider.WC{WRID: 9, Opcode: provider.WCSend})
			for range 4 {
				r.next("a Send")
			}
		}
		for range 10 {
			s.send(unsignalled, unsignalled, unsignalled)
			for range 3 {
				r.next("a Send")
			}
		}
		s.send(unsignalled, unsignalled, unsignalled, unsignalled)
		s.noWC("all of them are unsignalled")

		read := provider.SendWR{Opcode: provider.WRRDMARead, RKey: 1}
		s.send(unsignalled, read, unsignalled, unsignalled)
		for range 5 {
			r.next("a Send")
		}
		q := r.wantReadRequest("the Read", 1)
		for range 2 {
			r.next("a Send")
		}
		n, err := s.qp.PostSend([]provider.SendWR{unsignalled, unsignalled})
		testkit.Equal(t, "posted, when only the Send before the Read is over", n, 1)
		wantErr(t, err, syscall.ENOMEM)
		r.next("a Send")
		r.answer(q)
		s.noWC("all of them are unsignalled")
		s.send(unsignalled, unsignalled, unsignalled, unsignalled)
	})
}

// TestInline: inline payload is copied when it is posted, and needs no region.
// The lists are the caller's again when a post returns.
func TestInline(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		data := []byte("inline payload")
		m := s.reg(8, 0)
		copy(m.b, "gathered")
		wrs := []provider.SendWR{
			{WRID: 1, Opcode: provider.WRSendWithInv, Flags: provider.SendInline | provider.SendSolicited, Inline: data, InvalidateRKey: 77},
			{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendInline, Inline: data[:0], RKey: 5, RemoteAddr: 6},
			{WRID: 3, Opcode: provider.WRSend, SGList: []provider.SGE{m.sge(6, 2), {}, m.sge(0, 6)}},
		}
		s.send(wrs...)
		clear(data)
		clear(wrs[2].SGList)
		clear(wrs)
		r.send(rdmap.WriteHeader(0, 0, true), nil)
		got := r.want("the Send", rdmap.SendHeader(rdmap.OpSendSEInvalidate, 77, 1, 0, true))
		testkit.Equal(t, "the payload", string(got), "inline payload")
		r.want("the Write", rdmap.WriteHeader(5, 6, true))
		got = r.want("the other Send", rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true))
		testkit.Equal(t, "the payload", string(got), "edgather")
	})
}

// TestSegments: a long message is cut into segments of the MULPDU, each in an
// FPDU, whatever the socket takes at a time.
//
//rfc:5041 DDP-5.2-01 Segments no larger than MULPDU
//rfc:5041 DDP-5.2-03 All data is sent
//rfc:5041 DDP-5.2-05 Untagged MO = offset of first payload octet
//rfc:5041 DDP-5.2-06 Tagged TO = initial TO + offset
//rfc:5044 MPA-3-01 Exactly one ULPDU per FPDU
//rfc:5044 MPA-4.3-01 Every sender can generate markers when the receiver asks
func TestSegments(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			storyOn(t, memnet.Options{Window: 777, MSS: 301, Cut: true, Seed: 5}, fr.opts, framingParams(fr.crc, fr.markers), sideOptions{}, func(s *side, r *raw) {
				const size = 20_000
				src := s.reg(size, 0)
				pattern(src.b, 9)
				sges := []provider.SGE{src.sge(0, 1), src.sge(1, 12_345), src.sge(12_346, size-12_346)}
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sges},
					provider.SendWR{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: sges, RKey: 3, RemoteAddr: ^uint64(0) - size + 1})
				mulpdu := mpa.MULPDU(301, fr.markers)
				var sent, written []byte
				for len(written) < size {
					h, payload := r.next("a segment")
					var want = rdmap.SendHeader(rdmap.OpSend, 0, 1, uint32(len(sent)), len(sent)+len(payload) == size)
					if len(sent) == size {
						want = rdmap.WriteHeader(3, ^uint64(0)-size+1+uint64(len(written)), len(written)+len(payload) == size)
						written = append(written, payload...)
					} else {
						sent = append(sent, payload...)
					}
					if h != want {
						t.Fatalf("header %+v, want %+v", h, want)
					}
					if n := h.Len() + len(payload); n > mulpdu || !h.Last && n < mulpdu {
						t.Fatalf("ULPDU of %d bytes, MULPDU %d", n, mulpdu)
					}
				}
				if !bytes.Equal(sent, src.b) || !bytes.Equal(written, src.b) {
					t.Error("bytes differ")
				}
				s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
				s.wantWC("the Write", provider.WC{WRID: 2, Opcode: provider.WCRDMAWrite})
			})
		})
	}
}

// TestLongBatches: a socket that has taken everything for a while gets 1 MiB at a time (with CRC,
// what the cache keeps), until it doesn't take all of it. The rest of the FPDU that is partly out
// is kept, and sent later.
func TestLongBatches(t *testing.T) {
	const size, window = 6 << 20, 7 << 18 // a turn and half a batch
	for _, crc := range []bool{false, true} {
		t.Run("CRC "+strconv.FormatBool(crc), func(t *testing.T) {
			storyOn(t, memnet.Options{Window: window, MSS: 65_000}, Options{}, params(crc), sideOptions{}, func(s *side, r *raw) {
				src := s.reg(size, 0)
				pattern(src.b, 3)
				write := func(n int) {
					s.send(provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{src.sge(0, n)}})
				}
				limit := func() (octets, left uint64) {
					tx := &s.qp.stream.Load().tx
					s.qp.stream.Load().tx.mu.Lock()
					defer s.qp.stream.Load().tx.mu.Unlock()
					return tx.batch.Limit(), tx.b.Left()
				}
				const fpdu = 65_000
				for range policy.WholeBatches {
					write(100)
					r.next("a short Write")
					s.wantWC("it", provider.WC{Opcode: provider.WCRDMAWrite})
				}
				write(size)
				synctest.Wait() // for the turns after the first
				if got, left := limit(); got != policy.BatchOctets || left == 0 || left > fpdu {
					t.Errorf("%d bytes of the batch are left, want 1 to %d; the next may have "+
						"%d, want %d",
						left, fpdu, got, policy.BatchOctets)
				}
				for got := 0; got < size; {
					_, p := r.next("a segment")
					if !bytes.Equal(p, src.b[got:got+len(p)]) {
						t.Fatalf("bytes at %d differ", got)
					}
					got += len(p)
				}
				s.wantWC("all of it", provider.WC{Opcode: provider.WCRDMAWrite})
				for range policy.WholeBatches {
					write(100)
					r.next("a short Write")
					s.wantWC("it", provider.WC{Opcode: provider.WCRDMAWrite})
				}
				testkit.Equal(t, "bytes of batches", s.qp.stream.Load().tx.batch.Limit(),
					policy.BatchMost)
			})
		})
	}
}
