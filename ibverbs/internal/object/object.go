// Package object has the common part of the handles of packages ibverbs and rdmacm: whether a
// handle is open, and what is still open on it.
//
// The objects of a device form a graph. A QP has as parents its PD, its two CQs and perhaps an SRQ
// and a CM id; a CQ has its context and its completion channel. A parent counts its children by
// kind, and refuses to close while it has one. The C libraries would at best return EBUSY without
// an explanation, and at worst crash.
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

// An Object is the lifetime of one handle. The zero Object is not usable before Open. An Object
// must not be copied.
//
// A connection has three Objects, so an Object is small: its name is made only when it is needed.
type Object struct {
	device string        // the device's name
	number atomic.Uint32 // on the device

	kind     Kind
	numbered atomic.Bool
	going    bool        // Close has begun: no child may be added; under mu
	closed   atomic.Bool // set under mu

	mu       sync.Mutex
	closing  sync.Mutex   // held through Close and Move, which wait for each other
	retired  func() error // closes the object with its last child
	parent   *Object      // the first parent
	others   *[]*Object   // the other parents, nil if there are none
	children [kinds]int32 // open children
	live     *live        // set in a context
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
	// Event channels of an rdmacm.Conn, a Listener or a Request. The program closes these, not the
	// channels.
	KindConn
	KindListener
	KindRequest
	kinds
)

// kindNames are the words for objects of a kind: many of them, one of them, and the C call that
// closes one. format is for an object with a number: the device's number for it or, if format has
// the device's name as well, the number among the objects of its kind.
var kindNames = [kinds]struct{ name, noun, format, closeOp string }{
	KindContext:      {"context", "", "", "ibv_close_device"}, // named after its device
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

// Describe sets the object's kind and its device's name.
func (o *Object) Describe(kind Kind, device string) { o.kind, o.device = kind, device }

// Number sets the object's number on its device. The number may change.
func (o *Object) Number(n uint32) {
	o.number.Store(n)
	o.numbered.Store(true)
}

// Open adds the object to its parents on behalf of the C call op. If one of them is closed or
// closing, Open fails with os.ErrClosed and adds nothing.
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

// counted reports whether this package numbers objects of the kind, because the device has no
// number for them that programs see.
func (o *Object) counted() bool {
	switch o.kind {
	case KindPD, KindCompChannel, KindCQ, KindSRQ:
		return true
	}
	return false
}

// Count returns a count with its noun: "1 send", "2 sends".
func Count[N int | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Abandon undoes Open for an object that could not be made.
func (o *Object) Abandon() {
	o.going = true
	o.closed.Store(true)
	o.leave()
}

// Become changes the kind of an object that has one parent and is not listed. No other call on the
// object may be under way.
func (o *Object) Become(kind Kind) {
	p := o.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	p.children[o.kind]--
	p.children[kind]++
	o.kind = kind
}

// Move replaces the parent from by to on behalf of op. do does the work; if it fails, Move changes
// nothing. A Close waits for Move.
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

// Close runs destroy once and removes the object from its parents. If the object has children,
// Close returns EBUSY and names them. If it is closed, Close returns nil. If destroy fails, the
// object stays open.
func (o *Object) Close(destroy func() error) error {
	o.closing.Lock()
	defer o.closing.Unlock()
	if o.closed.Load() {
		return nil
	}
	if err := o.closeRetired(); err != nil {
		return err
	}
	o.mu.Lock()
	if busy := o.openChildren(); busy != "" {
		o.mu.Unlock()
		do := "close what is open first"
		if o.kind == KindContext {
			do = "Context.WriteState lists what is open, and who made it after ibverbs.TraceObjects(true)"
		}
		return o.Errorf(kindNames[o.kind].closeOp, syscall.EBUSY, "still open on it: %s; %s", busy, do)
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

// Retire closes the object if it has no children; otherwise the last child's Close closes it. From
// then on no child may be added. If that later close fails, the object stays open, and Close of the
// context tries again.
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

// Name returns the object's name in errors: "qp 17", "cq 3 of siw0".
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
	return &provider.Error{Op: op, Object: name, Err: fmt.Errorf("%s: %w",
		fmt.Sprintf(format, args...), errno)}
}

// because is a cause, and the errno of the call after it.
type because struct {
	cause error
	errno syscall.Errno
}

// Because returns an error with the texts of cause and errno. It unwraps to both, first to errno,
// because Errno returns the first errno, and cause may have another.
func Because(cause error, errno syscall.Errno) error { return &because{cause, errno} }

// Error implements error.
func (e *because) Error() string {
	return strings.TrimSuffix(e.cause.Error(), ": "+e.errno.Error()) + ": " + e.errno.Error()
}

// Unwrap returns both errors.
func (e *because) Unwrap() []error { return []error{e.errno, e.cause} }

// Named returns err with name as the object if err is a provider's error that names none.
func Named(err error, name string) error {
	e, ok := err.(*provider.Error) // an error that wraps one has a text of its own
	if !ok || e.Object != "" {
		return err
	}
	named := *e
	named.Object = name
	return &named
}

// GaveUp returns err, the error of op on the object named name. If err is the error of the caller's
// context, GaveUp returns an error that says so, and which event did not happen before.
func GaveUp(ctx context.Context, op, name string, err error, until string) error {
	if err == nil || err != ctx.Err() { // an error that wraps it has its own text
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

// openChildren returns the text of Children. The caller holds mu.
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

// Functions of package ibverbs that package rdmacm uses and users do not see. Parameters of type
// any are pointers to types of package ibverbs, which this package cannot name. Package ibverbs
// sets the variables when it is initialised.
var (
	// Device returns the device of a non-nil *ibverbs.Context, and the context's lifetime.
	Device func(vctx any) (provider.Device, *Object)

	// CreateQP makes a QP as PD.CreateQP does, but through create. It makes owner a parent of the
	// QP, too.
	CreateQP func(op string, pd, init any, owner *Object,
		create func(provider.PD, provider.QPInitAttr) (provider.QP, error)) (qp any, err error)

	// RetirePD closes an *ibverbs.PD when its last MR is closed, at once if it has none.
	RetirePD func(pd any) error

	// TakeCQ makes Poll and PollWait of a non-nil *ibverbs.CQ return EBUSY and the text of why,
	// except through the CQTaker. owns reports which WRIDs are of work that the caller posts;
	// QP.Cause leaves these WRIDs out. EBUSY: the CQ has a taker already.
	TakeCQ func(cq any, why func() string, owns func(wrid uint64) bool) (CQTaker, error)

	// Polled returns EINVAL if Poll of an *ibverbs.CQ returns no completions, so that op cannot use
	// it.
	Polled func(cq any, op string) error

	// QP returns the provider's QP of a non-nil *ibverbs.QP.
	QP func(qp any) provider.QP

	// Mark sends an empty RDMA Write over a connected *ibverbs.QP, and waits for its completion,
	// which the program does not see.
	Mark func(ctx context.Context, qp any) error
)

// A CQTaker polls a CQ that the program may not poll.
type CQTaker interface {
	Poll(wc []provider.WC) (int, error)
	PollWait(ctx context.Context, wc []provider.WC) (int, error)
	Release() // the program may poll again
}
