package abi_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestCommands: every message of the tables is compared with the kernel's headers, and a command
// has an address for its answer exactly if it has an answer.
func TestCommands(t *testing.T) {
	known := map[reflect.Type]bool{}
	for _, layout := range layouts {
		known[reflect.TypeOf(layout)] = true
	}
	tables := map[string]map[uint32]abi.Command{
		"uverbs": abi.UverbsCommands, "extended": abi.UverbsExCommands, "rdma_cm": abi.CMCommands,
	}
	for table, commands := range tables {
		for number, c := range commands {
			for _, msg := range []any{c.Request, c.DriverRequest, c.Response, c.DriverResponse} {
				if msg != nil && !known[reflect.TypeOf(msg)] {
					t.Errorf("%s %d, %s: %T is compared with nothing", table, number, c.Name, msg)
				}
			}
			address := slices.ContainsFunc(abi.Fields(c.Request), func(f abi.Field) bool { return f.Name == "response" })
			// The kernel's headers have an address for BIND_IP, although it has no answer.
			if answers := c.Response != nil; table != "extended" && address != answers && c.Name != "bind_ip" {
				t.Errorf("%s %d, %s: an answer: %v, an address for it: %v", table, number, c.Name, answers, address)
			}
		}
	}
	for option, want := range map[uint32]any{
		abi.QueryAddr: abi.QueryAddrResp{}, abi.QueryPath: abi.QueryPathResp{}, abi.QueryGID: abi.QueryAddrResp{}, 3: nil,
	} {
		if got, err := abi.QueryResponse(option); got != want || (err != nil) != (want == nil) {
			t.Errorf("query, option %d: %T, error %v", option, got, err)
		}
	}
}
