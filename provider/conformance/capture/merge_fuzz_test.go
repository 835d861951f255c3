package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// FuzzMerge gives Merge files that may not be captures: it fails, or everything that it reads
// is in what it writes.
func FuzzMerge(f *testing.F) {
	var b bytes.Buffer
	err := encode(&b, "seed", []pcapgo.NgInterface{{LinkType: layers.LinkTypeEthernet, TimestampResolution: nanoseconds}},
		[]packet{{time: time.Unix(1, 2), data: []byte("a packet"), length: 8}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()-3])
	f.Add([]byte("\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a\x01\x00\x00\x00" +
		"\xff\xff\xff\xff\xff\xff\xff\xff\x1c\x00\x00\x00"))
	dir := f.TempDir()
	in, out := filepath.Join(dir, "in.pcapng"), filepath.Join(dir, "out.pcapng")
	f.Fuzz(func(t *testing.T, file []byte) {
		if err := os.WriteFile(in, file, 0o600); err != nil {
			t.Fatal(err)
		}
		link, read, err := readPart(in)
		if err != nil {
			return
		}
		if err := Merge(out, "", Part{File: in}); err != nil {
			return // a packet is longer than its length says; none of our captures has that
		}
		again, written, err := readPart(out)
		if err != nil || again != link || len(written) != len(read) {
			t.Fatalf("%d packets of link type %v are merged into %d of %v, %v", len(read), link, len(written), again, err)
		}
		for _, p := range read {
			if !containsPacket(written, p.data) {
				t.Fatalf("a packet is lost: % x", p.data)
			}
		}
	})
}

func containsPacket(all []packet, data []byte) bool {
	for _, p := range all {
		if bytes.Equal(p.data, data) {
			return true
		}
	}
	return false
}
