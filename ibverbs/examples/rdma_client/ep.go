package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/auto"
)

// resolveTimeout is rdma_create_ep's time limit, for address and route each.
const resolveTimeout = 2 * time.Second

// endpoint is what rdma_create_ep makes: in C all of these objects belong to the id.
type endpoint struct {
	vctx           *ibverbs.Context
	channel        *rdmacm.EventChannel
	id             *rdmacm.ID
	pd             *ibverbs.PD
	sendCQ, recvCQ *ibverbs.CQ
	qp             *ibverbs.QP
}

// createEP is rdma_create_ep for an active end: an id whose address and route are resolved,
// and its QP.
func createEP(ctx context.Context, addr netip.AddrPort) (_ *endpoint, err error) {
	ep := new(endpoint)
	defer func() {
		if err != nil {
			err = errors.Join(err, ep.destroy())
		}
	}()
	if ep.vctx, err = open(*provider, addr.Addr()); err != nil {
		return nil, err
	}
	if ep.channel, err = rdmacm.CreateEventChannel(ep.vctx); err != nil {
		return nil, err
	}
	if ep.id, err = ep.channel.CreateID(nil); err != nil {
		return nil, err
	}
	if err := ep.id.ResolveAddr(netip.AddrPort{}, addr, resolveTimeout); err != nil {
		return nil, err
	}
	if err := ep.await(ctx, rdmacm.AddrResolved); err != nil {
		return nil, err
	}
	if err := ep.id.ResolveRoute(resolveTimeout); err != nil {
		return nil, err
	}
	if err := ep.await(ctx, rdmacm.RouteResolved); err != nil {
		return nil, err
	}
	return ep, ep.createQP()
}

// createQP is rdma_create_qp of an id without PD and CQs, which makes them, too.
func (ep *endpoint) createQP() (err error) {
	if ep.pd, err = ep.vctx.AllocPD(); err != nil {
		return err
	}
	if ep.sendCQ, err = createCQ(ep.vctx); err != nil {
		return err
	}
	if ep.recvCQ, err = createCQ(ep.vctx); err != nil {
		return err
	}
	ep.qp, err = ep.id.CreateQP(ep.pd, &ibverbs.QPInitAttr{
		SendCQ: ep.sendCQ, RecvCQ: ep.recvCQ, SQSigAll: true,
		Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: messageLen},
	})
	return err
}

// createCQ makes a CQ for one completion, with a channel to wait on.
func createCQ(vctx *ibverbs.Context) (*ibverbs.CQ, error) {
	channel, err := vctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := vctx.CreateCQ(1, &ibverbs.CQOptions{Channel: channel})
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	return cq, nil
}

// await waits for an event of the id, and returns an error if the event reports a failure.
func (ep *endpoint) await(ctx context.Context, want rdmacm.EventType) error {
	event, err := ep.channel.GetEvent(ctx)
	if err != nil {
		return fmt.Errorf("waiting for %v: %w", want, err)
	}
	if err := event.Err(); err != nil {
		return err
	}
	if event.Type != want {
		return fmt.Errorf("waiting for %v: there is %v", want, event.Type)
	}
	return nil
}

// disconnect calls ID.Disconnect, which fails if the peer has disconnected first, and waits for
// the event, which comes in either case.
func (ep *endpoint) disconnect(ctx context.Context) error {
	_ = ep.id.Disconnect()
	return ep.await(ctx, rdmacm.Disconnected)
}

// destroy does what rdma_destroy_ep does. Close of an object that was never made does nothing.
func (ep *endpoint) destroy() error {
	return errors.Join(ep.qp.Close(), ep.id.Close(), ep.channel.Close(),
		closeCQ(ep.recvCQ), closeCQ(ep.sendCQ), ep.pd.Close(), ep.vctx.Close())
}

func closeCQ(cq *ibverbs.CQ) error { return errors.Join(cq.Close(), cq.Channel().Close()) }

// open opens a device. auto takes one of the kernel if it leads to addr, otherwise the
// engine.
func open(provider string, addr netip.Addr) (*ibverbs.Context, error) {
	p, err := auto.Named(provider, &auto.Options{Addr: addr})
	if err != nil {
		return nil, fmt.Errorf("--provider: %w", err)
	}
	return ibverbs.Open(p, "")
}
