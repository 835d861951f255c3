package ibverbs_test

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// processes are the functions that the test program runs instead of its tests if the environment's
// GOVS_TEST_PROCESS names one.
var processes = map[string]func() error{}

func TestMain(m *testing.M) {
	if be := processes[os.Getenv("GOVS_TEST_PROCESS")]; be != nil {
		check(be())
		return
	}
	goleak.VerifyTestMain(m)
}

var wantErr = testkit.WantErr

// wantErrno checks err for an errno, and that it is not another one.
func wantErrno(t testing.TB, what string, err error, errno syscall.Errno, words ...string) {
	t.Helper()
	wantErr(t, what, err, errno, words...)
	if got := ibverbs.Errno(err); err != nil && got != errno {
		t.Errorf("%s: Errno is %v, want %v", what, got, errno)
	}
}

// objects is one of each, over a fake.
type objects struct {
	fake *fake.Provider
	ctx  *ibverbs.Context
	pd   *ibverbs.PD
	mr   *ibverbs.MR
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ
	qp   *ibverbs.QP
	srq  *ibverbs.SRQ // not made by newObjects
}

// newSRQ makes an SRQ of the PD.
func (o *objects) newSRQ(t testing.TB) *ibverbs.SRQ {
	t.Helper()
	return testkit.Must(o.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 4, MaxSGE: 1}, Cookie: "my srq"}))(t)
}

func newObjects(t testing.TB) *objects {
	t.Helper()
	o := &objects{fake: fake.New()}
	o.ctx = testkit.Must(ibverbs.Open(o.fake, ""))(t)
	o.pd = testkit.Must(o.ctx.AllocPD())(t)
	o.mr = testkit.Must(o.pd.AllocMR(4096, ibverbs.AccessLocalWrite))(t)
	o.ch = testkit.Must(o.ctx.CreateCompChannel())(t)
	o.cq = testkit.Must(o.ctx.CreateCQ(16, &ibverbs.CQOptions{Channel: o.ch, Cookie: "my cq"}))(t)
	o.qp = testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{
		SendCQ: o.cq, RecvCQ: o.cq, Cap: ibverbs.QPCap{MaxSendWR: 8}, Cookie: "my qp",
	}))(t)
	return o
}

// patience is how long a test may wait for what has to happen. Under the race detector beside
// others on two CPUs, or in an emulated guest, an operation of a second may take half a minute.
const patience = 2 * time.Minute

// timeout ends a test that would hang.
func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

const remoteRights = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

// done posts wr to conn, signalled, and returns how it ended.
func done(t *testing.T, ctx context.Context, conn *rdmacm.Conn, wr ibverbs.SendWR) error {
	t.Helper()
	wr.Flags |= ibverbs.SendSignaled
	if err := conn.QP().PostSend(wr); err != nil {
		return err
	}
	var wc [1]ibverbs.WC
	_, err := conn.SendCQ().PollWait(ctx, wc[:])
	testkit.OK(t, err)
	return wc[0].Err()
}

// read has conn read all of a region into sink.
func read(t *testing.T, ctx context.Context, conn *rdmacm.Conn, sink *ibverbs.MR, r ibverbs.RemoteRegion) error {
	t.Helper()
	sge := testkit.Must(sink.SGE(0, int(r.Len)))(t)
	return done(t, ctx, conn, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: r.Addr, RKey: r.RKey})
}

// Questions of the tests about the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// elsewhere matches the tests and examples that also run on kernel devices: invalid uses, memory,
// queues, SRQs, events and states.
const elsewhere = "^Example|^TestBad|^TestMemory|^TestQueue|^TestSRQ|^TestEvents|^TestStates|^TestWrongUses"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// TestOnRxe runs the tests of elsewhere on rxe.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, elsewhere, notOnRxe) }

// notOnSiw are the tests for which siw lacks features.
var notOnSiw = map[string]string{}

// notOnRxe are the tests for which rxe lacks features.
var notOnRxe = map[string]string{
	"TestEventsSQDrained": "rxe looks whether all is done when there is something to send, " +
		"and tells whether it was asked to or not: kernel.TestRxe has what holds",
	"TestSRQRunsDry": "RoCE sends a message without a receive again, and the connection goes on: " +
		"kernel.TestRxe (receiver not ready)",
	"TestSRQStats":  "RoCE sends a message without a receive again, and the connection goes on",
	"TestStates":    "RC moves with InfiniBand's attributes only: kernel.TestRxe (QP states)",
	"TestWrongUses": "the table is of iWARP",
}
