package mutants

import (
	"context"

	"github.com/govs-rdma/govs/provider"
)

type brokenEvents struct {
	provider.EventChannel
	dev *brokenDevice
}

// CreateID implements provider.EventChannel.
func (c *brokenEvents) CreateID(cookie any) (provider.ID, error) {
	id, err := c.EventChannel.CreateID(cookie)
	if err != nil {
		return nil, err
	}
	return c.dev.id(id), nil
}

// id returns the one brokenID that wraps an id.
func (d *brokenDevice) id(id provider.ID) provider.ID {
	if id == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.ids[id]
	if b == nil {
		b = &brokenID{id, d}
		d.ids[id] = b
	}
	return b
}

// Next implements provider.EventChannel.
func (c *brokenEvents) Next(ctx context.Context) (provider.CMEvent, error) {
	for {
		e, err := c.EventChannel.Next(ctx)
		if err != nil {
			return e, err
		}
		e.ID, e.ListenID, e.Param.QP = c.dev.id(e.ID), c.dev.id(e.ListenID), c.dev.qp(e.Param.QP)
		if f := c.dev.fault.event; f == nil || f(&e) {
			return e, nil
		}
	}
}

type brokenID struct {
	provider.ID
	dev *brokenDevice
}

// CreateQP implements provider.ID.
func (i *brokenID) CreateQP(pd provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	if b, ok := pd.(*brokenPD); ok {
		pd = b.PD
	}
	return i.dev.createQP(init, func(init provider.QPInitAttr) (provider.QP, error) { return i.ID.CreateQP(pd, init) })
}

// param replaces a brokenQP by the engine's own QP, and applies the fault.
func (i *brokenID) param(p provider.ConnParam) provider.ConnParam {
	if b, ok := p.QP.(*brokenQP); ok {
		p.QP = b.QP
	}
	if f := i.dev.fault.param; f != nil {
		f(&p)
	}
	return p
}

// Connect implements provider.ID.
func (i *brokenID) Connect(p provider.ConnParam) error { return i.ID.Connect(i.param(p)) }

// Accept implements provider.ID.
func (i *brokenID) Accept(p provider.ConnParam) error { return i.ID.Accept(i.param(p)) }

// Migrate implements provider.ID.
func (i *brokenID) Migrate(ch provider.EventChannel) error {
	if b, ok := ch.(*brokenEvents); ok {
		ch = b.EventChannel
	}
	return i.ID.Migrate(ch)
}

// Close implements provider.ID.
func (i *brokenID) Close() error {
	err := i.ID.Close()
	if err == nil {
		i.dev.mu.Lock()
		delete(i.dev.ids, i.ID)
		i.dev.mu.Unlock()
	}
	return err
}
