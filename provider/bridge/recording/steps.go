package recording

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// A Step is an entry without what differs from run to run.
type Step struct {
	Thread int    // 1 for the thread that calls first, and so on
	Name   string // file and command, with a dot between
	Fields []Field
}

// A Field is a value of a step: a number, bytes, or the name of an object, such as qp#1 for the
// handle of the program's first QP.
type Field struct {
	Name  string
	Value string
}

func (s *Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%d] %s", s.Thread, s.Name)
	for _, f := range s.Fields {
		fmt.Fprintf(&b, " %s=%s", f.Name, f.Value)
	}
	return b.String()
}

// Steps returns the entries, grouped by thread, without what differs from run to run:
//
//   - Handles, numbers of QPs, STags, addresses of IP and of memory, ports, descriptors and GUIDs
//     are replaced by names. These show which values are equal, but not the values.
//   - Repeated identical doorbells count as one. libsiw rings none if siw is at work.
//   - The number of a CQ's events becomes "any" if it has a channel. Completions that come soon
//     after each other raise one event, and a program that finds a completion without waiting gets
//     no event.
//   - The number of events that DESTROY_ID reports becomes "all" if the program has received that
//     many. The event DISCONNECTED is left out, because a program may destroy the id before it
//     comes.
//   - The uid of an event becomes "its" if it is the id's.
//   - GET_EVENT calls that found nothing are left out. So are ioctls, because the bridge's library
//     refuses them without asking the bridge.
//   - Netlink messages have neither sequence numbers nor the number of the socket.
func (r *Recording) Steps() ([]Step, error) {
	threads := map[int]int{} // in order of first calls; thread numbers wrap around
	for _, e := range r.Entries {
		if threads[e.Thread] == 0 {
			threads[e.Thread] = len(threads) + 1
		}
	}
	events := r.countEvents()
	var raw []rawStep
	names := naming{objects: map[string]*object{}, silent: map[uint32]bool{}}
	for i := range r.Entries {
		e := &r.Entries[i]
		s, err := names.step(e)
		if err != nil {
			return nil, fmt.Errorf("recording: entry %d: %w", i+1, err)
		}
		s.use(events[i])
		s.thread = threads[e.Thread]
		if e.Op != Ioctl && !events[i].left && (s.name != "rdma_cm.get_event" ||
			e.Errno != syscall.EAGAIN) {
			raw = append(raw, s)
		}
	}
	slices.SortStableFunc(raw, func(a, b rawStep) int { return cmp.Compare(a.thread, b.thread) })
	var steps []Step
	count := map[string]int{}
	for _, s := range raw {
		step := Step{Thread: s.thread, Name: s.name}
		for _, f := range s.fields {
			step.Fields = append(step.Fields, Field{f.name, f.print(count)})
		}
		if n := len(steps); s.name == "uverbs.post_send" && n > 0 &&
			reflect.DeepEqual(steps[n-1], step) {
			continue
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// object is an object that a value stands for in the program, until the value is given to another
// object.
type object struct {
	kind  string
	index int // 0 until it is printed
}

// rawField is a field whose objects are not numbered yet.
type rawField struct {
	name string
	// The value, as a sequence of texts and objects.
	parts []any
}

type rawStep struct {
	thread int
	name   string
	fields []rawField
}

func (f *rawField) print(count map[string]int) string {
	var b strings.Builder
	for _, p := range f.parts {
		o, ok := p.(*object)
		if !ok {
			fmt.Fprint(&b, p)
			continue
		}
		if o.index == 0 {
			count[o.kind]++
			o.index = count[o.kind]
		}
		fmt.Fprintf(&b, "%s#%d", o.kind, o.index)
	}
	return b.String()
}

// naming maps values to the objects that they stand for.
type naming struct {
	objects   map[string]*object // by kind and value
	silent    map[uint32]bool    // handles of CQs without a channel, which have no events
	destroyed uint32             // the CQ of the DESTROY_CQ that is being decoded
}

// name returns the object that a value stands for.
func (n *naming) name(kind, value string) *object {
	key := kind + " " + value
	if n.objects[key] == nil {
		n.objects[key] = &object{kind: kind}
	}
	return n.objects[key]
}

// step decodes an entry.
func (n *naming) step(e *Entry) (s rawStep, err error) {
	if e.File == Netlink && e.Op == Write {
		return n.netlinkStep(e)
	}
	name, parts, err := e.Decode()
	if err != nil {
		return s, err
	}
	s.name = name
	n.note(e, parts)
	for _, p := range parts {
		if p.Value == nil {
			if t := text(&abi.Field{Value: reflect.ValueOf(arrayOf(p.Octets))}); t != "0" {
				s.add(p.Name+".more", t)
			}
			s.add(p.Name+".more.size", number(len(p.Octets)))
			continue
		}
		if p.Missing > 0 {
			s.add(p.Name+".missing", number(p.Missing))
		}
		for _, f := range abi.Fields(p.Value) {
			s.fields = append(s.fields, rawField{p.Name + "." + f.Name, n.value(e, name, &p, &f)})
		}
	}
	s.add("errno", errnoName(e.Errno))
	return s, nil
}

func (s *rawStep) add(name, value string) {
	s.fields = append(s.fields, rawField{name, []any{value}})
}

func errnoName(e syscall.Errno) string {
	if e == 0 {
		return "0"
	}
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return number(int(e))
}

// arrayOf returns bytes as an array, because fields contain arrays.
func arrayOf(b []byte) any {
	v := reflect.New(reflect.ArrayOf(len(b), reflect.TypeFor[uint8]())).Elem()
	reflect.Copy(v, reflect.ValueOf(b))
	return v.Interface()
}

// netlinkStep decodes a request and its answers.
func (n *naming) netlinkStep(e *Entry) (s rawStep, err error) {
	request, err := DecodeNetlink(e.Request)
	if err != nil {
		return s, err
	}
	answers, err := DecodeNetlink(e.Answer)
	if err != nil {
		return s, err
	}
	s.name = "netlink"
	if len(request) > 0 {
		command, _ := abi.NLCommand(request[0].Type)
		s.name = "netlink.nldev_" + number(command)
	}
	for _, m := range request {
		n.netlinkFields(&s, "request", &m)
	}
	for i, m := range answers {
		n.netlinkFields(&s, "answer"+number(i+1), &m)
	}
	s.add("errno", errnoName(e.Errno))
	return s, nil
}

func (n *naming) netlinkFields(s *rawStep, name string, m *NetlinkMessage) {
	s.add(name+".type", number(m.Type))
	s.add(name+".flags", number(m.Flags))
	if m.Type == abi.NLMsgError || m.Type == abi.NLMsgDone {
		s.add(name+".error", number(m.Errno))
	}
	for _, a := range m.Attrs {
		value := []any{"x" + string(appendOctets(nil, a.Value))}
		if a.Type == abi.NLNodeGUID || a.Type == abi.NLSysImageGUID {
			guid := slices.Clone(a.Value)
			slices.Reverse(guid) // here a number; in uverbs it is big-endian
			value = []any{n.name("guid", text(&abi.Field{Value: reflect.ValueOf(arrayOf(guid))}))}
		}
		s.fields = append(s.fields, rawField{name + "." + abi.NLName(a.Type), value})
	}
}
