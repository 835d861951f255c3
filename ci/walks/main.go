// Walks does one operation between two ends in this process, and writes to DIR, as coverage data,
// which functions ran. ARCHITECTURE.md walks through the operations; the package's test compares
// what ran with it.
//
//	go build -cover -covermode=atomic -coverpkg=github.com/govs-rdma/govs/... ./ci/walks
//	walks send|write|dial DIR && go tool covdata func -i DIR
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"runtime/coverage"
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: walks send|write|dial DIR")
	}
	device := must(ibverbs.Open(engine.New(nil), ""))
	e := &ends{device: device, ctx: context.Background()}
	e.listener = must(rdmacm.Listen(e.ctx, device, netip.MustParseAddrPort("127.0.0.1:0"), nil))
	walk := map[string]func(){"send": e.send, "write": e.write, "dial": e.dial}[os.Args[1]]
	if walk == nil {
		log.Fatalf("%s is no walk", os.Args[1])
	}
	walk()
	check(coverage.WriteMetaDir(os.Args[2]))
	check(coverage.WriteCountersDir(os.Args[2]))
}

// ends are two ends of a connection, and their memory.
type ends struct {
	ctx      context.Context
	device   *ibverbs.Context
	listener *rdmacm.Listener

	client, server *rdmacm.Conn
	from, to       *ibverbs.MR
}

// connect makes the connection. begin is called once the server waits for it.
func (e *ends) connect(begin func()) {
	accepted := make(chan *rdmacm.Conn)
	go func() { accepted <- must(must(e.listener.Accept(e.ctx)).Accept(e.ctx, nil)) }()
	begin()
	e.client = must(rdmacm.Dial(e.ctx, e.device, e.listener.Addr(), nil))
	e.server = <-accepted
	e.from = must(e.client.PD().AllocMR(64, ibverbs.AccessLocalWrite))
	e.to = must(e.server.PD().AllocMR(64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))
}

// dial is the walk of a connection, from Dial to the program's Conn.
func (e *ends) dial() { e.connect(func() { check(coverage.ClearCounters()) }) }

// send is the walk of a Send of 64 bytes, from the post to the peer's completion.
func (e *ends) send() {
	e.connect(func() {})
	post := func() {
		check(e.client.QP().PostSend(ibverbs.SendWR{
			Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge(e.from)},
		}))
		poll(e.server.RecvCQ())
		poll(e.client.SendCQ())
	}
	receive := func() {
		check(e.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge(e.to)}}))
	}
	receive()
	post() // what only the first one makes is not of the walk
	receive()
	check(coverage.ClearCounters())
	post()
}

// write is the walk of a Write of 64 bytes, from the post to the peer's memory and our completion.
func (e *ends) write() {
	e.connect(func() {})
	to := must(e.to.Remote(0, 64))
	last := (*uint32)(unsafe.Pointer(&e.to.Bytes()[60]))
	post := func(value byte) {
		e.from.Bytes()[60] = value
		check(e.client.QP().PostSend(ibverbs.SendWR{
			Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge(e.from)},
			RemoteAddr: to.Addr, RKey: to.RKey,
		}))
		var wc [1]ibverbs.WC
		for atomic.LoadUint32(last) != uint32(value) {
			must(e.server.RecvCQ().Poll(wc[:])) // receives; a Write completes nothing here
		}
		poll(e.client.SendCQ())
	}
	post(1)
	check(coverage.ClearCounters())
	post(2)
}

func sge(mr *ibverbs.MR) ibverbs.SGE { return must(mr.SGE(0, 64)) }

// poll polls until it has a completion, which must be a success.
func poll(cq *ibverbs.CQ) {
	var wc [1]ibverbs.WC
	for must(cq.Poll(wc[:])) == 0 {
	}
	if wc[0].Status != ibverbs.WCSuccess {
		log.Fatal(fmt.Sprint("a work request has failed: ", wc[0].Status))
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
