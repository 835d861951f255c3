// Package object holds what the handles of packages ibverbs and rdmacm have in
// common: whether one is open, and what is still open on it.
//
// The objects of a device form a graph: a QP hangs on its PD, its two CQs and
// perhaps an SRQ and a CM id, a CQ on its context and its completion channel. A parent
// knows how many children of which kind it has, and refuses to close while
// there is one; the C libraries would return EBUSY without a word at best, and
// crash at worst.
package object

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// An Object is the lifetime of one handle. The zero Object is of no use; Open
// makes it one. It must not be copied.
//
// There are three of them per connection, so that it is small: what it is called
// is put together when somebody asks.
type Object struct {
	device string        // whose it is
	number atomic.Uint32 // on the device

	kind     Kind
	numbered atomic.Bool
	going    bool        // Close has begun: nothing may be added; under mu
	closed   atomic.Bool // set under mu

	mu       sync.Mutex
	closing  sync.Mutex   // held through Close and Move, so that each waits for the other
	retired  func() error // what closes the object with its last child
	parent   *Object      // the first of them
	others   *[]*Object   // its other parents, nil without any
	children [kinds]int32 // open ones
	live     *live        // of a context
}

// Kind is what an Object is.
type Kind uint8

// The kinds of objects.
const (
	KindContext Kind = iota
	KindPD
	KindMR
	KindMW
	KindCompChannel
	KindCQ
	KindSRQ
	KindQP
	KindEventChannel
	KindID
	// Event channels that belong to an rdmacm.Conn, a Listener or a Request: what the program
	// closes is that.
	KindConn
	KindListener
	KindRequest
	kinds
)

// kindNames are what objects of a kind are called: many of them, one of them, and
// the C call that closes one. format is for an object with a number: that of the device, or, if
// it has the device's name as well, the number of the object among those of its kind.
var kindNames = [kinds]struct{ name, noun, format, closeOp string }{
	KindContext:      {"context", "", "", "ibv_close_device"}, // goes by the name of its device
	KindPD:           {"PD", "pd", "pd %d of %s", "ibv_dealloc_pd"},
	KindMR:           {"MR", "mr", "mr %#x", "ibv_dereg_mr"},
	KindMW:           {"MW", "mw", "mw %#x", "ibv_dealloc_mw"},
	KindCompChannel:  {"completion channel", "completion channel", "completion channel %d of %s", "ibv_destroy_comp_channel"},
	KindCQ:           {"CQ", "cq", "cq %d of %s", "ibv_destroy_cq"},
	KindSRQ:          {"SRQ", "srq", "srq %d of %s", "ibv_destroy_srq"},
	KindQP:           {"QP", "qp", "qp %d", "ibv_destroy_qp"},
	KindEventChannel: {"CM event channel", "event channel", "", "rdma_destroy_event_channel"},
	KindID:           {"CM id", "cm id", "", "rdma_destroy_id"},
	KindConn:         {"Conn", "event channel", "", "rdma_destroy_event_channel"},
	KindListener:     {"Listener", "event channel", "", "rdma_destroy_event_channel"},
	KindRequest:      {"Request", "event channel", "", "rdma_destroy_event_channel"},
}

// Describe says what the object is, and of which device.
func (o *Object) Describe(kind Kind, device string) { o.kind, o.device = kind, device }

// Number gives the object the number that it has on its device. It may change.
func (o *Object) Number(n uint32) {
	o.number.Store(n)
	o.numbered.Store(true)
}

// Open enters the object with its parents on behalf of the C call op. It fails
// with os.ErrClosed, and enters nothing, if one of them is closed or closing.
func (o *Object) Open(op string, parents ...*Object) error {
	for i, p := range parents {
		if !p.add(o.kind) {
			for _, q := range parents[:i] {
				q.drop(o.kind)
			}
			return &provider.Error{Op: op, Object: p.Name(), Err: os.ErrClosed}
		}
	}
	if len(parents) > 0 {
		o.parent = parents[0]
	}
	if len(parents) > 1 {
		others := slices.Clone(parents[1:])
		o.others = &others
	}
	if o.counted() {
		if l := o.list(); l != nil {
			o.Number(l.count(o.kind))
		}
	}
	return nil
}

// counted reports whether objects of the kind are numbered here, because the device has no number
// for them that programs see.
func (o *Object) counted() bool {
	switch o.kind {
	case KindPD, KindCompChannel, KindCQ, KindSRQ:
		return true
	}
	return false
}

