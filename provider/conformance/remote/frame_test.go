package remote

import (
	"bufio"
	"bytes"
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestMessageIsHeldOnce: a message that arrives takes its length, and no more.
func TestMessageIsHeldOnce(t *testing.T) {
	var b bytes.Buffer
	const length = maxHead + maxBody
	key := []byte("a key")
	testkit.OK(t, writeMessage(bufio.NewWriter(&b), newAuthenticator(key),
		&message{kind: kindRequest, head: make([]byte, maxHead), body: make([]byte, maxBody)}))
	in := bufio.NewReader(&b)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := readMessage(in, newAuthenticator(key))
	runtime.ReadMemStats(&after)
	if err != nil || len(m.head)+len(m.body) != length {
		t.Fatalf("%d and %d bytes: %v", len(m.head), len(m.body), err)
	}
	const noise = 1 << 20 // other allocations of the process
	if took := after.TotalAlloc - before.TotalAlloc; took > length+noise {
		t.Errorf("%d bytes were allocated for a message of %d", took, length)
	}
}
