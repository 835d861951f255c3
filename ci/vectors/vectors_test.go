package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

const root = "../.."

// load reads the file as another program would.
func load(t *testing.T) (text []byte, all []*vector) {
	t.Helper()
	text = testkit.Must(os.ReadFile(filepath.Join(root, output)))(t)
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	testkit.OK(t, dec.Decode(&all))
	if len(all) < 100 || len(text) > 100_000 {
		t.Errorf("%d vectors in %d bytes, want 100 in at most 100,000 bytes", len(all), len(text))
	}
	return text, all
}

func TestFile(t *testing.T) {
	text, _ := load(t)
	if !bytes.Equal(text, testkit.Must(generate(root))(t)) {
		t.Errorf("%s is out of date: go run ./ci/vectors", output)
	}
}

// TestVectors decodes the octets of the file with the layers, and encodes the fields again.
func TestVectors(t *testing.T) {
	_, all := load(t)
	fields, names := make([]string, len(all)), map[string]bool{}
	for i, v := range all {
		fields[i], v.Fields = string(v.Fields), nil
	}
	decode(all)
	for i, v := range all {
		if names[v.Name] {
			t.Errorf("there are two vectors %s", v.Name)
		}
		names[v.Name] = true
		if string(v.Fields) != fields[i] {
			t.Errorf("%s is decoded to\n%s, and the file has\n%s", v.Name, v.Fields, fields[i])
		}
		if v.frame != nil {
			testkit.EqualBytes(t, v.Name+" encoded again", v.encode(), v.Octets)
		}
		if err := v.judge(); err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

// forTshark writes a capture of some of the vectors.
func forTshark(t *testing.T, which func(*vector) bool) (list []*vector, file string) {
	t.Helper()
	if _, err := tshark.Version(); err != nil {
		if os.Getenv("GOVS_REQUIRE_TSHARK") != "" { // as in ci/test, so that nothing is left out there
			t.Fatal(err)
		}
		t.Skipf("the other tests have shown the layers, but no second decoder: %v", err)
	}
	_, all := load(t)
	for _, v := range all {
		if which(v) {
			list = append(list, v)
		}
	}
	file = filepath.Join(t.TempDir(), "vectors.pcap")
	testkit.OK(t, os.WriteFile(file, record(list).Pcap(), 0o644))
	return list, file
}

func marked(v *vector) bool { return v.Kind == "fpdu" && v.Stream.Markers }

// TestTshark makes tshark decode all vectors without Markers. It sees every frame that has to be
// accepted.
func TestTshark(t *testing.T) {
	for _, refused := range []bool{false, true} {
		list, file := forTshark(t, func(v *vector) bool {
			return (v.Refuse != nil) == refused && v.Kind != "crc32c" && !marked(v)
		})
		trace := testkit.Must(wire.ReadFile(file, 0))(t)
		w := tshark.Witness(t.Context(), []conformance.Exhibit{{File: file, Ours: trace}})[0]
		if !w.Agrees {
			for i, v := range list {
				if strings.Contains(w.Why, fmt.Sprintf(":%d: ", firstPort+i)) {
					t.Errorf("%s:", v.Name)
				}
			}
			t.Errorf("tshark does not agree: %s", w.Why)
		}
		if !refused && w.Frames != trace.Count() {
			t.Errorf("tshark sees %d frames, the layers %d", w.Frames, trace.Count())
		}
	}
}

// TestTsharkMarkers compares Markers, lengths and CRCs with what tshark sees. tshark takes a
// segment for one FPDU, and each vector is one. A Marker between two FPDUs belongs to the second
// one (RFC 5044 section 4.3), but to tshark it belongs to the first.
func TestTsharkMarkers(t *testing.T) {
	list, file := forTshark(t, func(v *vector) bool {
		return v.Refuse == nil && marked(v) && v.Stream.Position != mpa.MarkerInterval
	})
	cmd := exec.Command("tshark", "-n", "-r", file, "-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa",
		"-o", "tcp.try_heuristic_first:TRUE")
	cmd.Env = append(os.Environ(), "WIRESHARK_CONFIG_DIR=/nonexistent", "LC_ALL=C")
	seen := string(testkit.Must(cmd.Output())(t))
	for i, v := range list {
		plain, at := v.unmarked()
		n, _, _ := mpa.ParseHeader(plain)
		length := fmt.Sprintf("ULPDU length: %d bytes\n", n)
		want := fmt.Sprintf("CRC check: 0x%x (Good CRC32)\n", plain[len(plain)-4:])
		if len(at) > 0 {
			want += "    Markers\n"
		}
		for _, k := range at {
			m, _ := mpa.ParseMarker(v.Octets[k:])
			want += fmt.Sprintf("        Reserved: 0x%04x\n        FPDU back pointer: %d bytes\n",
				m.Reserved, m.FPDUPTR)
		}
		packet := seen[max(strings.LastIndex(seen, fmt.Sprintf("Dst Port: %d,", firstPort+i)), 0):]
		packet, _, _ = strings.Cut(packet, "\n\n")
		if !strings.Contains(packet, length) || !strings.Contains(packet, want+"iWARP Direct Data") {
			t.Errorf("%s: tshark shows\n%s\nand not %s%s", v.Name, packet, length, want)
		}
	}
}
