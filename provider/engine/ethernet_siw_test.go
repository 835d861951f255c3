//go:build linux

package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/kernel"
)

const (
	wireSize   = 1 << 20 // of the longest message
	wireRounds = 2       // of wireDepth operations on each side
	wireDepth  = 64
	farVar     = "GOVS_ENGINE_FAR" // in the engine's process: where siw listens

	siwPatience = 2 * time.Minute // of those that wait for what must happen
)

// Settings of both ends of the link.
const (
	// singly makes each packet one segment.
	singly = `
	ip netns exec far ip link set far gso_max_segs 1
	ip link set near gso_max_segs 1`

	// losses makes packets wait, and loses a few.
	losses = `
	tc qdisc add dev near root netem delay 1ms loss 0.3%
	ip netns exec far tc qdisc add dev far root netem delay 1ms loss 0.3%`

	// longest gives the link packets as long as a loopback's, of several segments each.
	longest = `
	ip netns exec far ip link set far gso_max_segs 65535 mtu 65535
	ip link set near gso_max_segs 65535 mtu 65535`
)

// TestEthernetToSiw joins siw and the engine by a pair of Ethernet interfaces with
// an MTU of 1500, and then 65535, and CRC on. Both send messages of all kinds and odd lengths, some
// of a MiB, many at a time. siw ends a connection when a segment ends inside the
// pad or the CRC of an FPDU.
//
// siw's sends all fit in TCP's send buffer here, without which its CRCs may be wrong: siwSends
// has shown that before.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func TestEthernetToSiw(t *testing.T) {
	if at := os.Getenv(farVar); at != "" {
		far(t, netip.MustParseAddrPort(at))
		return
	}
	if !vmtest.Inside() {
		vmtest.NeedKernelProvider(t, kernel.Available)
		vmtest.Self(t, vmtest.Options{Link: "none", Last: true})
		return
	}
	shell(t, `
		ip netns add far
		ip link add near type veth peer name far netns far
		ip addr add 198.51.100.1/24 dev near
		ip link set near up
		ip netns exec far ip addr add 198.51.100.2/24 dev far
		ip netns exec far ip link set far up
		ip netns exec far ip link set lo up
		rdma link add siw0 type siw netdev near`)
	t.Run("sends of siw", siwSends)
	shell(t, fmt.Sprintf(`sysctl -qw net.ipv4.tcp_wmem="4096 %[1]d %[1]d"`, 4*wireRounds*wireSize))
	for _, tc := range []struct {
		name, setup string
		mss         int
	}{
		{"segmented by the device", "", 1448},
		{"segmented by TCP", singly, 1448},
		{"with losses", losses, 1448},
		{"segments of a loopback, with losses", longest, 32564},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shell(t, tc.setup)
			capture := t.TempDir() + "/far.pcap"
			stop := record(t, capture)
			vctx := testkit.Must(ibverbs.Open(kernel.New(), "siw0"))(t)
			defer vctx.Close()
			l := testkit.Must(rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("198.51.100.1:0"), nil))(t)
			defer l.Close()
			cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", "far", os.Args[0], "-test.v", "-test.run=^TestEthernetToSiw$")
			cmd.Env = append(os.Environ(), farVar+"="+l.Addr().String())
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			testkit.OK(t, cmd.Start())
			defer func() {
				err := cmd.Wait()
				if err != nil || t.Failed() || !strings.Contains(out.String(), "--- PASS: TestEthernetToSiw ") {
					t.Errorf("the engine's side: %v\n%s", err, &out)
				}
				stop()
				report(t, capture, tc.mss)
			}()
			req := testkit.Must(l.Accept(t.Context()))(t)
			exchange(t, 1, func(ctx context.Context, cfg *rdmacm.ConnConfig) (*rdmacm.Conn, []byte, error) {
				c, err := req.Accept(ctx, cfg)
				return c, req.PrivateData(), err
			})
		})
	}
}

// far is the engine's side, in a network namespace of its own.
func far(t *testing.T, at netip.AddrPort) {
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{
		TCP: transport.TCPOptions{CongestionControl: "cubic"}}), ""))(t)
	defer vctx.Close()
	exchange(t, 2, func(ctx context.Context, cfg *rdmacm.ConnConfig) (*rdmacm.Conn, []byte, error) {
		c, err := rdmacm.Dial(ctx, vctx, at, cfg)
		if err != nil {
			return nil, nil, err
		}
		return c, c.PrivateData(), nil
	})
}

