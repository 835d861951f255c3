package vm

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// kernels are the kernels that TestSiw boots: GOVS_VM_KERNELS, or only 6.1, because each further
// kernel is downloaded and built the first time.
func kernels() []string {
	if list := strings.Fields(os.Getenv("GOVS_VM_KERNELS")); len(list) > 0 {
		return list
	}
	return []string{"6.1"}
}

// The guests of TestSiw boot with poison: their kernels write freedOctet over freed heap memory,
// and do not clear it for the next use, so that bytes that were never written are visible.
const (
	poison     = "slub_debug=P,kmalloc-*"
	freedOctet = "6b"
)

// uncleared is siw's answer to QUERY_QP: most of it is old content of the kernel's heap
// (kernel-notes/siw-query-qp-memory.md). From Linux 6.8 on siw writes the state.
var uncleared = regexp.MustCompile("^" +
	// All of dest and alt_dest but dlid and src_path_bits: dgid, flow_label; sgid_index,
	// hop_limit, traffic_class and sl; static_rate, is_global, which is true for any bit, and
	// port_num.
	strings.Repeat(strings.Repeat(freedOctet, 16+4)+"00000000"+strings.Repeat(freedOctet, 4)+
		"00"+freedOctet+"01"+freedOctet, 2) +
	strings.Repeat("10000000", 2) + strings.Repeat("01000000", 2) + "50000000" + // capacities
	strings.Repeat(freedOctet, 4*4) + // qkey, rq_psn, sq_psn, dest_qp_num
	"07000000" + // access flags
	strings.Repeat(freedOctet, 2+2) + ".." + freedOctet + // pkey_index, alt_pkey_index, states
	".." + strings.Repeat(freedOctet, 2) + "0000" + // path_mtu, path_mig_state, sq_draining, depths
	strings.Repeat(freedOctet, 7) + // from min_rnr_timer to alt_timeout
	"00" + "0000000000$")

// pingRxe makes rping ping itself over rxe. The counters of rxe show that rping used rxe, because
// packets to the host's own address never reach an interface or a capture.
const pingRxe = `
		rdma link
		ip -br address show d1 | tr -s ' '
		sent() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
		before=$(sent)
		rping -s -a 198.51.100.1 -C 3 &
		server=$!
		until rdma resource show cm_id link rxe0 | grep -q LISTEN; do sleep 0.2; done
		rping -c -a 198.51.100.1 -C 3 && wait $server || exit
		[ "$(sent)" -gt "$before" ] && echo "rxe has sent packets"`

// TestSiw makes rping ping itself over siw and checks the MPA request in a capture: the variants of
// siw request different things. Memory that siw does not clear is not in the capture, but in siw's
// answer to QUERY_QP. The guest of the default variant has rxe, too.
func TestSiw(t *testing.T) {
	t.Parallel()
	vmtest.Need(t, "witnesses", "kernel")
	query := filepath.Join(t.TempDir(), "queryqp")
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", query, "testdata/queryqp.c",
		"-libverbs").CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
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
		"$1"
		[ "$status" -eq 0 ] || exit
		[ "$VM_RXE" = no ] || eval "$2"`
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
				t.Parallel()
				rxe := c.siw == "default"
				o := vmtest.Options{Kernel: kernel, Siw: c.siw, Rxe: rxe, Boot: poison}
				result := vmtest.Run(t, o, "bash", "-c", script, "argv0", query, pingRxe)
				if result.Status != 0 || strings.Count(result.Stdout, "ping data: rdma-ping-") != 3 {
					t.Fatalf("exit status %d\n%s%s", result.Status, result.Stdout, result.Stderr)
				}
				if !strings.Contains(result.Stdout, "\n"+kernel+".") {
					t.Errorf("asked for kernel %s, got\n%s", kernel, result.Stdout)
				}
				for _, want := range []string{
					"link siw0/1 state ACTIVE physical_state LINK_UP netdev d0",
					"link rxe0/1 state ACTIVE physical_state LINK_UP netdev d1",
					"d1 UNKNOWN 198.51.100.1/24",
					"rxe has sent packets\n",
				} {
					if rxe && !strings.Contains(result.Stdout, want) {
						t.Errorf("stdout lacks %q:\n%s%s", want, result.Stdout, result.Stderr)
					}
				}
				capture, err := os.ReadFile(filepath.Join(result.Out, "capture.pcap"))
				if err != nil {
					t.Fatal(err)
				}
				_, request, found := bytes.Cut(capture, []byte("MPA ID Req Frame"))
				if !found || len(request) < 8 {
					t.Fatalf("no MPA request in %d bytes of capture", len(capture))
				}
				if got := hex.EncodeToString(request[:8]); got != c.want {
					t.Errorf("request goes on %s, want %s", got, c.want)
				}
				freed, _ := hex.DecodeString(strings.Repeat(freedOctet, 4))
				if bytes.Contains(capture, freed) {
					t.Error("the capture has memory that the kernel has freed")
				}
				_, answer, _ := strings.Cut(result.Stdout, "answer=")
				if answer, _, _ = strings.Cut(answer, "\n"); !uncleared.MatchString(answer) {
					t.Errorf("the answer to QUERY_QP is\n%s, and was\n%s", answer, uncleared)
				}
			})
		}
	}
}
