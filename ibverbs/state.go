package ibverbs

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// TraceObjects has all contexts keep, for each object that is made from now on, the stack
// of the goroutine that made it; WriteState then prints these. It is for finding objects
// that nobody closes, and costs some microseconds and KiB per object.
func TraceObjects(on bool) { object.Stacks.Store(on) }

// WriteState writes what is open on c, for a person to read: a line for the device, and one
// for each PD, MR, MW, completion channel, CQ, SRQ, QP and CM id
// (listeners among them), ordered by kind and text. A QP's line has
// its state, how full its queues are, its peer, and "held until the peer's first message"
// where that is what posted work waits for. The format may change.
//
// The text has the keys of regions (STags), and who knows one can use the region over any
// connection of its PD: it is not for peers to read. Objects may be made and closed meanwhile.
// WriteState calls w without a lock.
func (c *Context) WriteState(w io.Writer) error {
	if err := c.ok("state"); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, provider %s\n", c.Name(), c.provider)
	if st, err := c.Stats(); err == nil && st.Counters == nil { // a kernel device has no others
		fmt.Fprintf(&b, "  %d connections accepted now, %d closing, %d made so far, %d start-ups failed\n",
			st.Accepted, st.Closing, st.Connections, st.Failures)
	}
	for _, e := range c.obj.Live() {
		fmt.Fprintf(&b, "  %s\n", e.Description)
		if e.Stack != "" {
			for line := range strings.Lines(e.Stack) {
				b.WriteString("      " + line)
			}
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (cq *CQ) state() string {
	s := cq.String()
	if st, err := cq.Stats(); err == nil {
		s += fmt.Sprintf(": %d waiting, at least %d places were free, %d lost", st.Waiting,
			st.LowestFree(), st.Lost)
	}
	return s
}

func (qp *QP) state() string {
	s := qp.String()
	st, err := qp.Stats()
	if err != nil {
		return s
	}
	s += fmt.Sprintf(": %d sends posted, %d receives posted", st.SendsPosted, st.RecvsPosted)
	if st.ReadsOut > 0 {
		s += fmt.Sprintf(", %d Reads unanswered", st.ReadsOut)
	}
	if st.Remote.IsValid() {
		s += fmt.Sprintf(", %s -> %s", st.Local, st.Remote)
	}
	switch {
	case st.HeldForPeer:
		s += fmt.Sprintf(", %d sends are held until the peer's first message", st.SendsHeld)
	case st.SendsHeld > 0:
		s += fmt.Sprintf(", %d sends are held", st.SendsHeld)
	}
	if cause := qp.Cause(); cause != nil {
		s += ": " + cause.Error()
	}
	return s
}

func init() {
	object.Describes(object.KindPD, func(h any) string { return h.(*PD).String() })
	object.Describes(object.KindMR, func(h any) string { return h.(*MR).String() })
	object.Describes(object.KindMW, func(h any) string { return h.(*MW).String() })
	object.Describes(object.KindCompChannel, func(h any) string { return h.(*CompChannel).obj.Name() })
	object.Describes(object.KindCQ, func(h any) string { return h.(*CQ).state() })
	object.Describes(object.KindSRQ, func(h any) string { return h.(*SRQ).String() })
	object.Describes(object.KindQP, func(h any) string { return h.(*QP).state() })
}
