package rdmacm_test

import (
	"context"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// soon is a context for what has to happen without anybody's help.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(timeout(t), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestConnDoNamesTheCall: what the caller called is in the error.
func TestConnDoNamesTheCall(t *testing.T) {
	ctx := soon(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	from := sge(t, here, 0, 8)
	ok(t, a.Do(ctx, ibverbs.SendWR{}))
	over, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Conn.Do", func() error { return a.Do(over, ibverbs.NewRead(there, from)) }},
		{"Conn.Read", func() error { return a.Read(over, from, there) }},
		{"Conn.Write", func() error { return a.Write(over, there, from) }},
		{"Conn.Send", func() error { return a.Send(over, from) }},
	} {
		wantErr(t, c.name, c.call(), context.Canceled, c.name+" ", a.RemoteAddr().String())
	}
}

// TestConnDoEndedContext: a call whose context has ended already posts nothing.
func TestConnDoEndedContext(t *testing.T) {
	ctx := soon(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	mr, there := memory(t, b, 64)
	here.Bytes()[0] = 1
	ok(t, a.Read(ctx, sge(t, here, 8, 8), there))
	over, cancel := context.WithCancel(ctx)
	cancel()
	for range 20 {
		wantErr(t, "Write", a.Write(over, there, sge(t, here, 0, 8)), context.Canceled)
	}
	ok(t, a.Read(ctx, sge(t, here, 8, 8), there))
	if mr.Bytes()[0] != 0 {
		t.Error("the Write was done")
	}
}

// TestDoFullOfOthers: unsignalled work that the program has posted itself fills the queue, and stays
// there. The call ends with its context, and says so.
func TestDoFullOfOthers(t *testing.T) {
	ctx := soon(t)
	const places = 4
	var server *rdmacm.Conn
	_, server = pair(t, nil, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: places}})
	// The accepting side's work is held until the peer's first message.
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	for _, own := range []int{places, places - 1} {
		for range own {
			_ = server.QP().PostSend(empty)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		err := server.Do(short, empty, empty)
		wantErr(t, "a queue full of others' work", err, context.DeadlineExceeded, "Conn.Do")
		if ctx.Err() != nil {
			t.Fatal("not by its own context")
		}
	}
}
