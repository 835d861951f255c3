package engine

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestMixedSinkAfterEnd: the buffers of a receive, or of a Read, are an object and memory. After
// the QP was flushed or closed only the object can still be written. The memory and its region
// are the program's again.
func TestMixedSinkAfterEnd(t *testing.T) {
	const size = 100 // of each part
	for _, order := range []string{"the object first", "the memory first", "the memory on both sides"} {
		for _, op := range []string{"receive", "Read"} {
			for _, how := range []string{"Close", "ERR", "the peer's end"} {
				t.Run(op+", "+order+", "+how, func(t *testing.T) {
					story(t, Options{}, params(true), func(s *side, r *raw) {
						o := &store{b: make([]byte, size), gate: make(chan struct{}), busy: make(chan struct{}, 1)}
						om := testkit.Must(s.pd.RegObject(o, size, provider.AccessLocalWrite))(s.t).(*memory.Region)
						mem := s.reg(2*size, provider.AccessLocalWrite)
						object := provider.SGE{Addr: om.Addr(), Length: size, LKey: om.STag()}
						sges := map[string][]provider.SGE{
							"the object first":         {object, mem.sge(0, size)},
							"the memory first":         {mem.sge(0, size), object},
							"the memory on both sides": {mem.sge(0, size), object, mem.sge(size, size)},
						}[order]
						payload := make([]byte, size*len(sges))
						pattern(payload, 1)
						if op == "receive" {
							s.recv(provider.RecvWR{WRID: 1, SGList: sges})
							r.sendMsg(payload)
						} else {
							s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, SGList: sges})
							_, request := r.next("the Read Request")
							q := testkit.Must(rdmap.ParseReadRequest(request))(t)
							r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), payload)
						}
						<-o.busy
						synctest.Wait()
						switch how {
						case "Close":
							testkit.OK(t, s.qp.Close())
						case "ERR":
							testkit.OK(t, s.modify(provider.QPErr))
						default:
							s.qp.stream.Load().fail(&ending{cause: errPeerClosed})
							s.qp.stream.Load().settle()
						}
						s.wantWC("the flush", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
						closes(t, "the memory", mem.m)
						copy(mem.b, bytes.Repeat([]byte{0xa5}, len(mem.b)))
						o.gate <- struct{}{}
						synctest.Wait()
						mem.untouched(0, 0)
						closes(t, "the object", om)
					})
				})
			}
		}
	}
}

// TestMixedSink: when such a receive completes, all of it has arrived, whichever buffers a
// segment is for.
func TestMixedSink(t *testing.T) {
	const size = 100
	story(t, Options{}, params(true), func(s *side, r *raw) {
		o := &store{b: make([]byte, size)}
		om := testkit.Must(s.pd.RegObject(o, size, provider.AccessLocalWrite))(s.t).(*memory.Region)
		mem := s.reg(2*size, provider.AccessLocalWrite)
		sges := []provider.SGE{mem.sge(0, size), {Addr: om.Addr(), Length: size, LKey: om.STag()}, mem.sge(size, size)}
		for cut := 1; cut < 3*size; cut += 7 {
			clear(o.b)
			clear(mem.b)
			payload := make([]byte, 3*size)
			pattern(payload, cut)
			s.recv(provider.RecvWR{WRID: 1, SGList: sges})
			h := rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, 0, false)
			r.send(h, payload[:cut])
			h = rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, uint32(cut), true)
			r.send(h, payload[cut:])
			r.sendMSN++
			s.wantWC("the receive", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 3 * size})
			testkit.EqualBytes(t, fmt.Sprintf("what arrived, cut at %d", cut),
				bytes.Join([][]byte{mem.b[:size], o.b, mem.b[size:]}, nil), payload)
		}
		closes(t, "the memory", mem.m)
		closes(t, "the object", om)
	})
}

// TestMixedSourceAfterEnd: a message is sent from an object, which is slow to read, and from
// memory. The memory is not read any more once the object is being read, and can be
// deregistered at once.
func TestMixedSourceAfterEnd(t *testing.T) {
	const size = 100
	for _, how := range []string{"while it is sent", "Close"} {
		t.Run(how, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				o := &store{b: bytes.Repeat([]byte{1}, size), gate: make(chan struct{}), busy: make(chan struct{}, 1)}
				om := testkit.Must(s.pd.RegObject(o, size, 0))(s.t).(*memory.Region)
				mem := s.reg(2*size, provider.AccessLocalWrite)
				want := bytes.Join([][]byte{mem.b[:size], o.b, mem.b[size:]}, nil)
				object := provider.SGE{Addr: om.Addr(), Length: size, LKey: om.STag()}
				s.send(provider.SendWR{
					WRID: 1, Opcode: provider.WRSend, Flags: signaled,
					SGList: []provider.SGE{mem.sge(0, size), object, mem.sge(size, size)},
				})
				<-o.busy
				if how == "Close" {
					testkit.OK(t, s.qp.Close())
				}
				closes(t, "the memory", mem.m)
				clear(mem.b) // a race, if it is still read
				o.gate <- struct{}{}
				if how == "Close" {
					s.wantWC("the flush", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
				} else {
					r.wantMessage("the Send", want)
				}
				synctest.Wait()
				closes(t, "the object", om)
			})
		})
	}
}
