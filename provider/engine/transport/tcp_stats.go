//go:build linux

package transport

import (
	"os"

	"golang.org/x/sys/unix"
)

// TCPStats implements Stater.
func (c *tcpConn) TCPStats() (TCPStats, error) {
	if !c.ref.acquire() {
		return TCPStats{}, os.ErrClosed
	}
	defer c.ref.release()
	i, err := unix.GetsockoptTCPInfo(c.ref.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return TCPStats{}, err
	}
	return TCPStats{
		RTTMicros: i.Rtt, RTTVarMicros: i.Rttvar,
		SendMSS: i.Snd_mss, CongWindow: i.Snd_cwnd,
		Unacked: i.Unacked, Lost: i.Lost, Retrans: i.Retrans, TotalRetrans: i.Total_retrans,
		BytesAcked: i.Bytes_acked, BytesReceived: i.Bytes_received,
		NotSentBytes: i.Notsent_bytes, DeliveryRate: i.Delivery_rate,
	}, nil
}