// Count says how many of a noun there are: "1 send", "2 sends".
func Count[N int | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Abandon undoes Open for an object that could not be made after all.
func (o *Object) Abandon() {
	o.going = true
	o.closed.Store(true)
	o.leave()
}

// Become makes the object, which has one parent and is not listed, one of another kind. No other
// call on it may be under way.
func (o *Object) Become(kind Kind) {
	p := o.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	p.children[o.kind]--
	p.children[kind]++
	o.kind = kind
}

// Move replaces the parent from by to on behalf of op. do is the work itself;
// if it fails nothing is moved. A Close waits for it.
func (o *Object) Move(op string, from, to *Object, do func() error) error {
	o.closing.Lock()
	defer o.closing.Unlock()
	if err := o.Check(op); err != nil {
		return err
	}
	if !to.add(o.kind) {
		return &provider.Error{Op: op, Object: to.Name(), Err: os.ErrClosed}
	}
	if err := do(); err != nil {
		to.drop(o.kind)
		return err
	}
	o.mu.Lock()
	if o.parent == from {
		o.parent = to
	} else if o.others != nil {
		if i := slices.Index(*o.others, from); i >= 0 {
			(*o.others)[i] = to
		}
	}
	o.mu.Unlock()
	from.drop(o.kind)
	return nil
}

// Close runs destroy once and takes the object from its parents. With children
// it is EBUSY and names them; a closed object returns nil. If destroy fails
// the object stays open.
func (o *Object) Close(destroy func() error) error {
	o.closing.Lock()
	defer o.closing.Unlock()
	if o.closed.Load() {
		return nil
	}
	o.mu.Lock()
	if busy := o.openChildren(); busy != "" {
		o.mu.Unlock()
		if o.kind == KindContext {
			busy += "; Context.WriteState lists what is open, and who made it after ibverbs.TraceObjects(true)"
		}
		return o.Errorf(kindNames[o.kind].closeOp, syscall.EBUSY, "still open on it: %s", busy)
	}
	o.going = true
	o.mu.Unlock()

	if err := destroy(); err != nil {
		o.mu.Lock()
		o.going = false
		o.mu.Unlock()
		return err
	}
	o.closed.Store(true)
	o.leave()
	return nil
}

// Retire closes the object if it has no children, and otherwise has the last of
// them close it. Nothing may be added any more. A failure that no caller sees leaves the
// object open, where its parents' Close reports it.
func (o *Object) Retire(destroy func() error) error {
	o.mu.Lock()
	if o.openChildren() != "" {
		o.going, o.retired = true, destroy
		o.mu.Unlock()
		return nil
	}
	o.mu.Unlock()
	return o.Close(destroy)
}

// Closed reports whether Close has succeeded.
func (o *Object) Closed() bool { return o.closed.Load() }

// Name returns what the object is called in errors: "qp 17", "cq 3 of siw0".
func (o *Object) Name() string {
	names := &kindNames[o.kind]
	switch {
	case o.numbered.Load() && o.counted():
		return fmt.Sprintf(names.format, o.number.Load(), o.device)
	case o.numbered.Load():
		return fmt.Sprintf(names.format, o.number.Load())
	case names.noun == "":
		return o.device
	}
	return names.noun + " of " + o.device
}

// Check returns the error of calling op on a closed object.
func (o *Object) Check(op string) error {
	if o.closed.Load() {
		return &provider.Error{Op: op, Object: o.Name(), Err: os.ErrClosed}
	}
	return nil
}

// Errorf returns a failure of op on the object that unwraps to errno.
func (o *Object) Errorf(op string, errno syscall.Errno, format string, args ...any) error {
	return Errorf(op, o.Name(), errno, format, args...)
}

// Errorf returns a failure of op that unwraps to errno and says more.
func Errorf(op, name string, errno syscall.Errno, format string, args ...any) error {
	return &provider.Error{Op: op, Object: name, Err: fmt.Errorf("%w: %s", errno, fmt.Sprintf(format, args...))}
}

// GaveUp returns err, the error of op on the object named name, or if err is that of the
// caller's context, one that says so and what was not waited for any longer.
func GaveUp(ctx context.Context, op, name string, err error, until string) error {
	if err == nil || err != ctx.Err() { // what wraps it has a text of its own
		return err
	}
	return &provider.Error{Op: op, Object: name, Err: fmt.Errorf("the caller's context ended before %s: %w", until, err)}
}

func (o *Object) add(kind Kind) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.going {
		return false
	}
	o.children[kind]++
	return true
}

func (o *Object) drop(kind Kind) {
	o.mu.Lock()
	o.children[kind]--
	destroy := o.retired
	if destroy != nil && o.openChildren() != "" {
		destroy = nil
	}
	o.mu.Unlock()
	if destroy != nil {
		_ = o.Close(destroy)
	}
}

func (o *Object) leave() {
	o.unlist()
	o.mu.Lock()
	parent, others := o.parent, o.others
	o.parent, o.others = nil, nil
	o.mu.Unlock()
	if parent != nil {
		parent.drop(o.kind)
	}
	if others != nil {
		for _, p := range *others {
			p.drop(o.kind)
		}
	}
}

// Children returns what is open on the object: "1 QP, 2 MR", empty if nothing is.
func (o *Object) Children() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.openChildren()
}

// openChildren is Children. mu is held.
func (o *Object) openChildren() string {
	var list []string
	for kind, n := range o.children {
		switch {
		case n == 1:
			list = append(list, "1 "+kindNames[kind].name)
		case n > 1:
			list = append(list, strconv.Itoa(int(n))+" "+kindNames[kind].name+"s")
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
