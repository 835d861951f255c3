package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Empty calls all methods of values that can't be used. If a method returns an error, the error
// must say what is wrong with the value. It must be EINVAL, unless the value is closed. No call may
// panic or wait.
type Empty struct {
	Patience time.Duration // of a call

	// Fine are the names of methods that may succeed, because they have nothing to do.
	Fine []string
}

// saying has words; each error must have one of them.
var saying = []string{"nil", "zero", "closed", "has been answered"}

// What the errors of values are. A closed value may find another fault first.
var (
	neverUsable = []error{syscall.EINVAL}
	wasClosed   = []error{syscall.EINVAL, os.ErrClosed, net.ErrClosed}
)

// Zeros calls the methods of the zero value of each type, given by a pointer to a value, and of a
// nil pointer, unless the type is an error, because nobody gets a nil pointer as an error.
func (e *Empty) Zeros(t testing.TB, pointers ...any) {
	t.Helper()
	for _, p := range pointers {
		typ := reflect.TypeOf(p)
		e.methods(t, "zero", reflect.New(typ.Elem()), neverUsable)
		if !typ.Implements(reflect.TypeFor[error]()) {
			e.methods(t, "nil", reflect.Zero(typ), neverUsable)
		}
	}
}

// Closed calls the methods of each value.
func (e *Empty) Closed(t testing.TB, values ...any) {
	t.Helper()
	for _, v := range values {
		e.methods(t, "closed", reflect.ValueOf(v), wasClosed)
	}
}

func (e *Empty) methods(t testing.TB, what string, v reflect.Value, errs []error) {
	t.Helper()
	for i := range v.NumMethod() {
		m := v.Type().Method(i)
		if v.Kind() == reflect.Pointer && v.IsNil() {
			if _, ofValue := v.Type().Elem().MethodByName(m.Name); ofValue {
				continue // Go itself panics
			}
		}
		fine := m.Name == "Unwrap" || slices.Contains(e.Fine, m.Name)
		e.call(t, fmt.Sprintf("%s %s.%s", what, v.Type(), m.Name), v.Method(i), fine, errs)
	}
}

// Func calls a function, which returns an error, with nil and zero arguments.
func (e *Empty) Func(t testing.TB, name string, f any) {
	t.Helper()
	e.call(t, name, reflect.ValueOf(f), false, neverUsable)
}

// call calls f with arguments that are zero, and with others.
func (e *Empty) call(t testing.TB, what string, f reflect.Value, fine bool, errs []error) {
	t.Helper()
	e.callWith(t, what+" with zero arguments", f, arguments(t, f.Type(), false), fine, errs)
	e.callWith(t, what+" with some arguments", f, arguments(t, f.Type(), true), fine, errs)
}

func (e *Empty) callWith(t testing.TB, what string, f reflect.Value, in []reflect.Value, fine bool,
	errs []error) {
	t.Helper()
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
	case <-time.After(e.Patience):
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
		case err == nil && fine:
		case err == nil:
			t.Errorf("%s returns no error", what)
		case !slices.ContainsFunc(errs, func(target error) bool { return errors.Is(err, target) }):
			t.Errorf("%s: %v, want one that is one of %v", what, err, errs)
		case strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error has several lines: %v", what, err)
		case !slices.ContainsFunc(saying, func(word string) bool { return strings.Contains(err.Error(), word) }):
			t.Errorf("%s: %v, want an error that says that the value is nil, zero or closed", what, err)
		}
	}
}

// arguments returns the arguments of a call: zero values, or some others.
func arguments(t testing.TB, f reflect.Type, some bool) []reflect.Value {
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

func argument(t testing.TB, typ reflect.Type, some bool) reflect.Value {
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
