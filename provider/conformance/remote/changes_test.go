package remote

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

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
	// The first block has changed again after its message, and the second has not.
	if body, next := s.changes(1, position{1 << 16, 1 << 63}); len(body) > 0 || next != nil {
		t.Errorf("after a position beyond the first block there are %d bytes, and then %v", len(body), next)
	}
}
