package engine

import (
	"bytes"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestWriteWaitsForRegionThatIsClosed: while memory is being sent without a copy, the region that
// the work request names is closed, or registered anew, and a peer writes to the memory by way of
// another region. The Write waits as long as the close does.
func TestWriteWaitsForRegionThatIsClosed(t *testing.T) {
	const size = 100000
	const open = provider.AccessLocalWrite | provider.AccessRemoteWrite
	for how, end := range map[string]func(t *testing.T, m *mr){
		"Close": func(t *testing.T, m *mr) { testkit.OK(t, m.Close()) },
		"Rereg": func(t *testing.T, m *mr) {
			n := testkit.Must(m.Rereg(provider.ReregAccess, nil, nil, provider.AccessLocalWrite))(t)
			t.Cleanup(func() { testkit.OK(t, n.Close()) })
		},
	} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, interruptible{testkit.Must(tcpNetwork(Options{}))(t)}, tcpAddr, Options{},
				sideOptions{}, params(true))
			src, dst := a.reg(size, open), b.reg(size, open)
			other := testkit.Must(a.pd.RegMR(src.b, open))(t).(*mr)
			t.Cleanup(func() { testkit.OK(t, other.Close()) })
			third := newThirdParty(t, a, a.pd)
			ended, written := make(chan struct{}), make(chan struct{})
			begun := false
			a.interrupt(func() {
				if begun {
					return
				}
				begun = true
				before := bytes.Clone(src.b)
				go func() { end(t, src.m); close(ended) }()
				for end := time.Now().Add(patience); !src.m.still.IsShut() && time.Now().Before(end); {
					time.Sleep(10 * time.Microsecond)
				}
				go func() { third.write(other.stag, other.base, 100); close(written) }()
				select {
				case <-ended:
					t.Error("the region was closed while it was being sent")
				case <-written:
					t.Error("the memory was written while it was being sent")
				case <-time.After(20 * time.Millisecond):
				}
				if !bytes.Equal(src.b, before) {
					t.Error("the memory has changed while it was being sent")
				}
			})
			a.send(provider.SendWR{
				WRID: 1, Opcode: provider.WRRDMAWrite, Flags: signaled,
				SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.stag,
			})
			a.wantWC("the Write", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
			<-ended
			<-written
			b.recv(provider.RecvWR{WRID: 2})
			a.send(provider.SendWR{Opcode: provider.WRSend})
			b.wantWC("all is there", provider.WC{WRID: 2, Opcode: provider.WCRecv})
		})
	}
}
