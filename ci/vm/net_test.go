package vm

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// tapNamespace makes a network namespace with the tap interface "guest", whose address is 10.0.0.1,
// and returns its name. It needs root.
func tapNamespace(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t, "network namespaces need root")
	ns := fmt.Sprintf("govs-vm%d", os.Getpid())
	ip(t, "netns add "+ns)
	t.Cleanup(func() { ip(t, "netns del "+ns) })
	for _, line := range []string{"link set lo up", "tuntap add guest mode tap",
		"address add 10.0.0.1/24 dev guest", "link set guest up"} {
		ip(t, "-n "+ns+" "+line)
	}
	return ns
}

// ip runs iproute2's command.
func ip(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
}
