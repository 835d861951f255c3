//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

// The functions below explain errnos that the libraries and drivers return without a reason. They
// run only after a call has failed, because a call may succeed beyond the limits that a device
// reports. Each function returns the error unchanged if it has no explanation.

// because adds why to err if err is only the errno.
func because(err error, errno syscall.Errno, why string) error {
	if err != errno || why == "" { // an error that wraps it already says more
		return err
	}
	return fmt.Errorf("%s: %w", why, err)
}

// size is a requested number and its limits.
type size struct {
	name           string
	asked, low, up int
}

// outside describes the first of sizes that is not within its limits, or returns "" if all are.
func outside(sizes ...size) string {
	for _, s := range sizes {
		if s.asked < s.low || s.asked > s.up {
			return fmt.Sprintf("%s is %d, and must be from %d to %d", s.name, s.asked, s.low, s.up)
		}
	}
	return ""
}

// whyNoCQ explains a refusal of ibv_create_cq.
func (d *device) whyNoCQ(init *provider.CQInitAttr, err error) error {
	return because(err, syscall.EINVAL, outside(
		size{"the number of completions", init.CQE, 1, d.attr.MaxCQE},
		size{"CompVector", init.CompVector, 0, d.shared.verbs.NumCompVectors() - 1},
	))
}

// whyNoQP explains a refusal of ibv_create_qp and rdma_create_qp.
func (d *device) whyNoQP(init *provider.QPInitAttr, err error) error {
	if init.Type != 0 && init.Type != provider.QPTypeRC {
		return because(err, syscall.EOPNOTSUPP,
			fmt.Sprintf("QP type %d; only reliable connections (RC) are possible", init.Type))
	}
	a, k := &d.attr, &init.Cap
	sizes := []size{
		{"MaxSendWR", k.MaxSendWR, 1, a.MaxQPWR}, {"MaxRecvWR", k.MaxRecvWR, 0, a.MaxQPWR},
		{"MaxSendSGE", k.MaxSendSGE, 0, a.MaxSGE}, {"MaxRecvSGE", k.MaxRecvSGE, 0, a.MaxSGE},
	}
	if d.libsiw {
		sizes = append(sizes, size{"MaxInlineData", k.MaxInlineData, 0, siwMaxInline})
	}
	return because(err, syscall.EINVAL, outside(sizes...))
}

// whyNoSRQ explains a refusal of ibv_create_srq.
func (d *device) whyNoSRQ(a provider.SRQAttr, err error) error {
	return because(err, syscall.EINVAL, outside(
		size{"MaxWR", a.MaxWR, 1, d.attr.MaxSRQWR}, size{"MaxSGE", a.MaxSGE, 0, d.attr.MaxSRQSGE}))
}

// whyNoAddr explains a refusal of rdma_resolve_addr.
func whyNoAddr(src, dst netip.AddrPort, err error) error {
	switch {
	case src.IsValid() && dst.IsValid() && src.Addr().Is4() != dst.Addr().Is4():
		return because(err, syscall.EINVAL,
			fmt.Sprintf("%s and %s are of different families; leave the local address out, or "+
				"use one of the peer's family", src.Addr(), dst.Addr()))
	case src.IsValid() && err == syscall.EADDRNOTAVAIL: // the C call's
		return because(err, syscall.EADDRNOTAVAIL,
			fmt.Sprintf("no interface with an RDMA device has the address %s to connect from; "+
				"rdma link and ip addr list those there are", src.Addr()))
	case dst.Addr().IsLoopback():
		return because(err, syscall.EINVAL,
			"no RDMA device has a loopback address; use the address of the interface under the "+
				"device")
	}
	return err
}

// whyNotBound explains a refusal of rdma_bind_addr, or of rdma_listen, for addr.
func whyNotBound(addr netip.Addr, err error) error {
	why := ""
	switch {
	case err == syscall.EADDRINUSE:
		why = "another listener or TCP socket has it; take another port, or port 0 for any that is free"
	case err == syscall.EADDRNOTAVAIL:
		why = "no interface of this machine has the address; ip addr lists those it has"
	case err == syscall.EINVAL && addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		why = fmt.Sprintf("a link-local address needs a zone, as in %s%%eth0", addr)
	default:
		return err
	}
	return fmt.Errorf("%s: %w", why, err)
}

// whyNotChanged explains a refusal of ibv_modify_qp.
func whyNotChanged(attr *provider.QPAttr, mask provider.QPAttrMask, err error) error {
	if mask&provider.QPAttrState == 0 {
		return err
	}
	return because(err, syscall.EINVAL, fmt.Sprintf("the change to %s is not possible, because of "+
		"the queue pair's state or of these attributes", attr.State))
}

// whyNotConnected explains a refusal of rdma_connect.
func (i *id) whyNotConnected(err error) error {
	switch {
	case !i.RemoteAddr().IsValid():
		return because(err, syscall.EINVAL,
			"the id has no route yet; call ResolveAddr and ResolveRoute, and wait for their events")
	case i.qp.Load() == nil:
		return because(err, syscall.EINVAL, "the id has no QP; call ID.CreateQP, or set ConnParam.QP")
	}
	return because(err, syscall.ECONNREFUSED, "nobody listens there; start the server first")
}

// Errors of posting are made in advance, because programs fill queues on purpose.
var (
	errSendFull = fmt.Errorf("the send queue is full; poll the send CQ: a completion frees "+
		"its place and those before it: %w", syscall.ENOMEM)
	errRecvFull = fmt.Errorf("the receive queue is full; post again after a receive has "+
		"completed: %w", syscall.ENOMEM)
	errSRQFull = fmt.Errorf("the shared receive queue is full; post again after a receive "+
		"has completed: %w", syscall.ENOMEM)
)

// whyNoPost explains a refusal to post; full is the error for a full queue.
func whyNoPost(err, full error) error {
	if err == syscall.ENOMEM { // the C call's
		return full
	}
	return err
}

// whyNoRegion explains why ibv_reg_mr refuses the rights.
func whyNoRegion(access provider.Access, err error) error {
	const writes = provider.AccessRemoteWrite | provider.AccessRemoteAtomic
	if access&writes != 0 && access&provider.AccessLocalWrite == 0 {
		return because(err, syscall.EINVAL,
			"AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite, too")
	}
	return err
}

// whyNoPort explains why a query of a port fails.
func whyNoPort(a *ibv.DeviceAttr, port uint8, err error) error {
	return because(err, syscall.EINVAL, outside(size{"the port", int(port), 1, int(a.PhysPortCnt)}))
}
