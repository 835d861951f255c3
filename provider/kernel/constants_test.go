//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// The provider passes enumerations through as numbers, so the contract's values must equal those of
// the C headers, and String must return the C name.

func TestEnumerationsHaveTheValuesAndNamesOfC(t *testing.T) {
	c := ibv.Constants()
	maps.Copy(c, rdmacm.Constants())
	for _, v := range []fmt.Stringer{
		provider.WRRDMAWrite, provider.WRRDMAWriteWithImm, provider.WRSend, provider.WRSendWithImm, provider.WRRDMARead,
		provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd, provider.WRLocalInv, provider.WRBindMW, provider.WRSendWithInv,

		provider.WCSuccess, provider.WCLocLenErr, provider.WCLocQPOpErr, provider.WCLocEECOpErr, provider.WCLocProtErr,
		provider.WCWRFlushErr, provider.WCMWBindErr, provider.WCBadRespErr, provider.WCLocAccessErr, provider.WCRemInvReqErr,
		provider.WCRemAccessErr, provider.WCRemOpErr, provider.WCRetryExcErr, provider.WCRNRRetryExcErr, provider.WCLocRDDViolErr,
		provider.WCRemInvRdReqErr, provider.WCRemAbortErr, provider.WCInvEECNErr, provider.WCInvEECStateErr, provider.WCFatalErr,
		provider.WCRespTimeoutErr, provider.WCGeneralErr,

		provider.WCSend, provider.WCRDMAWrite, provider.WCRDMARead, provider.WCCompSwap, provider.WCFetchAdd, provider.WCBindMW,
		provider.WCLocalInv, provider.MWType1, provider.MWType2, provider.WCRecv, provider.WCRecvRDMAWithImm,

		provider.QPReset, provider.QPInit, provider.QPRTR, provider.QPRTS, provider.QPSQD, provider.QPSQE, provider.QPErr, provider.QPUnknown,

		provider.PortNop, provider.PortDown, provider.PortInit, provider.PortArmed, provider.PortActive,
		provider.NodeUnknown, provider.NodeCA, provider.NodeRNIC,
		provider.TransportUnknown, provider.TransportIB, provider.TransportIWARP,
		provider.GIDTypeIB, provider.GIDTypeRoCEv1, provider.GIDTypeRoCEv2,
		provider.AtomicNone, provider.AtomicHCA, provider.AtomicGlob,

		provider.EventCQErr, provider.EventQPFatal, provider.EventQPReqErr, provider.EventQPAccessErr, provider.EventCommEst,
		provider.EventSQDrained, provider.EventDeviceFatal, provider.EventPortActive, provider.EventPortErr, provider.EventLIDChange,
		provider.EventSRQErr, provider.EventSRQLimitReached, provider.EventQPLastWQEReached,

		provider.CMAddrResolved, provider.CMAddrError, provider.CMRouteResolved, provider.CMRouteError, provider.CMConnectRequest,
		provider.CMConnectError, provider.CMUnreachable, provider.CMRejected, provider.CMEstablished, provider.CMDisconnected,
		provider.CMDeviceRemoval, provider.CMAddrChange, provider.CMTimewaitExit,
	} {
		text, _, _ := strings.Cut(v.String(), " ") // the reason follows an unknown state
		want, ok := c[text]
		if got := fmt.Sprintf("%d", v); !ok || got != fmt.Sprint(want) {
			t.Errorf("%T %s is %s, in C %d (known: %v)", v, v, got, want, ok)
		}
	}
}

func TestFlagsHaveTheValuesOfC(t *testing.T) {
	c := ibv.Constants()
	maps.Copy(c, rdmacm.Constants())
	for name, got := range map[string]int64{
		"IBV_SEND_FENCE":     int64(provider.SendFence),
		"IBV_SEND_SIGNALED":  int64(provider.SendSignaled),
		"IBV_SEND_SOLICITED": int64(provider.SendSolicited),
		"IBV_SEND_INLINE":    int64(provider.SendInline),

		"IBV_WC_WITH_IMM": int64(provider.WCWithImm),
		"IBV_WC_WITH_INV": int64(provider.WCWithInv),

		"IBV_ACCESS_LOCAL_WRITE":   int64(provider.AccessLocalWrite),
		"IBV_ACCESS_REMOTE_WRITE":  int64(provider.AccessRemoteWrite),
		"IBV_ACCESS_REMOTE_READ":   int64(provider.AccessRemoteRead),
		"IBV_ACCESS_REMOTE_ATOMIC": int64(provider.AccessRemoteAtomic),
		"IBV_ACCESS_MW_BIND":       int64(provider.AccessMWBind),
		"IBV_ACCESS_ZERO_BASED":    int64(provider.AccessZeroBased),

		"IBV_REREG_MR_CHANGE_TRANSLATION": int64(provider.ReregTranslation),
		"IBV_REREG_MR_CHANGE_PD":          int64(provider.ReregPD),
		"IBV_REREG_MR_CHANGE_ACCESS":      int64(provider.ReregAccess),

		"IBV_SRQ_MAX_WR": int64(provider.SRQAttrMaxWR),
		"IBV_SRQ_LIMIT":  int64(provider.SRQAttrLimit),

		"IBV_QPT_RC": int64(provider.QPTypeRC),

		"IBV_QP_STATE":               int64(provider.QPAttrState),
		"IBV_QP_CUR_STATE":           int64(provider.QPAttrCurState),
		"IBV_QP_EN_SQD_ASYNC_NOTIFY": int64(provider.QPAttrEnSQDNotify),
		"IBV_QP_ACCESS_FLAGS":        int64(provider.QPAttrAccessFlags),
		"IBV_QP_MAX_QP_RD_ATOMIC":    int64(provider.QPAttrMaxRdAtomic),
		"IBV_QP_MAX_DEST_RD_ATOMIC":  int64(provider.QPAttrMaxDestRdAtomic),
		"IBV_QP_CAP":                 int64(provider.QPAttrCap),
		"IBV_QP_PKEY_INDEX":          int64(provider.QPAttrPkeyIndex),
		"IBV_QP_PORT":                int64(provider.QPAttrPort),
		"IBV_QP_PATH_MTU":            int64(provider.QPAttrPathMTU),
		"IBV_QP_TIMEOUT":             int64(provider.QPAttrTimeout),
		"IBV_QP_RETRY_CNT":           int64(provider.QPAttrRetryCnt),
		"IBV_QP_RNR_RETRY":           int64(provider.QPAttrRNRRetry),
		"IBV_QP_RQ_PSN":              int64(provider.QPAttrRQPSN),
		"IBV_QP_MIN_RNR_TIMER":       int64(provider.QPAttrMinRNRTimer),
		"IBV_QP_SQ_PSN":              int64(provider.QPAttrSQPSN),
		"IBV_QP_DEST_QPN":            int64(provider.QPAttrDestQPN),
	} {
		if want, ok := c[name]; !ok || got != want {
			t.Errorf("%s is %d, in C %d (known: %v)", name, got, want, ok)
		}
	}
	for name, v := range c {
		if after, ok := strings.CutPrefix(name, "IBV_DEVICE_"); ok && provider.DeviceCap(v).String() != name {
			t.Errorf("capability %s is %s", after, provider.DeviceCap(v))
		}
		if v == int64(provider.AccessRemoteInvalidate) && len(name) > 11 && name[:11] == "IBV_ACCESS_" {
			t.Errorf("%s has taken the bit of AccessRemoteInvalidate", name)
		}
	}
}
