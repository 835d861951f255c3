package ibverbs

import (
	"fmt"

	"github.com/govs-rdma/govs/provider"
)

// The texts of objects, for log lines. String methods may be called at any time, even on a nil or
// closed object, and take no lock that a caller can hold.

// String returns the QP's number, state and sizes: "qp 17 (IBV_QPS_RTS, up to 64 sends, 64
// receives)".
func (qp *QP) String() string {
	if qp == nil || qp.p == nil {
		return "nil qp"
	}
	attr, init, err := qp.Query()
	if err != nil {
		return qp.obj.Name() + " (closed)"
	}
	receives := fmt.Sprintf("%d receives", init.Cap.MaxRecvWR)
	if qp.srq != nil {
		receives = "receives of an srq"
	}
	return fmt.Sprintf("%s (%s, up to %d sends, %s)", qp.obj.Name(), attr.State, init.Cap.MaxSendWR, receives)
}

// String returns the MR's key, length and rights: "mr 0x1f00 (4096 bytes, IBV_ACCESS_LOCAL_WRITE)".
func (mr *MR) String() string {
	p := mr.p()
	switch {
	case p == nil:
		return "nil mr"
	case mr.obj.Closed():
		return mr.obj.Name() + " (closed)"
	}
	return fmt.Sprintf("%s (%d bytes, %s)", mr.obj.Name(), p.Len(), p.Access())
}

// String returns the CQ's number on its device, counted from 1 in the order of creation, and its
// capacity. A cookie that is a string, or has a String method, is part of the text: "cq 3 of siw0
// (room for 64 completions, requests)".
func (cq *CQ) String() string {
	switch {
	case cq == nil || cq.p == nil:
		return "nil cq"
	case cq.obj.Closed():
		return cq.obj.Name() + " (closed)"
	}
	s := fmt.Sprintf("%s (room for %d completions", cq.obj.Name(), cq.p.CQE())
	return s + cookieText(cq.cookie) + ")"
}

// cookieText returns what a cookie adds to the text of its object.
func cookieText(cookie any) string {
	switch c := cookie.(type) {
	case string:
		return ", " + c
	case fmt.Stringer:
		return ", " + c.String()
	}
	return ""
}

// String returns the device's name, provider and kind, and what is open on it: "siw0 (kernel,
// IBV_TRANSPORT_IWARP; open: 1 PD, 2 CQ)".
func (c *Context) String() string {
	switch {
	case c == nil || c.dev == nil:
		return "nil context"
	case c.obj.Closed():
		return c.obj.Name() + " (closed)"
	}
	s := fmt.Sprintf("%s (%s, %s", c.obj.Name(), c.provider, c.dev.Transport())
	if open := c.obj.Children(); open != "" {
		s += "; open: " + open
	}
	return s + ")"
}

// String returns the PD's number on its device, counted from 1, and what is open on it: "pd 1 of
// siw0 (1 QP, 3 MR)".
func (pd *PD) String() string {
	switch {
	case pd == nil || pd.p == nil:
		return "nil pd"
	case pd.obj.Closed():
		return pd.obj.Name() + " (closed)"
	}
	if open := pd.obj.Children(); open != "" {
		return pd.obj.Name() + " (" + open + ")"
	}
	return pd.obj.Name()
}

// String returns the SRQ's number on its device, counted from 1, its size and limit, and its cookie
// as a CQ's String does: "srq 1 of siw0 (up to 64 receives, limit 16)".
func (srq *SRQ) String() string {
	if srq == nil || srq.p == nil {
		return "nil srq"
	}
	attr, err := srq.Query()
	if err != nil {
		return srq.obj.Name() + " (closed)"
	}
	return fmt.Sprintf("%s (up to %d receives, limit %d%s)", srq.obj.Name(), attr.MaxWR, attr.Limit,
		cookieText(srq.cookie))
}

// String returns the window's key and type: "mw 0x1f00 (IBV_MW_TYPE_2)".
func (mw *MW) String() string {
	switch {
	case mw == nil || mw.p == nil:
		return "nil mw"
	case mw.obj.Closed():
		return mw.obj.Name() + " (closed)"
	}
	return fmt.Sprintf("mw %#x (%s)", mw.p.RKey(), mw.p.Type())
}

var (
	_ fmt.Stringer = (*QP)(nil)
	_ fmt.Stringer = (*MR)(nil)
	_ fmt.Stringer = (*CQ)(nil)
	_ fmt.Stringer = (*Context)(nil)
	_ fmt.Stringer = (*PD)(nil)
	_ fmt.Stringer = (*SRQ)(nil)
	_ fmt.Stringer = (*MW)(nil)
	_ fmt.Stringer = provider.WC{}
	_ fmt.Stringer = provider.Access(0)
)