// exchange connects and posts to the peer's region what seed says.
func exchange(t *testing.T, seed uint64, connect func(context.Context, *rdmacm.ConnConfig) (*rdmacm.Conn, []byte, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), siwPatience)
	defer cancel()
	const receives = wireRounds*wireDepth + 1
	// Bytes that are written while they are sent change between CRC and wire. So local has a part
	// to send from and one to read to, and remote has one each for the peer's Writes, its Reads and
	// its Sends.
	var local, remote *ibverbs.MR
	cfg := &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 2 * wireDepth, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1}}
	cfg.Prepare = func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
		if local, err = c.PD().AllocMR(2*wireSize, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		if remote, err = c.PD().AllocMR(3*wireSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead); err != nil {
			return err
		}
		window, err := remote.Remote(0, 2*wireSize)
		if err != nil {
			return err
		}
		if param.PrivateData, err = window.MarshalBinary(); err != nil {
			return err
		}
		room, err := remote.SGE(2*wireSize, wireSize)
		if err != nil {
			return err
		}
		for range receives {
			if err := c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{room}}); err != nil {
				return err
			}
		}
		return nil
	}
	c, private := testkit.Must2(connect(ctx, cfg))(t)
	defer func() { _ = c.Close(); _ = local.Close(); _ = remote.Close() }()
	var window ibverbs.RemoteRegion
	testkit.OK(t, window.UnmarshalBinary(private))
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(rnd.Uint32())
	}
	for round := range wireRounds {
		wrs := make([]ibverbs.SendWR, wireDepth)
		for i := range wrs {
			wrs[i] = wireOperation(rnd, local, window)
		}
		if err := c.QP().PostSend(wrs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for range wrs {
			completion(ctx, t, c, c.SendCQ())
		}
	}
	// An empty Send says that this side has done all, and nothing else is empty.
	testkit.OK(t, c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}))
	completion(ctx, t, c, c.SendCQ())
	for completion(ctx, t, c, c.RecvCQ()).ByteLen > 0 {
	}
	testkit.OK(t, c.Disconnect())
}

// completion waits for one, which has to be a success.
func completion(ctx context.Context, t *testing.T, c *rdmacm.Conn, cq *ibverbs.CQ) ibverbs.WC {
	t.Helper()
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		t.Fatalf("%v; the connection: %v", err, c.QP().Cause())
	}
	if err := wc[0].Err(); err != nil {
		t.Fatalf("%v; the connection: %v", err, c.QP().Cause())
	}
	return wc[0]
}

// wireOperation is a Send, Write or Read. Most are short, so that many share a
// segment; some are long, and a few have all that the regions hold.
func wireOperation(rnd *rand.Rand, local *ibverbs.MR, remote ibverbs.RemoteRegion) ibverbs.SendWR {
	n := 1 + rnd.IntN(64)
	switch rnd.IntN(32) {
	case 0:
		n = wireSize - rnd.IntN(4)
	case 1, 2, 3, 4:
		n = 1 + rnd.IntN(1<<rnd.IntN(18))
	}
	wr := ibverbs.SendWR{
		Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, RemoteAddr: remote.Addr, RKey: remote.RKey,
		SGList: []ibverbs.SGE{{Addr: local.Addr(), Length: uint32(n), LKey: local.LKey()}},
	}
	switch rnd.IntN(4) {
	case 0:
		wr.Opcode = ibverbs.WRSend
	case 1:
		wr.Opcode = ibverbs.WRRDMARead
		wr.RemoteAddr += wireSize
		wr.SGList[0].Addr += wireSize
	}
	return wr
}

func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("bash", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// record captures on the engine's interface until stop is called.
func record(t *testing.T, file string) (stop func()) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", "far", "dumpcap", "-q", "-P", "-B", "256", "-i", "far", "-w", file)
	testkit.OK(t, cmd.Start())
	stop = func() {
		time.Sleep(500 * time.Millisecond)
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(siwPatience); ; time.Sleep(50 * time.Millisecond) {
		if s, err := os.Stat(file); err == nil && s.Size() > 0 {
			return stop
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatal("dumpcap does not begin")
		}
	}
}

// packet is TCP payload as it left the engine's end, before the interface cut it.
type packet struct {
	seq  uint32
	data []byte
}

// sent reads what the engine's end sent.
func sent(t *testing.T, file string) []packet {
	t.Helper()
	f := testkit.Must(os.Open(file))(t)
	defer f.Close()
	r := testkit.Must(pcapgo.NewReader(f))(t)
	var all []packet
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return all
		}
		p := gopacket.NewPacket(b, layers.LinkTypeEthernet, gopacket.NoCopy)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if ip == nil || tcp == nil || ip.SrcIP.String() != "198.51.100.2" || len(tcp.Payload) == 0 {
			continue
		}
		all = append(all, packet{tcp.Seq, tcp.Payload})
	}
}

