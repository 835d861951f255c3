package ibverbs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

// TestPeersOfOneFile: several peers write to one file at the same time, as mappings and as objects.
// When work after a Write is complete, a reader with its own descriptor sees the Write's bytes. The
// same holds for a Read whose sink is in the file.
func TestPeersOfOneFile(t *testing.T) {
	const peers, stripe, rounds = 3, 70_001, 8 // a stripe is not a multiple of the page size
	kinds := map[string]func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error){
		"mapped": func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error) {
			return pd.MapFile(f, 0, peers*stripe, remoteRights)
		},
	}
	if !onKernel() {
		kinds["object"] = func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error) {
			return pd.RegObject(f, peers*stripe, remoteRights)
		}
	}
	for kind, reg := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := tempFile(t, peers*stripe)
			t.Run("peers", func(t *testing.T) {
				for i := range peers {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						c := link(t)
						mr := testkit.Must(reg(c.server.PD(), f))(t)
						defer func() { testkit.OK(t, mr.Close()) }()
						p := &stripePeer{c, mr, i * stripe, stripe}
						for round := range byte(rounds) {
							p.fill(t, timeout(t), f.Name(), round*peers+byte(i))
						}
					})
				}
			})
		})
	}
}

// stripePeer is a peer that has n bytes of a file, from off on.
type stripePeer struct {
	*linked
	mr     *ibverbs.MR
	off, n int
}

// fill makes the peer write to its stripe, and then the stripe's owner read into it.
func (p *stripePeer) fill(t *testing.T, ctx context.Context, file string, seed byte) {
	t.Helper()
	local := testkit.Must(p.client.PD().AllocMR(p.n, remoteRights))(t)
	defer func() { testkit.OK(t, local.Close()) }()
	is := func(what string) {
		t.Helper()
		f := testkit.Must(os.Open(file))(t)
		defer f.Close()
		got := make([]byte, p.n)
		if _, err := f.ReadAt(got, int64(p.off)); err != nil || !bytes.Equal(got, local.Bytes()) {
			t.Errorf("%s: the file has other bytes; %v", what, err)
		}
		if mapped := p.mr.Bytes(); mapped != nil && !bytes.Equal(mapped[p.off:][:p.n], local.Bytes()) {
			t.Errorf("%s: the mapping has other bytes", what)
		}
	}
	copy(local.Bytes(), pattern(p.n, seed))
	there := testkit.Must(p.mr.Remote(p.off, p.n))(t)
	testkit.OK(t, done(t, ctx, p.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite,
		SGList:     []ibverbs.SGE{testkit.Must(local.SGE(0, p.n))(t)},
		RemoteAddr: there.Addr, RKey: there.RKey}))
	testkit.OK(t, read(t, ctx, p.client, p.clientMR, testkit.Must(p.serverMR.Remote(0, 8))(t)))
	is("a Read after a Write")

	copy(local.Bytes(), pattern(p.n, ^seed))
	here := testkit.Must(local.Remote(0, p.n))(t)
	testkit.OK(t, done(t, ctx, p.server, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
		SGList:     []ibverbs.SGE{testkit.Must(p.mr.SGE(p.off, p.n))(t)},
		RemoteAddr: here.Addr, RKey: here.RKey}))
	is("a Read into the file")
}
