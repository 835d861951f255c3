//go:build linux && cgo

package main

import (
	"bytes"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/recording"
)

type noFile struct{ closed bool }

func (f *noFile) Write(b []byte) (int, error) { return len(b), nil }
func (f *noFile) Close()                      { f.closed = true }

// TestCloseIsItsCallers: the thread that closes a descriptor has it in the recording, though the
// file lasts until the call of another thread has returned.
func TestCloseIsItsCallers(t *testing.T) {
	var to bytes.Buffer
	p := &process{record: &recorder{to: recording.NewWriter(&to)}}
	p.files.Store(&[]*openFile{nil})
	f := &noFile{}
	n := p.number(f)
	call := p.use(n) // of another thread
	p.close(n)
	rec := testkit.Must(recording.Read(bytes.NewReader(to.Bytes())))(t)
	if len(rec.Entries) != 1 || rec.Entries[0].Op != recording.Close {
		t.Errorf("recorded before the other call has returned: %+v", rec.Entries)
	}
	testkit.Equal(t, "the file is closed during the call", f.closed, false)
	p.done(call)
	testkit.Equal(t, "the file is closed after it", f.closed, true)
	rec = testkit.Must(recording.Read(&to))(t)
	testkit.Equal(t, "what is recorded in the end", len(rec.Entries), 1)
}
