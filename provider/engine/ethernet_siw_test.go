//go:build linux

package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
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
	if err := c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	completion(ctx, t, c, c.SendCQ())
	for completion(ctx, t, c, c.RecvCQ()).ByteLen > 0 {
	}
	if err := c.Disconnect(); err != nil {
		t.Error(err)
	}
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
