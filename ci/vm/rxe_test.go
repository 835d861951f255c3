package vm

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestRxe lets rping ping itself over rxe. That it was rxe is told by its counters:
// packets to an address of its own never reach an interface, nor a capture.
func TestRxe(t *testing.T) {
	t.Parallel()
	vmtest.Need(t, "witnesses")
	const script = `
		echo "rxe=$VM_RXE"
		rdma link
		ip -br address show d1 | tr -s ' '
		sent() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
		before=$(sent)
		rping -s -a 198.51.100.1 -C 3 &
		server=$!
		until rdma resource show cm_id link rxe0 | grep -q LISTEN; do sleep 0.2; done
		rping -c -a 198.51.100.1 -C 3 -v && wait $server
		status=$?
		[ "$(sent)" -gt "$before" ] && echo "rxe has sent packets"
		exit $status`
	for _, kernel := range kernels() {
		t.Run(kernel, func(t *testing.T) {
			result := vmtest.Run(t, vmtest.Options{Kernel: kernel, Rxe: true}, "bash", "-c", script)
			if result.Status != 0 || strings.Count(result.Stdout, "ping data: rdma-ping-") != 3 {
				t.Errorf("exit status %d", result.Status)
			}
			for _, want := range []string{
				"rxe=yes\n",
				"link siw0/1 state ACTIVE physical_state LINK_UP netdev d0",
				"link rxe0/1 state ACTIVE physical_state LINK_UP netdev d1",
				"d1 UNKNOWN 198.51.100.1/24",
				"rxe has sent packets\n",
			} {
				if !strings.Contains(result.Stdout, want) {
					t.Errorf("stdout lacks %q", want)
				}
			}
			if t.Failed() {
				t.Logf("%s%s", result.Stdout, result.Stderr)
			}
		})
	}
}
