package transport

import (
	"fmt"
	"math"
	"syscall"
	"time"
)

// TCPOptions adjusts the sockets of a TCP network: those that connect, those that listen, and those
// that are accepted. The zero value keeps the system's defaults.
type TCPOptions struct {
	// CongestionControl is TCP_CONGESTION: "reno", "cubic", ... ENOENT if the system doesn't have
	// it, EPERM if it is for root only. Empty: the system's default. On some systems that is bbr,
	// which paces what it sends, over loopback to a third of the bandwidth.
	CongestionControl string

	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes of payload and its
	// overhead, below 1 GiB, as setsockopt takes them. The kernel doubles them, and raises values
	// that are too small. Setting one disables the kernel's own tuning of it; 0 keeps that. More
	// than net.core.wmem_max, or rmem_max, needs CAP_NET_ADMIN, and is EPERM without.
	SendBuffer    int
	ReceiveBuffer int

	// LocalReceiveBuffer is ReceiveBuffer of connections within this host, if ReceiveBuffer is 0:
	// both ends have the same address, or both have loopback addresses. It is set only where the
	// system permits this much (net.core.rmem_max or CAP_NET_ADMIN); otherwise the kernel sizes the
	// buffers of these connections, without an error. 0 also leaves them to the kernel, but in
	// engine.Options.TCP it means 2 MiB. -1 leaves them to the kernel in both.
	//
	// It bounds the bytes in flight, which is too little if these connections have a delay, as with
	// netem on the loopback. At 50 ms round trip, TCP on Linux 6.1 moved 38 MB/s with 2 MiB, 73
	// with 32 MiB and 75 with the kernel's own buffer. Where net.ipv4.tcp_wmem let the sender's
	// buffer grow to 64 MiB, it was 39, 600 and 316.
	LocalReceiveBuffer int

	// LocalSendBuffer is SendBuffer of connections within this host, if SendBuffer is 0. Without
	// it, the bytes that many connections have waiting in the kernel leave the caches. Where the
	// system permits less than this (net.core.wmem_max, without CAP_NET_ADMIN), the buffer is
	// smaller. Where it permits less than three quarters, the kernel sizes the buffers of these
	// connections. 0 also leaves them to the kernel, but in engine.Options.TCP it means 256 KiB. -1
	// leaves them to the kernel in both.
	LocalSendBuffer int

	// MaxSegment is TCP_MAXSEG, 88 to 32767: the most bytes of payload and TCP options in a
	// segment. With time stamps, which Linux uses by default, 12 of these are options, so 1460
	// gives segments of 1448 bytes (TCPStats.SendMSS). Both ends use the lower of their values. 0
	// leaves it to the path's MTU, but in engine.Options.TCP it means 32,576 unless the engine's
	// CRC is CRCOff. That matters only on links like loopback, whose segments could be longer.
	MaxSegment int

	// KeepAlive makes TCP probe a silent peer, so that the end of a vanished peer is noticed. The
	// zero value does it as package net does, after 150 s.
	KeepAlive KeepAlive

	// UserTimeout is TCP_USER_TIMEOUT: how long bytes may stay without acknowledgement before the
	// connection ends with ETIMEDOUT. Whole milliseconds. With 0 the number of retransmissions
	// decides, 15 minutes or so.
	UserTimeout time.Duration

	// DSCP is the differentiated services code point (RFC 2474) of all packets, 0
	// to 63: the upper six bits of IP_TOS and IPV6_TCLASS.
	DSCP int

	// Device is SO_BINDTODEVICE: the network interface by which packets leave and must arrive.
	// ENODEV if it does not exist.
	Device string

	// V6Only prevents a listener on an unspecified IPv6 address from also taking IPv4 connections
	// (IPV6_V6ONLY).
	V6Only bool

	// ReuseAddr lets others that set it bind the same address and port, until one of them listens
	// (RDMA_OPTION_ID_REUSEADDR). A port with only connections in TIME_WAIT can be bound without
	// it.
	ReuseAddr bool

	Tap Tap // sees every byte; nil costs nothing
}

