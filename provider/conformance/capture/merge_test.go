package capture

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// part records a connection to a port.
func part(t *testing.T, port uint16, octets []byte) string {
	t.Helper()
	tap := &Tap{}
	c, err := tap.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	i, r := ends(tap, &clock, 1, client4, netip.AddrPortFrom(server4.Addr(), port))
	talk(i, r, octets, nil)
	file := filepath.Join(t.TempDir(), "part.pcapng")
	if err := c.Stop(file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestMerge(t *testing.T) {
	first, second := random(100_000), random(7)
	name := filepath.Join(t.TempDir(), "merged.pcapng")
	err := Merge(name, "all runs",
		Part{part(t, 20001, first), "engine->engine", "PASS"},
		Part{part(t, 20002, second), "engine->kernel", ""},
		Part{part(t, 20003, nil), "kernel->engine", "nothing in it"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16][]byte{20001: first, 20002: second} {
		if out, _ := streams(t, name, port); !bytes.Equal(out, want) {
			t.Errorf("port %d has %d octets, want %d", port, len(out), len(want))
		}
	}
	trace, err := wire.ReadFile(name, 0)
	if err != nil || len(trace.Conns) != 3 {
		t.Errorf("%d connections in all: %v", len(trace.Conns), err)
	}

	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.SectionInfo().Comment; got != "all runs" {
		t.Errorf("the file's comment is %q", got)
	}
	var last time.Time
	seen := make(map[int]bool)
	for {
		_, ci, err := r.ReadPacketData()
		if err != nil {
			break
		}
		if ci.Timestamp.Before(last) {
			t.Fatal("packets are not in order of time")
		}
		last, seen[ci.InterfaceIndex] = ci.Timestamp, true
	}
	for i, want := range []struct{ name, comment string }{{"engine->engine", "PASS"}, {"engine->kernel", ""}, {"kernel->engine", "nothing in it"}} {
		ifc, err := r.Interface(i)
		if err != nil || ifc.Name != want.name || ifc.Comment != want.comment || !seen[i] {
			t.Errorf("interface %d is %q (%q), with packets %v: %v", i, ifc.Name, ifc.Comment, seen[i], err)
		}
	}
}

// Packets stay in the order in which they were captured, whatever their times.
func TestMergeKeepsTheOrderOfAPart(t *testing.T) {
	dir := t.TempDir()
	at := time.Unix(1000, 0)
	var names []string
	for i, seconds := range [][]int{{1, 5, 4, 6}, {2, 3, 7}} {
		var packets []packet
		for k, s := range seconds {
			packets = append(packets, packet{time: at.Add(time.Duration(s) * time.Second), data: []byte{byte(i), byte(k)}})
		}
		names = append(names, filepath.Join(dir, string(rune('a'+i))))
		if err := writeOne(names[i], "part", "", layers.LinkTypeRaw, packets); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	if err := Merge(merged, "", Part{File: names[0]}, Part{File: names[1]}); err != nil {
		t.Fatal(err)
	}
	_, packets, err := readPart(merged)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, p := range packets {
		got = append(got, p.data...)
	}
	if want := []byte{0, 0, 1, 0, 1, 1, 0, 1, 0, 2, 0, 3, 1, 2}; !bytes.Equal(got, want) {
		t.Errorf("part and packet are %v, want %v", got, want)
	}
	if !packets[4].time.Equal(at.Add(4 * time.Second)) {
		t.Errorf("the times did not stay: %v", packets[4].time)
	}
}

func TestMergeSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	good, bad := part(t, 20001, nil), filepath.Join(dir, "bad.pcapng")
	if err := os.WriteFile(bad, []byte("no capture"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		to    string
		parts []Part
		want  string
	}{
		"nothing to merge": {"m.pcapng", nil, "no captures"},
		"no such part":     {"m.pcapng", []Part{{File: good}, {File: "nowhere.pcapng"}}, "nowhere.pcapng"},
		"no capture":       {"m.pcapng", []Part{{File: bad}}, "bad.pcapng"},
		"no such folder":   {"no/m.pcapng", []Part{{File: good}}, "no/m.pcapng"},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(dir, tc.to)
			err := Merge(to, "", tc.parts...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
			if _, err := os.Stat(to); !os.IsNotExist(err) {
				t.Errorf("a file was left: %v", err)
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".tmp*")); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

// FuzzMerge gives Merge files that may not be captures: it fails, or everything that it reads
// is in what it writes.
func FuzzMerge(f *testing.F) {
	var b bytes.Buffer
	err := encode(&b, "seed", []pcapgo.NgInterface{{LinkType: layers.LinkTypeEthernet,
		TimestampResolution: nanoseconds}},
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
			t.Fatalf("%d packets of link type %v are merged into %d of %v, %v", len(read), link,
				len(written), again, err)
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
