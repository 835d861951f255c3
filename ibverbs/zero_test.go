package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// empties are the types whose values a program gets from a call, by package. A program may also
// have nil, of a call that failed, or the zero value, of a field that nobody set.
var empties = map[string][]any{
	".": {&ibverbs.Context{}, &ibverbs.PD{}, &ibverbs.CQ{}, &ibverbs.CompChannel{}, &ibverbs.QP{},
		&ibverbs.SRQ{}, &ibverbs.MR{}, &ibverbs.MW{}, &ibverbs.Pool{},
		&ibverbs.PoolBuf{}},
	"rdmacm": {&rdmacm.EventChannel{}, &rdmacm.ID{}, &rdmacm.Event{}, &rdmacm.Conn{},
		&rdmacm.Listener{}, &rdmacm.Request{}, &rdmacm.Receiver{}, &rdmacm.Message{}},
	"rsocket": {&rsocket.Conn{}, &rsocket.Listener{}, &rsocket.Dialer{}, &rsocket.ListenConfig{}},
}

// functions are the functions that take one of these.
var functions = map[string]map[string]any{
	".": {"Open": ibverbs.Open},
	"rdmacm": {"CreateEventChannel": rdmacm.CreateEventChannel, "Dial": rdmacm.Dial, "DialName": rdmacm.DialName,
		"Listen": rdmacm.Listen, "ListenName": rdmacm.ListenName, "NewReceiver": rdmacm.NewReceiver,
		"NewSRQReceiver": rdmacm.NewSRQReceiver},
	"rsocket": {"Dial": rsocket.Dial, "Listen": rsocket.Listen},
}

// emptyCalls are the calls that a nil or zero value need not refuse: they have nothing to do.
var emptyCalls = []string{"Close", "Cause", "Wait", "Err"}

// saying are words of which each error has one.
var saying = []string{"nil", "zero", "closed", "has been answered"}

// TestNilAndZeroValues calls each method of each object, nil and zero, with arguments that are nil
// or zero, and with others: an error says what is wrong, and no call panics or waits.
func TestNilAndZeroValues(t *testing.T) {
	for folder, list := range empties {
		for _, zero := range list {
			typ := reflect.TypeOf(zero)
			for i := range typ.NumMethod() {
				m := typ.Method(i)
				for _, value := range []string{"nil", "zero"} {
					if _, ofValue := typ.Elem().MethodByName(m.Name); ofValue && value == "nil" {
						continue // Go itself panics
					}
					for _, args := range []string{"zero", "some"} {
						recv := reflect.Zero(typ)
						if value == "zero" {
							recv = reflect.New(typ.Elem())
						}
						what := fmt.Sprintf("%s: %s %s.%s with %s arguments", folder, value, typ, m.Name, args)
						callEmpty(t, what, recv.Method(i), args == "some", slices.Contains(emptyCalls, m.Name))
					}
				}
			}
		}
	}
	for _, closed := range closedObjects(t) {
		typ := reflect.TypeOf(closed)
		for i := range typ.NumMethod() {
			name := typ.Method(i).Name
			for _, args := range []string{"zero", "some"} {
				what := fmt.Sprintf("closed %s.%s with %s arguments", typ, name, args)
				callEmpty(t, what, reflect.ValueOf(closed).Method(i), args == "some", slices.Contains(emptyCalls, name))
			}
		}
	}
	for folder, list := range functions {
		for name, f := range list {
			for _, args := range []string{"zero", "some"} {
				what := fmt.Sprintf("%s: %s with %s arguments", folder, name, args)
				callEmpty(t, what, reflect.ValueOf(f), args == "some", false)
			}
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
	var receiver *rdmacm.Receiver
	conn := testkit.Must(rdmacm.Dial(ctx, vctx, listener.Addr(), &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			receiver, err = rdmacm.NewReceiver(c, 1, 64)
			return err
		}}))(t)
	a := <-served
	testkit.OK(t, a.err)

	streams := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", "127.0.0.1:0"))(t)
	other := make(chan net.Conn, 1)
	go func() {
		c, _ := streams.Accept()
		other <- c
	}()
	stream := testkit.Must(rsocket.Dial(ctx, vctx, "tcp", streams.Addr().String()))(t)
	closed := []any{qp, srq, cq, ch, mr, mw, &buf, pool, pd, id, events, receiver, conn, a.conn, a.req, listener, stream, streams, vctx}
	testkit.OK(t, (<-other).Close())
	for _, o := range closed {
		switch o := o.(type) {
		case *ibverbs.PoolBuf:
			testkit.OK(t, o.Release())
		case *rdmacm.Receiver:
			testkit.OK(t, conn.Close()) // which closes it
		case io.Closer:
			testkit.OK(t, o.Close())
		}
	}
	return closed
}

