package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// recorded is an FPDU of a captured connection between two siw.
type recorded struct {
	siws    bool // sent by the end that is played, not by the engine's
	octets  []byte
	h       ddp.Header
	op      rdmap.Opcode
	payload []byte
}

// rping reads the rping between two siw from the test data of mpa and rdmap: what
// comes before the first FPDU, and all FPDUs, in the order in which they were on
// the wire. ours is the role that the engine takes: "client" or "server".
func rping(t *testing.T, ours string) (request, reply []byte, fpdus []recorded) {
	t.Helper()
	const server = "7174>" // its port, which is the source of what it sent
	text := testkit.Must(os.ReadFile("../iwarp/rdmap/testdata/rping-siw-6.1.192.txt"))(t)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		r := recorded{siws: strings.HasPrefix(f[0], server) == (ours == "client"),
			octets: testkit.Must(hex.DecodeString(f[2]))(t)}
		n, _, _ := mpa.ParseHeader(r.octets)
		h, payload, err := ddp.Parse(r.octets[mpa.HeaderLen : mpa.HeaderLen+n])
		testkit.OK(t, err)
		r.h, r.op, r.payload = h, rdmap.ParseControl(h.ULPCtl).Opcode, payload
		fpdus = append(fpdus, r)
	}
	const frame = mpa.FrameHeaderLen + 4 // IRD and ORD
	request = testkit.Must(os.ReadFile("../iwarp/mpa/testdata/siw-rping-initiator.bin"))(t)[:frame]
	reply = testkit.Must(os.ReadFile("../iwarp/mpa/testdata/siw-rping-responder.bin"))(t)[:frame]
	return request, reply, fpdus
}

// TestReplaySiw plays either end of a captured connection between two siw, byte
// for byte, to the engine in the other role, which has to send what siw sent
// there, byte for byte as well. The engine's regions get the STags and addresses
// that siw's had; nothing else is arranged.
func TestReplaySiw(t *testing.T) {
	for _, role := range []string{"client", "server"} {
		t.Run("engine as "+role, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replay(t, role) })
		})
	}
}

func replay(t *testing.T, role string) {
	request, reply, fpdus := rping(t, role)
	w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{CRC: CRCOff}, true)
	depths := provider.ConnParam{ResponderResources: 1, InitiatorDepth: 1}
	var p *player
	if role == "client" {
		dst, accepted := w.listenRaw()
		id := w.active.connect(dst, depths)
		p = newPlayer(t, w.active, id, accepted())
		p.want("the Request", request)
		p.peer.send(reply)
		w.active.want("siw's Reply is taken", id, provider.CMEstablished, 0)
	} else {
		l := w.server.listen()
		peer := w.dialRaw(l.LocalAddr())
		peer.send(request)
		id, param := w.server.wantRequest("siw's Request is taken", l)
		if param.ResponderResources != 1 || param.InitiatorDepth != 1 {
			t.Errorf("the Request is taken as %+v", param)
		}
		p = newPlayer(t, w.server, id, peer)
		testkit.OK(t, id.Accept(depths))
		w.server.want("the Reply is sent", id, provider.CMEstablished, 0)
		p.want("the Reply", reply)
	}
	p.ownRegions(fpdus)
	for i := range fpdus {
		if r := &fpdus[i]; r.siws {
			p.play(r, fpdus[i:])
		} else {
			p.expect(r)
		}
	}
	// Each of five pings is two Sends of either end, and of the server a Read and a
	// Write besides.
	want := map[string]int{"client": 10, "server": 20}[role]
	if p.taken != 10 || p.done != want {
		t.Errorf("%d Sends of siw and %d operations of the engine completed; want 10 and %d", p.taken, p.done, want)
	}
	// siw closes, and so does the engine.
	testkit.OK(t, p.peer.conn.CloseWrite())
	p.host.want("the end of siw's connection", p.id, provider.CMDisconnected, 0)
	if err := p.peer.wantEnd("nothing more"); err == nil {
		t.Error("the engine does not close")
	}
}

// player plays one end of a connection to an engine and drives the engine's
// application as rping would.
type player struct {
	t    *testing.T
	host *cmHost
	id   *cm.ID
	qp   *qp
	peer *rawPeer

	regions     map[uint32]*memory.Region // by STag
	recv, send  *memory.Region
	taken, done int
}

func newPlayer(t *testing.T, h *cmHost, id *cm.ID, peer *rawPeer) *player {
	p := &player{t: t, host: h, id: id, qp: qpOf(id), peer: peer, regions: make(map[uint32]*memory.Region)}
	p.recv = p.region(0, 0, 64)
	p.send = p.region(0, 0, 64)
	p.postRecv()
	return p
}

// region registers n bytes, with this STag and address unless stag is 0.
func (p *player) region(stag uint32, addr uint64, n int) *memory.Region {
	p.t.Helper()
	if stag != 0 {
		random := p.host.dev.memory.Random
		p.host.dev.memory.Random = func(b []byte) { binary.LittleEndian.PutUint32(b, stag) }
		defer func() { p.host.dev.memory.Random = random }()
	}
	m := testkit.Must(p.host.pd.RegMRIova(make([]byte, n), addr,
		provider.AccessLocalWrite|provider.AccessRemoteWrite|provider.AccessRemoteRead))(p.t).(*memory.Region)
	p.t.Cleanup(func() { m.Close() })
	return m
}

