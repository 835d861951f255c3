package ibverbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// empties are the types whose values a program gets from a call, by package. A program may also
// have nil, after a failed call, or the zero value, in a field that was not set.
var empties = map[string][]any{
	".": {&ibverbs.Context{}, &ibverbs.PD{}, &ibverbs.CQ{}, &ibverbs.CompChannel{}, &ibverbs.QP{},
		&ibverbs.SRQ{}, &ibverbs.MR{}, &ibverbs.MW{}, &ibverbs.Pool{},
		&ibverbs.PoolBuf{}},
	"rdmacm": {&rdmacm.EventChannel{}, &rdmacm.ID{}, &rdmacm.Event{}, &rdmacm.Conn{},
		&rdmacm.Listener{}, &rdmacm.Request{}, &rdmacm.Receiver{}, &rdmacm.Message{}},
	"rsocket": {&rsocket.Conn{}, &rsocket.Listener{}, &rsocket.Dialer{}, &rsocket.ListenConfig{}},
}

// functions are the functions with a parameter of such a type.
var functions = map[string]map[string]any{
	".": {"Open": ibverbs.Open},
	"rdmacm": {"CreateEventChannel": rdmacm.CreateEventChannel, "Dial": rdmacm.Dial, "DialName": rdmacm.DialName,
		"Listen": rdmacm.Listen, "ListenName": rdmacm.ListenName, "NewSRQReceiver": rdmacm.NewSRQReceiver},
	"rsocket": {"Dial": rsocket.Dial, "Listen": rsocket.Listen},
}

// TestNilAndZeroValues calls each method of each object, nil, zero and closed, with arguments that
// are nil or zero, and with others. An error says what is wrong, and no call panics or waits.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: patience, Fine: []string{"Close", "Cause", "Wait", "Err"}}
	for _, list := range empties {
		empty.Zeros(t, list...)
	}
	empty.Closed(t, closedObjects(t)...)
	for folder, list := range functions {
		for name, f := range list {
			empty.Func(t, folder+": "+name, f)
		}
	}
}

// closedObjects returns one of each object, made on the engine and closed.
func closedObjects(t *testing.T) []any {
	ctx := t.Context()
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	cq := testkit.Must(vctx.CreateCQ(8, &ibverbs.CQOptions{Channel: ch}))(t)
	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 1, MaxSGE: 1}}))(t)
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	receiver := testkit.Must(rdmacm.NewSRQReceiver(srq, cq, 1, 64))(t)
	mr := testkit.Must(pd.RegMR(make([]byte, 64), ibverbs.AccessLocalWrite))(t)
	mw := testkit.Must(pd.AllocMW(ibverbs.MWType1))(t)
	pool := testkit.Must(pd.NewPool(ibverbs.AccessLocalWrite, []ibverbs.PoolClass{{Size: 64, Count: 1}}))(t)
	buf := testkit.Must(pool.Get(64))(t)
	events := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	id := testkit.Must(events.CreateID(nil))(t)

	listener := testkit.Must(rdmacm.ListenName(ctx, vctx, "127.0.0.1:0", nil))(t)
	type accepted struct {
		req  *rdmacm.Request
		conn *rdmacm.Conn
		err  error
	}
	served := make(chan accepted, 1)
	go func() {
		var a accepted
		if a.req, a.err = listener.Accept(ctx); a.err == nil {
			a.conn, a.err = a.req.Accept(ctx, nil)
		}
		served <- a
	}()
	conn := testkit.Must(rdmacm.Dial(ctx, vctx, listener.Addr(), &rdmacm.ConnConfig{Receives: 1, ReceiveSize: 64}))(t)
	a := <-served
	testkit.OK(t, a.err)

	streams := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", "127.0.0.1:0"))(t)
	other := make(chan net.Conn, 1)
	go func() {
		c, _ := streams.Accept()
		other <- c
	}()
	stream := testkit.Must(rsocket.Dial(ctx, vctx, "tcp", streams.Addr().String()))(t)
	closed := []any{receiver, qp, srq, cq, ch, mr, mw, &buf, pool, pd, id, events, conn,
		a.conn, a.req, listener, stream, streams, vctx}
	testkit.OK(t, (<-other).Close())
	for _, o := range closed {
		switch o := o.(type) {
		case *ibverbs.PoolBuf:
			testkit.OK(t, o.Release())
		case io.Closer:
			testkit.OK(t, o.Close())
		}
	}
	return closed
}

// TestNilAndZeroValuesAreAll: the test above covers all types with methods that can fail, and all
// functions that take one of them.
func TestNilAndZeroValuesAreAll(t *testing.T) {
	for folder := range empties {
		known := map[string]bool{}
		for _, zero := range empties[folder] {
			known[reflect.TypeOf(zero).Elem().Name()] = true
		}
		for name := range functions[folder] {
			known[name] = true
		}
		known["GetAddrInfo"] = true  // its hints may be nil
		known["RemoteRegion"] = true // a plain value, whose zero is a region of no length
		for _, name := range fallible(t, folder) {
			if !known[name] {
				t.Errorf("%s: %s is not in the test", folder, name)
			}
		}
	}
}

// fallible returns the exported types that have a method with a pointer receiver that returns an
// error. It also returns the exported functions that have a pointer parameter and return an error.
func fallible(t *testing.T, folder string) []string {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || !fails(f) {
				continue
			}
			if f.Recv == nil {
				if takesPointer(f) {
					found[f.Name.Name] = true
				}
				continue
			}
			star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			if name := star.X.(*ast.Ident); name.IsExported() && f.Name.Name != "Unwrap" {
				found[name.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func fails(f *ast.FuncDecl) bool {
	if f.Type.Results == nil {
		return false
	}
	for _, r := range f.Type.Results.List {
		if id, ok := r.Type.(*ast.Ident); ok && id.Name == "error" {
			return true
		}
	}
	return false
}

func takesPointer(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		_, ok := p.Type.(*ast.StarExpr)
		return ok
	})
}
