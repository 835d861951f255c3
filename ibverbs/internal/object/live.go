package object

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Stacks makes List record the stack of the goroutine that made the object.
var Stacks atomic.Bool

// describers return the line of an open object in a dump of its context. The packages that define
// the kinds of handles set the functions when they are initialised.
var describers [kinds]func(handle any) string

// Describes sets f to describe the handles of a kind.
func Describes(kind Kind, f func(handle any) string) { describers[kind] = f }

// live is the list of a context's open objects. Each connection has two, so entries are small.
type live struct {
	mu      sync.Mutex
	handles map[*Object]any
	stacks  map[*Object]string
	counts  [kinds]uint32 // how many were ever made
}

// count returns the number of a new object among the objects of its kind, from 1.
func (l *live) count(kind Kind) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind]++
	return l.counts[kind]
}

// Entry is an open object.
type Entry struct {
	Kind        Kind
	Description string
	Stack       string // of the goroutine that made it; empty if Stacks was not set
}

// Root gives o, a context, the list of what is open on it.
func (o *Object) Root() {
	o.live = &live{handles: make(map[*Object]any), stacks: make(map[*Object]string)}
}

// List adds the object, after Open, to the list of its context, until it is closed.
func (o *Object) List(handle any) {
	l := o.list()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.closed.Load() {
		return // before it was listed
	}
	l.handles[o] = handle
	if Stacks.Load() {
		l.stacks[o] = callers()
	}
}

// callers returns the stack of this goroutine from the program's call of this library on: for each
// frame a line with the function, and a line with the file and line number.
func callers() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var own, all strings.Builder
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); f.Function == "" {
			continue
		}
		b := &all
		if all.Len() == 0 && isOurs(f.Function) {
			b = &own
		}
		fmt.Fprintf(b, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
	}
	if all.Len() == 0 { // a goroutine of this library
		return own.String()
	}
	return all.String()
}

// isOurs reports whether a function is one of this library, and neither an example nor a test.
func isOurs(function string) bool {
	rest, ours := strings.CutPrefix(function, "github.com/govs-rdma/govs/ibverbs")
	if !ours {
		return false
	}
	for _, pkg := range []string{".", "/rdmacm.", "/rsocket.", "/internal/object."} {
		if strings.HasPrefix(rest, pkg) {
			return true
		}
	}
	return false
}

// list returns the list that o is in, nil without one.
func (o *Object) list() *live {
	for o != nil && o.live == nil {
		o.mu.Lock()
		parent := o.parent
		o.mu.Unlock()
		o = parent
	}
	if o == nil {
		return nil
	}
	return o.live
}

// closeRetired closes what is retired on o, a context, and could not be closed with its last child.
func (o *Object) closeRetired() error {
	if o.live == nil {
		return nil
	}
	o.live.mu.Lock()
	open := slices.Collect(maps.Keys(o.live.handles))
	o.live.mu.Unlock()
	var errs []error
	for _, child := range open {
		child.mu.Lock()
		destroy := child.retired
		if child.openChildren() != "" {
			destroy = nil
		}
		child.mu.Unlock()
		if destroy != nil {
			errs = append(errs, child.Close(destroy))
		}
	}
	return errors.Join(errs...)
}

// unlist removes o, which is closed, from the list. Its parents must still be known.
func (o *Object) unlist() {
	if l := o.list(); l != nil {
		l.mu.Lock()
		delete(l.handles, o)
		delete(l.stacks, o)
		l.mu.Unlock()
	}
}

// Live returns what is open on o, a context, ordered by kind and description. It describes
// the objects without a lock.
func (o *Object) Live() []Entry {
	l := o.live
	if l == nil {
		return nil
	}
	l.mu.Lock()
	list := make([]Entry, 0, len(l.handles))
	handles := make([]any, 0, len(l.handles))
	for obj, handle := range l.handles {
		list = append(list, Entry{Kind: obj.kind, Stack: l.stacks[obj]})
		handles = append(handles, handle)
	}
	l.mu.Unlock()
	for i, handle := range handles {
		list[i].Description = describers[list[i].Kind](handle)
	}
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Description, b.Description))
	})
	return list
}
