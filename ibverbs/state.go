package ibverbs

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// TraceObjects makes all contexts record, for each new object, the stack of the goroutine that made
// it; WriteState then prints the stacks. Use it to find objects that are never closed. It costs
// some microseconds and KiB per object.
func TraceObjects(on bool) { object.Stacks.Store(on) }

// WriteState writes what is open on c, for a human reader. It writes a line for the device, and a
// line for each PD, MR, MW, completion channel, CQ, SRQ, QP and CM id (listeners among them),
// ordered by kind and text. A QP's line has its state, how full its queues are, its peer, and "held
// until the peer's first message" if posted work waits for that. The QP of an rdmacm Conn.Shutdown
// is in IBV_QPS_SQD while the Shutdown waits for the peer. After TraceObjects(true) a number after
// an object refers to the stack, at the end, of the goroutine that made it. The format may change.
//
// The text contains the keys of regions (STags). A peer that knows a key can use the region over
// any connection of its PD, so do not send the text to peers. Other goroutines may make and close
// objects during the call. WriteState holds no lock when it calls w.
func (c *Context) WriteState(w io.Writer) error {
	if err := c.ok("state"); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, provider %s\n", c.Name(), c.provider)
	if st, err := c.Stats(); err == nil && st.Counters == nil { // a kernel device has no others
		fmt.Fprintf(&b, "  %s open, %d of them accepted, %d closing, %d made so far, %s failed\n",
			object.Count(st.Connected, "connection"), st.Accepted, st.Closing, st.Connections,
			object.Count(st.Failures, "start-up"))
	}
	var stacks []string // each once
	for _, e := range c.obj.Live() {
		fmt.Fprintf(&b, "  %s", e.Description)
		if e.Stack != "" {
			i := slices.Index(stacks, e.Stack)
			if i < 0 {
				i = len(stacks)
				stacks = append(stacks, e.Stack)
			}
			fmt.Fprintf(&b, " [%d]", i+1)
		}
		b.WriteByte('\n')
	}
	for i, stack := range stacks {
		fmt.Fprintf(&b, "  [%d] was made by\n", i+1)
		for line := range strings.Lines(stack) {
			b.WriteString("      " + line)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (cq *CQ) state() string {
	s := cq.String()
	if st, err := cq.Stats(); err == nil {
		s += fmt.Sprintf(": %d waiting, at least %s free so far, %d lost", st.Waiting,
			object.Count(st.LowestFree(), "place"), st.Lost)
	}
	return s
}

func (srq *SRQ) state() string {
	s := srq.String()
	st, err := srq.Stats()
	if err != nil {
		return s
	}
	s += fmt.Sprintf(": %s posted", object.Count(st.RecvsPosted, "receive"))
	if st.LowestRecvs >= 0 {
		s += fmt.Sprintf(", at least %d left so far", st.LowestRecvs)
	}
	if st.Empty > 0 {
		s += fmt.Sprintf(", %s found none", object.Count(st.Empty, "message"))
	}
	return s
}

func (qp *QP) state() string {
	s := qp.String()
	st, err := qp.Stats()
	if err != nil {
		return s
	}
	s += fmt.Sprintf(": %s posted, %s posted", object.Count(st.SendsPosted, "send"),
		object.Count(st.RecvsPosted, "receive"))
	if st.ReadsOut > 0 {
		s += fmt.Sprintf(", %s unanswered", object.Count(st.ReadsOut, "Read"))
	}
	if st.Remote.IsValid() {
		s += fmt.Sprintf(", %s -> %s", st.Local, st.Remote)
	}
	switch {
	case st.HeldForPeer:
		s += fmt.Sprintf(", %s held until the peer's first message", object.Count(st.SendsHeld, "send"))
	case st.SendsHeld > 0:
		s += fmt.Sprintf(", %s held", object.Count(st.SendsHeld, "send"))
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
	object.Describes(object.KindSRQ, func(h any) string { return h.(*SRQ).state() })
	object.Describes(object.KindQP, func(h any) string { return h.(*QP).state() })
}
