package abi_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/bridge/recording"
)

// recorded returns the recordings of programs over siw.
func recorded(t *testing.T) map[string]*recording.Recording {
	t.Helper()
	if !bytes.Equal(abi.Append(nil, &abi.PostResp{BadWR: 1}), []byte{1, 0, 0, 0}) {
		t.Skip("the bytes are those of a little-endian machine")
	}
	files, err := filepath.Glob("testdata/siw/*.siw")
	if err != nil || len(files) < 17 {
		t.Fatalf("%d recordings, error %v", len(files), err)
	}
	all := map[string]*recording.Recording{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := recording.Read(f)
		_ = f.Close()
		if err != nil || len(rec.Entries) == 0 {
			t.Fatalf("%s: %d entries, error %v", file, len(rec.Entries), err)
		}
		all[filepath.Base(file)] = rec
	}
	return all
}

// TestRecorded decodes what programs wrote to siw and what siw answered, and encodes it again to
// the same bytes. Every layout covers all bytes: none is left over and none is missing, except in
// what refusals writes, which is too short and too long.
func TestRecorded(t *testing.T) {
	commands := map[string]int{}
	for name, rec := range recorded(t) {
		for i, e := range rec.Entries {
			if e.Op != recording.Write || e.File == recording.Netlink {
				continue
			}
			command, parts, err := e.Decode()
			if err != nil {
				t.Errorf("%s: entry %d: %v", name, i+1, err)
				continue
			}
			if e.Errno == 0 {
				commands[command]++
			}
			request := append(recording.Encode(parts, "header"),
				recording.Encode(parts, "request")...)
			if !bytes.Equal(request, e.Request) {
				t.Errorf("%s: entry %d, %s: the request\n%x is encoded as\n%x", name, i+1, command,
					e.Request, request)
			}
			if answer := recording.Encode(parts, "answer"); !bytes.Equal(answer, e.Answer) {
				t.Errorf("%s: entry %d, %s: the answer\n%x is encoded as\n%x", name, i+1, command,
					e.Answer, answer)
			}
			for _, p := range parts {
				if name != "refusals.siw" && e.Errno == 0 && (p.Value == nil || p.Missing > 0) {
					t.Errorf("%s: entry %d, %s, %s: %d bytes of no layout, %d missing: %x", name,
						i+1, command, p.Name, len(p.Octets), p.Missing, p.Octets)
				}
			}
		}
	}
	if len(commands) < 34 {
		t.Errorf("%d commands are in the recordings, want 34: %v", len(commands), commands)
	}
}

// TestRecordedNetlink decodes and encodes recorded messages of netlink.
func TestRecordedNetlink(t *testing.T) {
	messages := 0
	for name, rec := range recorded(t) {
		for i, e := range rec.Entries {
			if e.File != recording.Netlink {
				continue
			}
			for _, octets := range [][]byte{e.Request, e.Answer} {
				decoded, err := recording.DecodeNetlink(octets)
				if again := recording.EncodeNetlink(decoded); err != nil ||
					!bytes.Equal(again, octets) {
					t.Errorf("%s: entry %d:\n%x is encoded as\n%x, error %v", name, i+1, octets,
						again, err)
				}
				messages += len(decoded)
			}
		}
	}
	if messages < 50 {
		t.Errorf("%d messages are in the recordings", messages)
	}
}
