package cm

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// SetOption implements provider.ID. The upper six bits of a type of service are the DSCP of the
// socket's packets; TCP uses the lower two. REUSEADDR lets the id bind an address that others have
// bound with it, until one of them listens. Unlike with the kernel, an id without REUSEADDR may
// bind such a shared address, too. Both options have an effect only before Connect or Listen;
// AFONLY, and REUSEADDR 0, only before BindAddr. Later calls return EINVAL. An ACK timeout is
// unsupported: TCP retransmits.
func (id *ID) SetOption(option provider.IDOption, value int) error {
	const op = "rdma_set_option"
	if err := option.Check(value); err != nil {
		return fail(op, "", err)
	}
	if option == provider.IDOptionAckTimeout {
		return fail(op, "", unsupported(option, "TCP chooses when it retransmits; "+
			"Options.TCP.UserTimeout says when it gives up"))
	}
	allowed := []idState{idIdle, idBound, idResolved, idRouted}
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

// adjust changes the sockets that id makes, and the socket that it has bound. id.mu is held.
func (id *ID) adjust(option provider.IDOption, value int) error {
	change := func(o *transport.TCPOptions) { o.V6Only = value == 1 }
	switch option {
	case provider.IDOptionTOS:
		change = func(o *transport.TCPOptions) { o.DSCP = value >> 2 }
	case provider.IDOptionReuseAddr:
		change = func(o *transport.TCPOptions) { o.ReuseAddr = value == 1 }
	}
	adjustable, ok := id.network().(transport.Adjustable)
	if !ok {
		return unsupported(option, "the engine's network has no sockets with options")
	}
	network, err := adjustable.With(change)
	if err != nil {
		return err
	}
	if id.binding != nil {
		binding, ok := id.binding.(transport.AdjustableBinding)
		if !ok {
			return fmt.Errorf("the id is bound; set it before: %w", syscall.EINVAL)
		}
		if err := binding.With(change); err != nil {
			return err
		}
	}
	id.adjusted = network
	return nil
}

// network returns the network that makes id's sockets. id.mu is held.
func (id *ID) network() transport.Network {
	if id.adjusted != nil {
		return id.adjusted
	}
	return id.m.cfg.Network
}

// unsupported returns the error of an option that the id does not have.
func unsupported(option provider.IDOption, reason string) error {
	return &provider.UnsupportedError{Feature: option.String(), Reason: reason}
}
