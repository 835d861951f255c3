package rdmacm

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The functions in librdmacm's headers that the package's Limitations list as not bound.
var unbound = regexp.MustCompile(`\b(rdma_create_ep|rdma_destroy_ep|rdma_get_request|rdma_(join|leave)_multicast\w*|` +
	`rdma_(get|free)addrinfo|r(socket|bind|listen|accept|connect|send|recv)|rdma_post_\w+|rdma_get_\w+_comp)\(`)

func TestLimitations(t *testing.T) {
	if !unbound.MatchString("int rdma_create_ep(struct rdma_cm_id **id)") {
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
