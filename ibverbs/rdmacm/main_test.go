package rdmacm_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var wantErr = testkit.WantErr

// patience is how long a test may wait for what has to happen. Under the race detector beside
// others on two CPUs, or in an emulated guest, an operation of a second may take half a minute.
const patience = 2 * time.Minute

// timeout ends a test that would hang.
func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var somewhere = netip.MustParseAddrPort("192.0.2.7:7471")

// newFake returns a context over a fake. script has the event for each CM call, as a list of "call"
// and event.
func newFake(t testing.TB, script map[string]provider.CMEvent) (*fake.Provider, *ibverbs.Context) {
	t.Helper()
	f := fake.New()
	f.OnCM = func(id *fake.ID, call string) {
		if e, ok := script[call]; ok {
			id.Event(e.Type, e.Status, e.Param.PrivateData)
		}
	}
	vctx := testkit.Must(ibverbs.Open(f, ""))(t)
	return f, vctx
}

// goodDial is the script of a Dial that succeeds.
func goodDial() map[string]provider.CMEvent {
	return map[string]provider.CMEvent{
		"resolve addr":  {Type: provider.CMAddrResolved},
		"resolve route": {Type: provider.CMRouteResolved},
		"connect":       {Type: provider.CMEstablished, Param: provider.ConnParam{PrivateData: []byte("welcome")}},
		"accept":        {Type: provider.CMEstablished},
		"disconnect":    {Type: provider.CMDisconnected},
	}
}

// Questions of the tests about the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// repeats returns how often a test repeats its steps: engine, or kernel on a kernel device, where a
// connection takes much longer.
func repeats(engine, kernel int) int {
	if onKernel() {
		return kernel
	}
	return engine
}

// elsewhere matches the tests that also run on siw, and the examples.
const elsewhere = "^TestConn|^TestNames$|^TestLinkLocal$|^Example"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// onlyOnRxe are the tests of elsewhere that run on rxe. They cover rxe's differences, names and
// addresses, and each way to use a connection. They show that nothing in this package is bound to
// siw; kernel.TestRxe covers connections on rxe.
const onlyOnRxe = "^TestConn(PrivateData|ReceiverOfWritesWithImm|PeerDisconnectsUnasked|AnswerBeforeAccept|" +
	"ShutdownDelivers|NobodyThere|SharedParts|Do|DoFaults|DoOfMany|Receiver|ReceiverOfSRQ|ReceiverFaults|" +
	"Messages|SendBytesOfMany)$" +
	"|^TestNames$|^TestLinkLocal$|^Example"

// TestOnRxe runs the tests of onlyOnRxe on rxe.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, onlyOnRxe, nil) }

// notOnSiw are the tests for which siw lacks features.
var notOnSiw = map[string]string{
	"TestConnReadDepths":              "siw does not report the depths that it has negotiated",
	"TestConnReceiverOfWritesWithImm": "siw has no immediate data",
	"TestConnAnswerBeforeDial": "the accepting side sends before the dialling one has read its " +
		"Reply, and siw refuses bytes after a Reply (kernel-notes/siw-responder-speaks-first.md)",
}
