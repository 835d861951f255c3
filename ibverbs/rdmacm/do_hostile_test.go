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

// TestConnDoOnSendPanics: a program that recovers from a panic of its OnSend goes on, whether that
// came while a call waited for its work or for places, or posted.
func TestConnDoOnSendPanics(t *testing.T) {
	ctx := soon(t)
	const places = 4
	bad := true
	a, b := pair(t, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: places},
		OnSend: func(*ibverbs.WC) {
			if bad {
				panic("OnSend")
			}
		},
	}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	read := ibverbs.NewRead(there, sge(t, here, 0, 64))
	for own := range places + 1 {
		bad = true
		for range own {
			ok(t, a.QP().PostSend(read))
		}
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != (own > 0) {
					t.Errorf("%d of the program's own: panic %v", own, panicked)
				}
			}()
			_ = a.Do(ctx, read, read)
		}()
		bad = false
		for range 3 { // all places are there
			if err := a.Do(ctx, read, read, read, read); err != nil {
				t.Fatalf("after a panic with %d of the program's own: %v", own, err)
			}
		}
	}
}