// callEmpty calls f. Its error, if it has one, has to be there, unless nothing is right, too.
func callEmpty(t *testing.T, what string, f reflect.Value, some, nothingIsRight bool) {
	t.Helper()
	in := arguments(t, f.Type(), some)
	type outcome struct {
		results  []reflect.Value
		panicked any
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			o.panicked = recover()
			done <- o
		}()
		o.results = f.Call(in)
	}()
	var o outcome
	select {
	case o = <-done:
	case <-time.After(patience):
		t.Errorf("%s does not return", what)
		return
	}
	if o.panicked != nil {
		t.Errorf("%s panics: %v", what, o.panicked)
		return
	}
	for _, r := range o.results {
		if r.Type() != reflect.TypeFor[error]() {
			continue
		}
		err, _ := r.Interface().(error)
		switch {
		case err == nil && nothingIsRight:
		case err == nil:
			t.Errorf("%s returns no error", what)
		case !errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed):
			t.Errorf("%s: %v, want one that is EINVAL or os.ErrClosed", what, err)
		case strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error has several lines: %v", what, err)
		case !slices.ContainsFunc(saying, func(word string) bool { return strings.Contains(err.Error(), word) }):
			t.Errorf("%s: %v, want an error that says that the value is nil, zero or closed", what, err)
		}
	}
}

// arguments are those of a call: zero values, or some others.
func arguments(t *testing.T, f reflect.Type, some bool) []reflect.Value {
	var in []reflect.Value
	for i := range f.NumIn() {
		if f.IsVariadic() && i == f.NumIn()-1 {
			if some {
				in = append(in, argument(t, f.In(i).Elem(), true))
			}
			continue
		}
		in = append(in, argument(t, f.In(i), some))
	}
	return in
}

func argument(t *testing.T, typ reflect.Type, some bool) reflect.Value {
	switch typ {
	case reflect.TypeFor[context.Context]():
		return reflect.ValueOf(t.Context())
	case reflect.TypeFor[io.Writer]():
		return reflect.ValueOf(io.Discard)
	case reflect.TypeFor[io.Reader]():
		return reflect.ValueOf(strings.NewReader("text"))
	}
	if !some {
		return reflect.Zero(typ)
	}
	switch typ.Kind() {
	case reflect.Slice:
		return reflect.MakeSlice(typ, 8, 8)
	case reflect.Pointer:
		return reflect.New(typ.Elem())
	case reflect.Int, reflect.Int64:
		return reflect.ValueOf(1).Convert(typ)
	case reflect.String:
		return reflect.ValueOf("127.0.0.1:1").Convert(typ)
	}
	return reflect.Zero(typ)
}

// TestNilAndZeroValuesAreAll: the test above has all types with methods that can fail, and all
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
		known["GetAddrInfo"] = true  // whose hints may be nil
		known["RemoteRegion"] = true // a plain value, whose zero is a region of no length
		for _, name := range fallible(t, folder) {
			if !known[name] {
				t.Errorf("%s: %s is not in the test", folder, name)
			}
		}
	}
}

// fallible returns the exported types that have a method on a pointer with an error, and the
// exported functions with a parameter that is a pointer and an error.
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
