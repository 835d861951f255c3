package auto

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// try uses a device as a program would, up to a connection. It returns what it did, or what the
// device could not do. It closes everything that it makes.
func try(p provider.Provider, name string, o Options) (did string, err error) {
	dev, err := p.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()

	port, err := dev.QueryPort(1)
	if err != nil {
		return "", err
	}
	if port.State != provider.PortActive {
		return "", fmt.Errorf("its port is %v: the interface under it may be down", port.State)
	}
	if err := tryQP(dev); err != nil {
		return "", err
	}
	if err := tryID(dev, name, o); err != nil {
		return "", err
	}
	if o.Addr.IsValid() && !o.Addr.IsUnspecified() {
		return fmt.Sprintf("a QP was made on it and it leads to %v", o.Addr), nil
	}
	return "a QP was made on it", nil
}

// tryQP makes a QP and the objects that it needs.
func tryQP(dev provider.Device) (err error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	ch, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	cq, err := dev.CreateCQ(provider.CQInitAttr{CQE: 2, Channel: ch})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cq.Close()) }()
	qp, err := pd.CreateQP(provider.QPInitAttr{
		SendCQ: cq, RecvCQ: cq, Type: provider.QPTypeRC,
		Cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	return qp.Close()
}

// tryID makes an id. If o has an address, it also checks that the device has a route to it.
func tryID(dev provider.Device, name string, o Options) (err error) {
	ec, err := dev.CreateEventChannel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ec.Close()) }()
	id, err := ec.CreateID(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, id.Close()) }()
	if !o.Addr.IsValid() || o.Addr.IsUnspecified() {
		return nil
	}
	if err := resolve(ec, id, o.Addr, o.ResolveTimeout); err != nil {
		return fmt.Errorf("doesn't lead to %v: %w", o.Addr, err)
	}
	if got := id.DeviceName(); got != name {
		return fmt.Errorf("doesn't lead to %v: %q does", o.Addr, got)
	}
	return nil
}

// resolve binds id to the device with a route to addr. The port does not matter.
func resolve(ec provider.EventChannel, id provider.ID, addr netip.Addr, timeout time.Duration) error {
	if err := id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(addr, 1), timeout); err != nil {
		return err
	}
	// The connection manager has this time limit too; the context is for a manager that does not
	// keep to it.
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Second)
	defer cancel()
	e, err := ec.Next(ctx)
	if err != nil {
		return err
	}
	if e.Type != provider.CMAddrResolved {
		return fmt.Errorf("%v, status %d", e.Type, e.Status)
	}
	return nil
}