// framing is where the FPDUs of a stream are, in bytes from its begin.
type framing struct {
	ends    map[uint32]bool // where FPDUs end, and the start-up frame
	trailer map[uint32]bool // cuts that siw does not survive
	fpdus   int
	end     uint32 // of the last one
}

// frame finds the FPDUs in packets, which may be out of order and repeated. Octets
// that the capture lacks end the search.
func frame(packets []packet) (f framing, length uint32) {
	base := packets[0].seq
	for _, p := range packets {
		length = max(length, p.seq-base+uint32(len(p.data)))
	}
	octets, have := make([]byte, length), make([]bool, length)
	for _, p := range packets {
		at := p.seq - base
		copy(octets[at:], p.data)
		for i := range p.data {
			have[at+uint32(i)] = true
		}
	}
	f = framing{ends: map[uint32]bool{0: true}, trailer: map[uint32]bool{}}
	f.end = mpa.FrameHeaderLen + uint32(binary.BigEndian.Uint16(octets[mpa.FrameHeaderLen-2:]))
	f.ends[f.end] = true
	for f.end+mpa.HeaderLen <= length && have[f.end] && have[f.end+1] {
		ulpdu, n, _ := mpa.ParseHeader(octets[f.end:])
		f.end += uint32(n)
		f.ends[f.end] = true
		f.fpdus++
		pad := mpa.PadLen(ulpdu)
		for back := 1; back < pad+mpa.CRCLen; back++ {
			f.trailer[f.end-uint32(back)] = true
		}
	}
	return f, length
}

// report counts how FPDUs lie in the segments of a capture. Where TCP left the
// cutting to the interface, it cuts after each mss bytes.
func report(t *testing.T, file string, mss int) {
	t.Helper()
	packets := sent(t, file)
	if len(packets) == 0 {
		t.Fatal("nothing captured")
	}
	f, length := frame(packets)
	segments, full, split, fatal := 0, 0, 0, 0
	for _, p := range packets {
		for from := 0; from < len(p.data); from += mss {
			to := min(from+mss, len(p.data))
			cut := p.seq - packets[0].seq + uint32(to)
			segments++
			if to-from == mss {
				full++
			}
			if cut <= f.end && !f.ends[cut] {
				split++
			}
			if f.trailer[cut] {
				fatal++
			}
		}
	}
	t.Logf("%d FPDUs in %d bytes; %d packets, %d segments, %d of them full; %d end inside an FPDU, %d of these where siw takes the CRC for wrong",
		f.fpdus, length, len(packets), segments, full, split, fatal)
	if fatal > 0 {
		t.Errorf("%d segments end inside pad or CRC", fatal)
	}
	if f.end < length/10*9 {
		t.Errorf("bytes from %d on are missing in the capture", f.end)
	}
}

const (
	sendsWrites = 32       // of a connection
	sendsSize   = 16 << 10 // of a Write, which is several FPDUs
	sendsTime   = 2 * time.Second
)

// sentBySiw counts the FPDUs that siw sent.
type sentBySiw struct {
	fpdus, wrong int
}

// siwSends makes siw send Writes to plain TCP sockets, and checks each CRC. While TCP's send buffer
// is too small for the posted work, siw may send from two threads at once, and a CRC may cover the
// payload twice (kernel-notes/siw-two-senders.md). The guest's scheduler decides whether that
// happens: once in about ten seconds. Nothing else may be wrong.
func siwSends(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(kernel.New(), "siw0"))(t)
	defer vctx.Close()
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("198.51.100.1:0"), nil))(t)
	defer l.Close()
	dial, results := make(chan struct{}), make(chan error, 1)
	var sum sentBySiw
	go takeWrites(l.Addr(), dial, results, &sum)
	defer close(dial)
	conns := 0
	for begin := time.Now(); sum.wrong == 0 && time.Since(begin) < sendsTime; conns++ {
		dial <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), siwPatience)
		got := make(chan error, 1)
		go func() {
			err := <-results
			if err != nil {
				cancel() // the peer has not connected, or is gone
			}
			got <- err
		}()
		sent := sendWrites(ctx, l)
		if err := errors.Join(<-got, sent); err != nil {
			t.Fatalf("connection %d: %v", conns, err)
		}
		cancel()
	}
	if sum.fpdus < conns*sendsWrites {
		t.Errorf("%d FPDUs of %d connections with %d Writes each", sum.fpdus, conns, sendsWrites)
	}
	t.Logf("%d connections, %d FPDUs, %d with a CRC over the payload twice", conns, sum.fpdus, sum.wrong)
}

