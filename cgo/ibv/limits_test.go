package ibv

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The functions in libibverbs' header that the package's Limitations list as not bound. Other kinds
// of functions need no mention there.
var unbound = regexp.MustCompile(`\bibv_(\w+_ah|\w+_ah_from_wc|attach_mcast|detach_mcast|open_xrcd|close_xrcd|` +
	`create_flow\w*|\w+_dm|reg_dmabuf_mr|wr_\w+|start_poll|next_poll|end_poll|wc_read_\w+|advise_mr)\(`)

func TestLimitations(t *testing.T) {
	if !unbound.MatchString("struct ibv_ah *ibv_create_ah(struct ibv_pd *pd)") {
		t.Fatal("the pattern does not find what it is for")
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	prototypes := regexp.MustCompile(`(?m)^// Implements: .*`)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range prototypes.FindAllString(string(text), -1) {
			found++
			if unbound.MatchString(line) {
				t.Errorf("%s: %s, but doc.go says that it is not bound", file, line)
			}
		}
	}
	if found == 0 {
		t.Error("no wrapper names a prototype")
	}
}
