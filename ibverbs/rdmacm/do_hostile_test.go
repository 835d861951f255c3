package rdmacm_test

import (
	"context"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
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
