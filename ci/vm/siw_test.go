package vm

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// kernels are those that TestSiw boots: GOVS_VM_KERNELS, or 6.1 only, because
// each further one is downloaded and built the first time.
func kernels() []string {
	if list := strings.Fields(os.Getenv("GOVS_VM_KERNELS")); len(list) > 0 {
		return list
	}
	return []string{"6.1"}
}

// TestSiw lets rping ping itself over siw and looks at the MPA request in a
// capture: the variants differ in what it asks for.
func TestSiw(t *testing.T) {
	vmtest.Need(t, "witnesses")
	const script = `
		dumpcap -q -i lo -P -w /tmp/capture.pcap 2>/dev/null &
		capture=$!
		until [ -s /tmp/capture.pcap ]; do sleep 0.2; done
		rping -s -a 192.0.2.1 -C 3 &
		server=$!
		until ss -ltn | grep -q :7174; do sleep 0.2; done
		rping -c -a 192.0.2.1 -C 3 -v && wait $server
		status=$?
		sleep 1
		kill $capture
		wait $capture
		cp /tmp/capture.pcap $VM_OUT/
		uname -r
		exit $status`
	for _, kernel := range kernels() {
		for _, c := range []struct {
			siw  string
			want string // of the request: flags and revision, PD length, IRD, ORD
		}{
			{"default", "1002" + "0004" + "0001" + "0001"}, // S, revision 2
			{"crc", "5002" + "0004" + "0001" + "0001"},     // and C
			{"p2p", "1002" + "0004" + "8001" + "c001"},     // A; C and D: a Write or a Read may be the RTR
		} {
			t.Run(kernel+"/"+c.siw, func(t *testing.T) {
				result := vmtest.Run(t, vmtest.Options{Kernel: kernel, Siw: c.siw}, "bash", "-c", script)
				if result.Status != 0 || strings.Count(result.Stdout, "ping data: rdma-ping-") != 3 {
					t.Fatalf("exit status %d\n%s%s", result.Status, result.Stdout, result.Stderr)
				}
				if !strings.Contains(result.Stdout, "\n"+kernel+".") {
					t.Errorf("asked for kernel %s, got\n%s", kernel, result.Stdout)
				}
				capture, err := os.ReadFile(filepath.Join(result.Out, "capture.pcap"))
				if err != nil {
					t.Fatal(err)
				}
				_, request, found := bytes.Cut(capture, []byte("MPA ID Req Frame"))
				if !found || len(request) < 8 {
					t.Fatalf("no MPA request in %d octets of capture", len(capture))
				}
				if got := hex.EncodeToString(request[:8]); got != c.want {
					t.Errorf("request goes on %s, want %s", got, c.want)
				}
			})
		}
	}
}