// ownRegions registers what the engine's end had, as far as the wire shows it: the
// sources of siw's Reads, the targets of its Writes, and the sinks of ours.
func (p *player) ownRegions(fpdus []recorded) {
	own := func(stag uint32, addr uint64, n int) {
		if m := p.regions[stag]; m == nil {
			p.regions[stag] = p.region(stag, addr, n)
		} else if m.Addr() != addr || len(octetsOf(m)) != n {
			p.t.Fatalf("STag %#x has two addresses or lengths; this script is too simple for it", stag)
		}
	}
	for i := range fpdus {
		switch r := &fpdus[i]; r.op {
		case rdmap.OpReadRequest:
			q := testkit.Must(rdmap.ParseReadRequest(r.payload))(p.t)
			if r.siws {
				own(q.SourceSTag, q.SourceTO, int(q.Size))
			} else {
				own(q.SinkSTag, q.SinkTO, int(q.Size))
			}
		case rdmap.OpWrite:
			if r.siws {
				own(r.h.STag, r.h.TO, len(r.payload))
			}
		}
	}
}

func (p *player) postRecv() {
	p.t.Helper()
	testkit.Must(p.qp.PostRecv([]provider.RecvWR{{SGList: []provider.SGE{{Addr: p.recv.Addr(),
		Length: 64, LKey: p.recv.STag()}}}}))(p.t)
}

// play sends an FPDU of siw, and checks what it does. later begins with it.
func (p *player) play(r *recorded, later []recorded) {
	p.t.Helper()
	if r.op == rdmap.OpReadRequest {
		p.fillSource(r, later)
	}
	p.peer.send(r.octets)
	switch r.op {
	case rdmap.OpSend:
		wc := p.completion("siw's Send")
		if wc.Opcode != provider.WCRecv || int(wc.ByteLen) != len(r.payload) ||
			!bytes.Equal(octetsOf(p.recv)[:len(r.payload)], r.payload) {
			p.t.Errorf("siw's Send of %x: %+v, bytes %x", r.payload, wc, octetsOf(p.recv)[:len(r.payload)])
		}
		p.taken++
		p.postRecv()
	case rdmap.OpWrite:
		synctest.Wait()
		time.Sleep(time.Second)
		testkit.EqualBytes(p.t, "what siw's Write placed", octetsOf(p.regions[r.h.STag]), r.payload)
	case rdmap.OpReadResponse:
		wc := p.completion("our Read")
		if m := p.regions[r.h.STag]; wc.Opcode != provider.WCRDMARead || !bytes.Equal(octetsOf(m), r.payload) {
			p.t.Errorf("siw's Read Response of %q: %+v, bytes %q", r.payload, wc, octetsOf(m))
		}
		p.done++
	}
}

// fillSource puts what siw read into the source of its Read.
func (p *player) fillSource(r *recorded, later []recorded) {
	q := testkit.Must(rdmap.ParseReadRequest(r.payload))(p.t)
	for i := range later {
		if l := &later[i]; !l.siws && l.op == rdmap.OpReadResponse {
			copy(octetsOf(p.regions[q.SourceSTag]), l.payload)
			return
		}
	}
	p.t.Fatal("a Read without a Response in the capture")
}

// expect has the engine's application do what siw's did, and compares what the
// engine sends.
func (p *player) expect(r *recorded) {
	p.t.Helper()
	wr := provider.SendWR{Flags: provider.SendSignaled}
	switch r.op {
	case rdmap.OpReadResponse: // by itself
		p.want(r.op.String(), r.octets)
		return
	case rdmap.OpReadRequest:
		q := testkit.Must(rdmap.ParseReadRequest(r.payload))(p.t)
		wr.Opcode, wr.RKey, wr.RemoteAddr = provider.WRRDMARead, q.SourceSTag, q.SourceTO
		wr.SGList = []provider.SGE{{Addr: q.SinkTO, Length: q.Size, LKey: q.SinkSTag}}
		testkit.Must(p.qp.PostSend([]provider.SendWR{wr}))(p.t)
		p.want(r.op.String(), r.octets)
		return // the Read Response completes it
	case rdmap.OpWrite:
		wr.Opcode, wr.RKey, wr.RemoteAddr = provider.WRRDMAWrite, r.h.STag, r.h.TO
	case rdmap.OpSend:
		wr.Opcode = provider.WRSend
	default:
		p.t.Fatalf("%s in the capture", r.op)
	}
	wr.SGList = []provider.SGE{{Addr: p.send.Addr(),
		Length: uint32(copy(octetsOf(p.send), r.payload)), LKey: p.send.STag()}}
	testkit.Must(p.qp.PostSend([]provider.SendWR{wr}))(p.t)
	p.want(r.op.String(), r.octets)
	p.completion("our " + r.op.String())
	p.done++
}

// want reads what the engine sends and compares it.
func (p *player) want(what string, octets []byte) {
	p.t.Helper()
	got := make([]byte, len(octets))
	for n := 0; n < len(got); {
		m, err := p.peer.read(got[n:])
		if err != nil {
			p.t.Fatalf("%s: %v after %x", what, err, got[:n])
		}
		n += m
	}
	testkit.EqualBytes(p.t, what+": what the engine sends, and siw sent", got, octets)
}

// completion waits for one, which has to be a success.
func (p *player) completion(what string) provider.WC {
	p.t.Helper()
	var wc [1]provider.WC
	for range 100 {
		if n := testkit.Must(p.host.cq.Poll(wc[:]))(p.t); n > 0 {
			if wc[0].Status != provider.WCSuccess {
				p.t.Fatalf("%s: %+v, %v", what, wc[0], p.qp.Cause())
			}
			return wc[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.t.Fatalf("%s: no completion", what)
	return wc[0]
}