// sendWrites accepts a connection and posts Writes, one after the other. The last one is empty.
func sendWrites(ctx context.Context, l *rdmacm.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	c, err := req.Accept(ctx, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	defer c.Close()
	mr, err := c.PD().AllocMR(sendsSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	for i := range sendsWrites + 1 {
		wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, RemoteAddr: 1 << 20, RKey: 1}
		if i < sendsWrites {
			wr.SGList = []ibverbs.SGE{{Addr: mr.Addr(), Length: sendsSize, LKey: mr.LKey()}}
		}
		if err := c.QP().PostSend(wr); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
		var wc [1]ibverbs.WC
		if _, err := c.SendCQ().PollWait(ctx, wc[:]); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
		if err := wc[0].Err(); err != nil {
			return fmt.Errorf("Write %d: %w", i, err)
		}
	}
	return c.Disconnect()
}

// takeWrites connects once for each value of dial, takes what comes, and adds it to sum. It runs
// in the peer's network namespace.
func takeWrites(at netip.AddrPort, dial <-chan struct{}, results chan<- error, sum *sentBySiw) {
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	ns, err := os.Open("/run/netns/far")
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		_ = ns.Close()
	}
	for range dial {
		if err == nil {
			results <- sum.take(at)
		} else {
			results <- err
		}
	}
}

// take is one connection, as initiator.
func (sum *sentBySiw) take(at netip.AddrPort) error {
	c, err := net.DialTimeout("tcp", at.String(), siwPatience)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(siwPatience))
	request, first := rawpeer.Request(true, 1, 1, nil), rawpeer.WriteMessage(0, 0, nil)
	if _, err := c.Write(request.AppendTo(nil)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 256<<10)
	reply := make([]byte, mpa.FrameHeaderLen)
	if _, err := io.ReadFull(r, reply); err != nil {
		return fmt.Errorf("the Reply: %w", err)
	}
	if _, err := r.Discard(int(binary.BigEndian.Uint16(reply[len(reply)-2:]))); err != nil {
		return fmt.Errorf("the Reply: %w", err)
	}
	if _, err := c.Write(first.Octets(true)); err != nil {
		return err
	}
	fpdu := make([]byte, mpa.MaxFPDULen)
	for n := 0; ; n++ {
		switch last, err := sum.next(r, fpdu); {
		case err != nil:
			return fmt.Errorf("FPDU %d, %d of this connection: %w", sum.fpdus, n, err)
		case last:
			// siw may have sent the last Write and not completed it yet, and fails it if the
			// connection ends before: it is siw that disconnects.
			_, _ = io.Copy(io.Discard, r)
			return nil
		case n == 0:
			// siw may have left the first FPDU in its socket (kernel-notes/siw-first-fpdu.md), and
			// would reset the connection at its end (kernel-notes/siw-close-resets.md), which loses
			// what it has sent. It reads that FPDU with another one.
			if _, err := c.Write(first.Octets(true)); err != nil {
				return err
			}
		}
	}
}

// next takes an FPDU. The last one is empty.
func (sum *sentBySiw) next(r io.Reader, fpdu []byte) (last bool, err error) {
	if _, err := io.ReadFull(r, fpdu[:mpa.HeaderLen]); err != nil {
		return false, err
	}
	length, n, _ := mpa.ParseHeader(fpdu)
	if _, err := io.ReadFull(r, fpdu[mpa.HeaderLen:n]); err != nil {
		return false, err
	}
	_, payload, err := ddp.Parse(fpdu[mpa.HeaderLen:][:length])
	if err != nil {
		return false, err
	}
	sum.fpdus++
	crc := mpa.CRC(0, fpdu[:n-mpa.CRCLen])
	if mpa.CheckCRC(crc, fpdu[n-mpa.CRCLen:n]) != nil {
		sum.wrong++
		if mpa.CheckCRC(mpa.CRC(crc, payload), fpdu[n-mpa.CRCLen:n]) != nil {
			return false, errors.New("the CRC is wrong, and not because it covers the payload twice")
		}
	}
	return len(payload) == 0, nil
}
