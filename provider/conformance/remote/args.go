package remote

import (
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// The names of requests without a C call.
const (
	verbPull    = "pull"
	verbIntact  = "intact"
	verbCapture = "capture"
	verbStop    = "capture-stop"
	verbClock   = "clock"
	verbKey     = "key"
	verbRegion  = "region"
	verbCQE     = "cqe"
	verbAddr    = "addresses"
	verbCause   = "cause"
)

// Arguments and results of the requests that package provider has no type for. They name objects by
// the number that the agent assigned, 0 for nil.
type (
	openArgs struct {
		Provider string   `json:"provider"`
		Device   string   `json:"device"`
		Options  []string `json:"options,omitempty"`
		Slot     uint16   `json:"slot"`
	}
	opened struct {
		Handle    uint32                 `json:"handle"`
		Name      string                 `json:"name"`
		Transport provider.TransportType `json:"transport"`
	}
	made struct {
		Handle uint32 `json:"handle"`
		Number uint32 `json:"number,omitempty"` // of a QP
	}
	portArgs struct {
		Port  uint8 `json:"port"`
		Index int   `json:"index"`
	}
	cqArgs struct {
		CQE     int    `json:"cqe"`
		Channel uint32 `json:"channel,omitempty"`
		Vector  int    `json:"vector,omitempty"`
	}
	numberArgs struct {
		N int `json:"n"`
	}
	notifyArgs struct {
		Solicited bool `json:"solicited,omitempty"`
	}
	polled struct {
		WCs  []provider.WC `json:"wcs,omitempty"`
		More bool          `json:"more,omitempty"` // the agent has polled for fewer than requested
	}
	posted struct {
		N int `json:"n"`
	}
	sendArgs struct {
		WRs []provider.SendWR `json:"wrs"`
	}
	recvArgs struct {
		WRs []provider.RecvWR `json:"wrs"`
	}
	srqArgs struct {
		Attr provider.SRQAttr     `json:"attr"`
		Mask provider.SRQAttrMask `json:"mask,omitempty"`
	}
	// span is a part of the program's memory: bytes of a block, or no bytes.
	span struct {
		Block uint32 `json:"block,omitempty"`
		Off   uint64 `json:"off,omitempty"`
		Len   uint64 `json:"len,omitempty"`
		Nil   bool   `json:"nil,omitempty"`
	}
	regArgs struct {
		Span   span            `json:"span"`
		Access provider.Access `json:"access"`
		Iova   *uint64         `json:"iova,omitempty"`
	}
	reregArgs struct {
		Change provider.ReregFlags `json:"change"`
		PD     uint32              `json:"pd,omitempty"`
		Span   span                `json:"span"`
		Access provider.Access     `json:"access"`
	}
	fastArgs struct {
		MaxLen uint64 `json:"max_len"`
	}
	region struct {
		Handle uint32          `json:"handle,omitempty"`
		Addr   uint64          `json:"addr"`
		Len    uint64          `json:"len"`
		LKey   uint32          `json:"lkey"`
		RKey   uint32          `json:"rkey"`
		Access provider.Access `json:"access"`
	}
	mwArgs struct {
		Type provider.MWType `json:"type"`
	}
	bindArgs struct {
		MW    uint32              `json:"mw"`
		WRID  uint64              `json:"wrid"`
		Flags provider.SendFlags  `json:"flags,omitempty"`
		Info  provider.MWBindInfo `json:"info"`
	}
	qpArgs struct {
		PD       uint32          `json:"pd,omitempty"`
		SendCQ   uint32          `json:"send_cq,omitempty"`
		RecvCQ   uint32          `json:"recv_cq,omitempty"`
		SRQ      uint32          `json:"srq,omitempty"`
		Cap      provider.QPCap  `json:"cap"`
		Type     provider.QPType `json:"type,omitempty"`
		SQSigAll bool            `json:"sq_sig_all,omitempty"`
	}
	modifyArgs struct {
		Attr provider.QPAttr     `json:"attr"`
		Mask provider.QPAttrMask `json:"mask"`
	}
	queried struct {
		Attr provider.QPAttr `json:"attr"`
		Init qpArgs          `json:"init"`
	}
	cause struct {
		Err *wireError `json:"err,omitempty"`
	}
	asyncEvent struct {
		Type provider.AsyncEventType `json:"type"`
		QP   uint32                  `json:"qp,omitempty"`
		CQ   uint32                  `json:"cq,omitempty"`
		SRQ  uint32                  `json:"srq,omitempty"`
		Port uint8                   `json:"port,omitempty"`
	}
	connParam struct {
		PrivateData        []byte `json:"private_data"`
		ResponderResources int    `json:"responder_resources,omitempty"`
		InitiatorDepth     int    `json:"initiator_depth,omitempty"`
		RetryCount         int    `json:"retry_count,omitempty"`
		RNRRetryCount      int    `json:"rnr_retry_count,omitempty"`
		QP                 uint32 `json:"qp,omitempty"`
	}
	cmEvent struct {
		Type   provider.CMEventType `json:"type"`
		Status int                  `json:"status,omitempty"`
		Cause  *wireError           `json:"cause,omitempty"`
		ID     uint32               `json:"id,omitempty"`
		Listen uint32               `json:"listen,omitempty"`
		Param  connParam            `json:"param"`
		RDMAC  bool                 `json:"rdmac,omitempty"`
	}
	bindAddrArgs struct {
		Addr netip.AddrPort `json:"addr"`
	}
	resolveArgs struct {
		Src     netip.AddrPort `json:"src"`
		Dst     netip.AddrPort `json:"dst"`
		Timeout time.Duration  `json:"timeout"`
	}
	privateArgs struct {
		PrivateData []byte `json:"private_data"`
	}
	channelArgs struct {
		Channel uint32 `json:"channel"`
	}
	optionArgs struct {
		Option provider.IDOption `json:"option"`
		Value  int               `json:"value"`
	}
	addresses struct {
		Local  netip.AddrPort `json:"local"`
		Remote netip.AddrPort `json:"remote"`
		Device string         `json:"device,omitempty"`
	}
	captureArgs struct {
		Port uint16 `json:"port"`
	}
	clockReading struct {
		Now time.Time `json:"now"`
	}
)

// bytes returns what poll charges for the completions, which is nothing for the first.
func (p polled) bytes() uint64 { return uint64(max(len(p.WCs), 1)-1) * wcBytes }

func paramOf(p *provider.ConnParam) connParam {
	return connParam{PrivateData: p.PrivateData, ResponderResources: p.ResponderResources,
		InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCount,
		RNRRetryCount: p.RNRRetryCount}
}

func (p *connParam) param() provider.ConnParam {
	return provider.ConnParam{PrivateData: p.PrivateData,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount}
}
