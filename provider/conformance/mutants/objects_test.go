package mutants_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestSameObjects shows that a mutant's calls return the objects that it made,
// not those of the engine after them.
func TestSameObjects(t *testing.T) {
	p := (&mutants.Mutant{Name: soundName}).New(&engine.Options{Network: memnet.New(nil)})
	d := testkit.Must(p.Open(""))(t)
	closing(t, d)
	ch := testkit.Must(d.CreateCompChannel())(t)
	closing(t, ch)
	cq := testkit.Must(d.CreateCQ(provider.CQInitAttr{CQE: 8, Channel: ch, Cookie: "cq"}))(t)
	closing(t, cq)
	pd := testkit.Must(d.AllocPD())(t)
	closing(t, pd)
	qp := testkit.Must(pd.CreateQP(provider.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 1}, Cookie: "qp"}))(t)
	closing(t, qp)
	if _, init, err := qp.Query(); err != nil || init.SendCQ != cq || init.RecvCQ != cq {
		t.Errorf("the QP's CQs are %v and %v, error %v", init.SendCQ, init.RecvCQ, err)
	}

	// A receive that is flushed fires the channel.
	if err := cq.ReqNotify(false); err != nil {
		t.Fatal(err)
	}
	if _, err := qp.PostRecv([]provider.RecvWR{{WRID: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := ch.Next(ctx); err != nil || got != cq || got.Cookie() != "cq" {
		t.Errorf("the channel tells of %v, error %v", got, err)
	}

	events := testkit.Must(d.CreateEventChannel())(t)
	closing(t, events)
	other := testkit.Must(d.CreateEventChannel())(t)
	closing(t, other)
	id := testkit.Must(events.CreateID("id"))(t)
	closing(t, id)
	if err := id.Migrate(other); err != nil {
		t.Fatal(err)
	}
	if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:7"), time.Second); err != nil {
		t.Fatal(err)
	}
	e, err := other.Next(ctx)
	if err != nil || e.ID != id || e.ListenID != nil || e.Param.QP != nil || e.ID.Cookie() != "id" {
		t.Errorf("the event is %+v, error %v", e, err)
	}
	short, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if e, err := d.AsyncEvent(short); !errors.Is(err, context.DeadlineExceeded) || e.QP != nil || e.CQ != nil {
		t.Errorf("the asynchronous event is %+v, error %v", e, err)
	}
}

func closing(t *testing.T, o interface{ Close() error }) {
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	})
}
