package ibverbs_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A peer writes to a file directly: the region is the mapped file, and the file's program does
// nothing. On the engine PD.RegObject does the same for any object with ReadAt and WriteAt.
func ExamplePD_MapFile() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	file, err := os.CreateTemp("", "govs")
	check(err)
	defer os.Remove(file.Name())
	defer file.Close()
	_, err = file.WriteString("what is in the file\n")
	check(err)

	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		var mr *ibverbs.MR
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
				mr, err = c.PD().MapFile(file, 0, 20, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead)
				check(err)
				r, err := mr.Remote(0, 20)
				check(err)
				param.PrivateData, err = r.MarshalBinary()
				return err
			},
		})
		check(err)
		check(conn.Wait(ctx))
		check(conn.Close())
		check(mr.Close())
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	var r ibverbs.RemoteRegion
	data := conn.PrivateData() // RoCE pads it with zeros
	check(r.UnmarshalBinary(data[:min(len(data), ibverbs.RemoteRegionSize)]))
	mr, err := conn.PD().AllocMR(20, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	check(err)
	defer mr.Close()
	all, err := mr.SGE(0, 20)
	check(err)
	var wc [1]ibverbs.WC

	check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{all}, RemoteAddr: r.Addr, RKey: r.RKey}))
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Printf("read: %s", mr.Bytes())

	copy(mr.Bytes(), strings.ToUpper(string(mr.Bytes())))
	check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{all}, RemoteAddr: r.Addr, RKey: r.RKey}))
	check(conn.Shutdown(ctx))
	<-served
	b, err := os.ReadFile(file.Name())
	check(err)
	fmt.Printf("in the file: %s", b)
	// Output:
	// read: what is in the file
	// in the file: WHAT IS IN THE FILE
}
