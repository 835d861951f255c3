package remote

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// session returns a session with an agent, which ends with the test.
func session(t *testing.T, a *Agent) *Session {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		testkit.OK(t, <-served)
	})
	c := testkit.Must(Dial(t.Context(), l.Addr().String(), Options{}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPushWaits: when push returns, the agent has changes that another call had collected but not
// sent yet. Otherwise an RDMA Read that is posted here would find old bytes there.
func TestPushWaits(t *testing.T) {
	c := session(t, engines(0))
	d := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	pd := testkit.Must(d.AllocPD())(t)
	buf := make([]byte, 64)
	mr := testkit.Must(pd.RegMR(buf, provider.AccessLocalWrite))(t)

	c.sending.Lock() // as a sending call does
	copy(buf, "changed")
	c.mu.Lock()
	number := c.lastNumber + 1
	c.mu.Unlock()
	body, _ := c.changes(d.mem, number, position{})
	pushed := make(chan error, 1)
	go func() { pushed <- c.push() }()
	select {
	case err := <-pushed:
		t.Errorf("push returned before the changes were sent: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	testkit.OK(t, c.conn.write(&message{kind: kindBeat, body: body}))
	c.sending.Unlock()
	if !t.Failed() {
		testkit.OK(t, <-pushed)
	}
	testkit.OK(t, mr.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, d.Close())
}

// TestChangesEnd: changes that do not fit into one message need as many as they have bytes for,
// even if all memory changes again between any two messages.
func TestChangesEnd(t *testing.T) {
	const blocks, size = 2, 1 << 20
	rewrite := func(memory [][]byte) {
		for _, b := range memory {
			for i := 0; i < len(b); i += 2 { // each byte is a record of 18 bytes
				b[i]++
			}
		}
	}
	// Two times 9 MiB are three messages of 8 MiB.
	messages := func(end string, memory [][]byte, changes func(from position) ([]byte, *position)) {
		var from position
		for n := 1; ; n++ {
			rewrite(memory)
			body, next := changes(from)
			if next == nil {
				if n != 3 {
					t.Errorf("%s: %d messages", end, n)
				}
				return
			}
			if len(body) < maxChanges || len(body) > maxChanges+maxChanges/8 || n == 3 {
				t.Fatalf("%s: message %d has %d bytes, and more follow", end, n, len(body))
			}
			from = *next
		}
	}
	s := newServed(engines(0), nil)
	defer func() { _ = s.free() }()
	s.slots[1] = true
	c, m := &Session{blocks: make(map[uint32]*block)}, &memory{slot: 1}
	var far, near [][]byte
	for i := range uint32(blocks) {
		number := 1<<16 | i
		testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: number, at: size})))
		far = append(far, s.twins[number].now)
		b, _, err := c.place(m, make([]byte, size))
		testkit.OK(t, err)
		near = append(near, b.now)
	}
	messages("agent", far, func(from position) ([]byte, *position) { return s.changes(1, from) })
	messages("client", near, func(from position) ([]byte, *position) { return c.changes(m, 1, from) })
	// Both blocks have changed again after their messages. From a position beyond the first block,
	// the changes of the second are sent, and then there are none.
	for i, want := range []bool{true, false} {
		body, next := s.changes(1, position{1 << 16, 1 << 63})
		if some := len(body) > 0; some != want || next != nil {
			t.Errorf("message %d beyond the first block has %d bytes, and then %v", i, len(body), next)
		}
	}
}