// KeepAlive says when TCP probes a silent peer. It sends probes (SO_KEEPALIVE) unless Off is set,
// because otherwise a peer whose host went down without a FIN would hold the connection, and the
// program's resources for it, forever. The defaults are those of net.Dialer and net.ListenConfig:
// an idle peer costs a packet in 15 s. Times are whole seconds, 1 to 32767.
type KeepAlive struct {
	Off      bool          // no probes; the other fields are ignored
	Idle     time.Duration // TCP_KEEPIDLE: silence before the first probe, default 15 s
	Interval time.Duration // TCP_KEEPINTVL: between probes, default 15 s

	// Count is TCP_KEEPCNT: how many probes without an answer end the connection, 1 to
	// 127, default 9.
	Count int
}

// Limits of the options, which are Linux's.
const (
	maxKeepSeconds = 32767
	maxKeepCount   = 127
	maxDSCP        = 63
	leastSegment   = 88
	maxSegment     = 32767
	maxDeviceName  = 15
)

// validate says which value no system could take. The error wraps EINVAL.
func (o *TCPOptions) validate() error {
	keep := o.KeepAlive
	if keep.Off {
		keep = KeepAlive{}
	}
	switch {
	case o.SendBuffer < 0 || o.SendBuffer > math.MaxInt32/2:
		return badTCPOption("SendBuffer", o.SendBuffer, "0 to 2^30-1 bytes")
	case o.ReceiveBuffer < 0 || o.ReceiveBuffer > math.MaxInt32/2:
		return badTCPOption("ReceiveBuffer", o.ReceiveBuffer, "0 to 2^30-1 bytes")
	case o.LocalReceiveBuffer < -1 || o.LocalReceiveBuffer > math.MaxInt32/2:
		return badTCPOption("LocalReceiveBuffer", o.LocalReceiveBuffer,
			"0 to 2^30-1 bytes, or -1 to leave it to the kernel")
	case o.LocalSendBuffer < -1 || o.LocalSendBuffer > math.MaxInt32/2:
		return badTCPOption("LocalSendBuffer", o.LocalSendBuffer,
			"0 to 2^30-1 bytes, or -1 to leave it to the kernel")
	case o.MaxSegment != 0 && (o.MaxSegment < leastSegment || o.MaxSegment > maxSegment):
		return badTCPOption("MaxSegment", o.MaxSegment, "88 to 32767 bytes, or 0 for the default")
	case !wholeUnits(keep.Idle, time.Second, maxKeepSeconds):
		return badTCPOption("KeepAlive.Idle", keep.Idle, "whole seconds, 1 to 32767")
	case !wholeUnits(keep.Interval, time.Second, maxKeepSeconds):
		return badTCPOption("KeepAlive.Interval", keep.Interval, "whole seconds, 1 to 32767")
	case keep.Count < 0 || keep.Count > maxKeepCount:
		return badTCPOption("KeepAlive.Count", keep.Count, "1 to 127")
	case !wholeUnits(o.UserTimeout, time.Millisecond, math.MaxInt32):
		return badTCPOption("UserTimeout", o.UserTimeout, "whole milliseconds, below 24 days")
	case o.DSCP < 0 || o.DSCP > maxDSCP:
		return badTCPOption("DSCP", o.DSCP, "0 to 63")
	case len(o.Device) > maxDeviceName:
		return badTCPOption("Device", o.Device, "a name of an interface, at most 15 bytes")
	}
	return nil
}

// wholeUnits reports whether d is zero, or from one to limit units.
func wholeUnits(d, unit time.Duration, limit int64) bool {
	return d >= 0 && d%unit == 0 && int64(d/unit) <= limit
}

func badTCPOption(name string, value any, want string) error {
	return fmt.Errorf("TCP option %s = %v, must be %s: %w", name, value, want, syscall.EINVAL)
}
