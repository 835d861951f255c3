//go:build !race

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// siwAddr6 is an IPv6 address that tests add to the interface under siw0.
const siwAddr6 = "2001:db8::1"

// TestStreamWithSiw runs our stream --bench over either provider at one end, and rstream over siw
// at the other. Then our stream sends files between the providers. One case shows that either
// provider can be at either end. The others, where the provider of our end makes no difference,
// use the engine there, and it dials: TestStreamWithRstream has both directions of all cases.
func TestStreamWithSiw(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	ip(t, "-6 addr add "+siwAddr6+"/64 dev d0 nodad")
	t.Cleanup(func() { ip(t, "-6 addr del "+siwAddr6+"/64 dev d0") })
	for _, c := range rstreamCases {
		if !c.guest {
			continue
		}
		c.siw = true
		if !c.six {
			t.Run(fmt.Sprintf("%s, we dial over engine", c), func(t *testing.T) {
				c.weDial(t, siwAddr, launchOverSiw(t), "--provider", "engine")
			})
			continue
		}
		for _, provider := range providers {
			c.refused = provider == "kernel"
			t.Run(fmt.Sprintf("%s, we dial over %s", c, provider), func(t *testing.T) {
				c.weDial(t, siwAddr6, launchOverSiw(t), "--provider", provider)
			})
			t.Run(fmt.Sprintf("%s, we listen over %s", c, provider), func(t *testing.T) {
				c.weListen(t, siwAddr6, launchOverSiw(t), "--provider", provider)
			})
		}
	}
	for _, pair := range [][2]string{{"kernel", "engine"}, {"kernel", "kernel"}} {
		t.Run(fmt.Sprintf("a file from %s to %s", pair[0], pair[1]), func(t *testing.T) {
			sendFile(t, pair[0], pair[1])
		})
	}
}

// sendFile sends a file from a process over one provider to a process over the other.
func sendFile(t *testing.T, from, to string) {
	content := bytes.Repeat([]byte("one file after another, "), 1<<15)
	name := filepath.Join(t.TempDir(), "file")
	testkit.OK(t, os.WriteFile(name, content, 0o600))
	in := testkit.Must(os.Open(name))(t)
	defer in.Close()
	port := freePort()
	server := startCommand(t, nil, "stream", "--provider", to, "--listen", addrOf(port))
	server.stderr.await(t, "listening on ")
	piped(t, in, "--provider", from, addrOf(port)).want(t, 0)
	server.want(t, 0)
	if got := server.stdout.String(); got != string(content) {
		t.Errorf("%d bytes came, with differences; want %d", len(got), len(content))
	}
}
