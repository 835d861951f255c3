package engine

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// SetOption implements provider.ID. The upper six bits of a type of service are the
// DSCP of the socket's packets, the lower two are TCP's own. With REUSEADDR an address
// may be bound that others have bound with it, until one of them listens; unlike with
// the kernel, so may one that they all share be without it. Either has
// an effect before Connect or Listen only, and AFONLY, and REUSEADDR 0, before BindAddr;
// later is EINVAL. An ACK timeout is unsupported: TCP retransmits.
func (id *cmID) SetOption(option provider.IDOption, value int) error {
	const op = "rdma_set_option"
	if err := option.Check(value); err != nil {
		return fail(op, "", err)
	}
	if option == provider.IDOptionAckTimeout {
		return fail(op, "", failUnsupported(option.String(), "TCP chooses when it retransmits; Options.TCP.UserTimeout says when it gives up"))
	}
	allowed := []cmState{idIdle, idBound, idResolved, idRouted}
	if option == provider.IDOptionAFOnly || option == provider.IDOptionReuseAddr && value == 0 {
		allowed = allowed[:1]
	}
	if err := id.enter(op, allowed...); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := id.adjust(option, value); err != nil {
		return fail(op, id.name(), fmt.Errorf("%s = %d: %w", option, value, err))
	}
	return nil
}

// adjust changes the sockets that id makes, and the one that it has bound. id.mu is
// held.
func (id *cmID) adjust(option provider.IDOption, value int) error {
	change := func(o *transport.TCPOptions) { o.V6Only = value == 1 }
	switch option {
	case provider.IDOptionTOS:
		change = func(o *transport.TCPOptions) { o.DSCP = value >> 2 }
	case provider.IDOptionReuseAddr:
		change = func(o *transport.TCPOptions) { o.ReuseAddr = value == 1 }
	}
	adjustable, ok := id.network().(transport.Adjustable)
	if !ok {
		return failUnsupported(option.String(), "the engine's network has no sockets with options")
	}
	network, err := adjustable.With(change)
	if err != nil {
		return err
	}
	if id.binding != nil {
		binding, ok := id.binding.(transport.AdjustableBinding)
		if !ok {
			return fmt.Errorf("the id is bound: %w", syscall.EINVAL)
		}
		if err := binding.With(change); err != nil {
			return err
		}
	}
	id.adjusted = network
	return nil
}

// network is what id makes its sockets with. id.mu is held.
func (id *cmID) network() transport.Network {
	if id.adjusted != nil {
		return id.adjusted
	}
	return id.dev.opts.Network
}
