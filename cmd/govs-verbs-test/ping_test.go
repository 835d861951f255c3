package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// pingText is the text of ping n: what rping of rdma-core's version 44 prints
// for its data.
func pingText(n, size int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rdma-ping-%d: ", n)
	for c := byte('A' + n%58); b.Len() < size-1; c++ {
		if c > 'z' {
			c = 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// pingLines returns a side's output of count pings.
func pingLines(prefix string, count, size int) string {
	var b strings.Builder
	for n := range count {
		fmt.Fprintf(&b, "%s%s\n", prefix, pingText(n, size))
	}
	return b.String()
}

// serve starts a server and returns it with its address.
func serve(t *testing.T, args ...string) (*command, string) {
	t.Helper()
	server := start(t, append([]string{"ping", "--listen"}, args...)...)
	return server, server.stderr.await(t, `listening on (\S+)\n`)[1]
}

func TestFillPing(t *testing.T) {
	b := make([]byte, 30)
	fillPing(b, 7)
	if got, want := string(b), "rdma-ping-7: HIJKLMNOPQRSTUVW\x00"; got != want {
		t.Errorf("ping 7 is %q, want %q", got, want)
	}
	fillPing(b, 57)
	if got, want := string(b), "rdma-ping-57: zABCDEFGHIJKLMN\x00"; got != want {
		t.Errorf("ping 57 is %q, want %q", got, want)
	}
	for _, size := range []int{minPing, 64, maxPing} {
		b := make([]byte, size)
		fillPing(b, 60)
		if string(b) != pingText(60, size)+"\x00" {
			t.Errorf("ping 60 of %d bytes is %q", size, b)
		}
	}
}

func TestPing(t *testing.T) {
	for _, c := range []struct{ count, size int }{{1, 64}, {3, minPing}, {10, 4096}, {60, 100}, {2, maxPing}} {
		server, addr := serve(t, "127.0.0.1:0", "-v", "--provider", "engine")
		client := start(t, "ping", addr, "--provider", "engine", "--verbose", "--count", fmt.Sprint(c.count), "--size", fmt.Sprint(c.size))
		client.want(t, exitPassed, parts(
			pingLines("ping data: ", c.count, c.size),
			fmt.Sprintf("%d pings of %d bytes to %s over engine govs0: round trip min/mean/max ", c.count, c.size, addr),
		), parts("provider engine: as asked\n"))
		server.want(t, exitPassed, parts(
			pingLines("server ping data: ", c.count, c.size),
			fmt.Sprintf("served %d pings of %d bytes for 127.0.0.1:", c.count, c.size),
		), nil)
	}
}

// TestPingPersistent: a persistent server serves two clients at a time, and others after one that
// misbehaves.
func TestPingPersistent(t *testing.T) {
	server, addr := serve(t, "127.0.0.1:0", "--persistent", "--provider", "engine")
	first := start(t, "ping", addr, "--provider", "engine", "-C", "20")
	second := start(t, "ping", addr, "--provider", "engine", "-C", "20", "-S", "200")
	first.want(t, exitPassed, parts("20 pings of 64 bytes"), nil)
	second.want(t, exitPassed, parts("20 pings of 200 bytes"), nil)
	misbehave(t, addr, func(p *pingPeer) { p.send(make([]byte, 8)); _ = p.conn.Wait(p.ctx) })
	server.stderr.await(t, "ping 0 of 127.0.0.1:.* a message of 8 bytes")
	start(t, "ping", addr, "--provider", "engine", "-C", "1").want(t, exitPassed, nil, nil)
	server.stdout.await(t, "served 1 pings of 64 bytes")
	server.stop()
	server.want(t, exitPassed, parts("served 20 pings of 64 bytes for 127.0.0.1:", "served 20 pings of 200 bytes"), nil)
}

func TestPingJSON(t *testing.T) {
	server, addr := serve(t, "[::1]:0", "--json", "--provider", "engine")
	client := start(t, "ping", addr, "--provider", "engine", "--json", "-C", "5", "-S", "200")
	client.want(t, exitPassed, nil, nil)
	server.want(t, exitPassed, nil, nil)
	var c, s figures
	decodeJSON(t, client, &c)
	decodeJSON(t, server, &s)
	if c.Role != "client" || c.Peer != addr || c.Provider != "engine" || c.Device != "govs0" || c.Count != 5 || c.Size != 200 ||
		c.MinUs <= 0 || c.MinUs > c.MeanUs || c.MeanUs > c.MaxUs {
		t.Errorf("client: %+v", c)
	}
	if s.Role != "server" || s.Count != 5 || s.Size != 200 || !strings.HasPrefix(s.Peer, "[::1]:") {
		t.Errorf("server: %+v", s)
	}
}

// TestPingAuto shows that auto prints which provider it took, and takes the engine for
// 127.0.0.1, which no kernel device can serve.
func TestPingAuto(t *testing.T) {
	server, addr := serve(t, "127.0.0.1:0")
	client := start(t, "ping", addr, "-C", "1")
	client.want(t, exitPassed, parts("over engine govs0"), parts("provider engine: "))
	server.want(t, exitPassed, nil, parts("provider engine: "))
	why := client.stderr.String()
	if devices, err := kernel.New().Devices(); err != nil || len(devices) == 0 {
		if want := "provider engine: the kernel has no device (govs-verbs-test devices prints why)\n"; why != want {
			t.Errorf("the client prints %q, want %q", why, want)
		}
	} else {
		wantText(t, "the client's provider", why, parts("no usable device of the kernel: "))
	}
}

// TestPingByName makes both ends find each other by a name.
func TestPingByName(t *testing.T) {
	server, addr := serve(t, "localhost:0", "--provider", "engine")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	start(t, "ping", "localhost:"+port, "-C", "1", "--provider", "engine").want(t, exitPassed, parts("1 pings of "), nil)
	server.want(t, exitPassed, nil, nil)
	start(t, "ping", "no..such..host:1", "--provider", "engine").want(t, exitUsage, nil, parts("no..such..host"))
}

func TestPingFailures(t *testing.T) {
	t.Run("the server is one of perf", func(t *testing.T) {
		_, addr := perfServe(t, "send-lat", "127.0.0.1:0", "--provider", "engine")
		start(t, "ping", addr, "--provider", "engine").want(t, exitFailed, nil,
			parts(`the server says "not a client of govs-perf/1 control", and has to be one of ping: `))
	})
	t.Run("nobody listens", func(t *testing.T) {
		start(t, "ping", "127.0.0.1:1", "--provider", "engine").want(t, exitFailed, nil,
			parts("connecting to 127.0.0.1:1: a server of ping is needed there (",
				"): rdma_connect 127.0.0.1:1: nobody listens there; start the server first: connection refused\n"))
	})
	t.Run("the address is taken", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		start(t, "ping", "--listen", l.Addr().String(), "--provider", "engine").want(t, exitUsage, nil, parts("listening on "+l.Addr().String(), "address already in use"))
	})
	t.Run("not our address", func(t *testing.T) {
		start(t, "ping", "--listen", "192.0.2.77:7174", "--provider", "engine").want(t, exitUsage, nil, parts("listening on 192.0.2.77:7174"))
	})
	t.Run("the server is no rping", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"))
				_ = conn.Close()
			}
		}()
		start(t, "ping", l.Addr().String(), "--provider", "engine").want(t, exitFailed, nil, parts("connecting to "))
	})
	t.Run("the server says nothing", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		start(t, "ping", l.Addr().String(), "--provider", "engine", "--timeout", "200ms").want(t, exitFailed, nil, parts("connecting to ", "no answer for 200ms"))
	})
}

func TestPingInterrupted(t *testing.T) {
	server, _ := serve(t, "127.0.0.1:0", "--provider", "engine")
	server.stop()
	server.want(t, exitFailed, nil, parts(name+": interrupted\n"))

	// The client prints the pings that it has completed.
	server, addr := serve(t, "127.0.0.1:0", "--provider", "engine")
	client := start(t, "ping", addr, "--provider", "engine", "-v", "--count", "1000000000")
	client.stdout.await(t, "rdma-ping-2: ")
	client.stop()
	client.want(t, exitFailed, parts(" pings of 64 bytes to "+addr), parts(name+": interrupted\n"))
	server.wait(t) // the client has left between pings, or in the middle of one
	wantText(t, "the server's stdout", server.stdout.String(), parts("served "))
}

// A pingPeer is a client of the server that doesn't keep to the protocol.
type pingPeer struct {
	t    *testing.T
	conn *rdmacm.Conn
	mr   *ibverbs.MR // remote read and write; messages are built at its end
	ctx  context.Context
}

// misbehave connects to a server, calls f, and disconnects.
func misbehave(t *testing.T, addr string, f func(p *pingPeer)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	vctx, err := ibverbs.Open(engine.New(nil), "")
	if err != nil {
		t.Fatal(err)
	}
	defer vctx.Close()
	pd, err := vctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	const access = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite
	mr, err := pd.AllocMR(4096, access)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	p := &pingPeer{t: t, mr: mr, ctx: ctx}
	p.conn, err = rdmacm.Dial(ctx, vctx, netip.MustParseAddrPort(addr), &rdmacm.ConnConfig{
		PD: pd,
		Prepare: func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			for range 4 {
				sge, err := mr.SGE(0, pingInfoLen)
				if err != nil {
					return err
				}
				if err := conn.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}}); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.conn.Close()
	f(p)
	_ = p.conn.Disconnect() // the server may have done so before
}

// send sends bytes.
func (p *pingPeer) send(octets []byte) {
	p.t.Helper()
	copy(p.mr.Bytes()[2048:], octets)
	sge, err := p.mr.SGE(2048, len(octets))
	if err == nil {
		err = p.conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}})
	}
	if err == nil {
		var wc [1]ibverbs.WC
		_, err = p.conn.SendCQ().PollWait(p.ctx, wc[:])
	}
	if err != nil {
		p.t.Error(err)
	}
}

// info sends a message of rping.
func (p *pingPeer) info(addr uint64, key, size uint32) {
	p.t.Helper()
	b := binary.BigEndian.AppendUint64(nil, addr)
	b = binary.BigEndian.AppendUint32(b, key)
	p.send(binary.BigEndian.AppendUint32(b, size))
}

// goAhead waits for a message of the server.
func (p *pingPeer) goAhead() {
	p.t.Helper()
	var wc [1]ibverbs.WC
	if _, err := p.conn.RecvCQ().PollWait(p.ctx, wc[:]); err != nil {
		p.t.Error(err)
	} else if err := wc[0].Err(); err != nil {
		p.t.Error(err)
	}
}

func TestServerOfBadClients(t *testing.T) {
	for name, c := range map[string]struct {
		client func(p *pingPeer)
		status int
		want   []string
	}{
		"leaves at once": {
			func(*pingPeer) {}, exitFailed, parts("ping 0 of 127.0.0.1:", "the client has left"),
		},
		"leaves after the first message": {
			func(p *pingPeer) { p.info(p.mr.Addr(), p.mr.RKey(), 64); p.goAhead() }, exitFailed, parts("ping 0 of 127.0.0.1:", "where its data is to be written", "has ended the connection"),
		},
		"says nothing": {
			func(p *pingPeer) { _ = p.conn.Wait(p.ctx) }, exitFailed, parts("ping 0 of 127.0.0.1:", "nothing for 500ms"),
		},
		"a short message": {
			func(p *pingPeer) { p.send(make([]byte, 8)); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("a message of 8 bytes, rping's have 16"),
		},
		"a long message": {
			func(p *pingPeer) { p.send(make([]byte, 17)); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("waiting for the peer's message"),
		},
		"no data": {
			func(p *pingPeer) { p.info(p.mr.Addr(), p.mr.RKey(), 0); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("has 0 bytes; rping takes up to 65535"),
		},
		"too much data": {
			func(p *pingPeer) { p.info(p.mr.Addr(), p.mr.RKey(), 0xffffffff); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("has 4294967295 bytes; rping takes up to 65535"),
		},
		"a wrong key": {
			func(p *pingPeer) { p.info(p.mr.Addr(), p.mr.RKey()^1, 64); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("reading the client's data", "the peer terminated the connection"),
		},
		"more than its region": {
			func(p *pingPeer) { p.info(p.mr.Addr(), p.mr.RKey(), 4097); _ = p.conn.Wait(p.ctx) }, exitFailed, parts("reading the client's data", "the peer terminated the connection"),
		},
		"a sink of another size": {
			func(p *pingPeer) {
				p.info(p.mr.Addr(), p.mr.RKey(), 64)
				p.goAhead()
				p.info(p.mr.Addr(), p.mr.RKey(), 65)
				_ = p.conn.Wait(p.ctx)
			}, exitFailed, parts("sink has 65 bytes, its data had 64"),
		},
		"a sink with a wrong key": { // the Write completes here before the peer refuses it, and the next work may, too
			func(p *pingPeer) {
				p.info(p.mr.Addr(), p.mr.RKey(), 64)
				p.goAhead()
				p.info(p.mr.Addr(), p.mr.RKey()^1, 64)
				_ = p.conn.Wait(p.ctx)
			}, exitFailed, parts(" of 127.0.0.1:", "the peer terminated the connection"),
		},
		"one good ping": {
			func(p *pingPeer) {
				for range 2 {
					p.info(p.mr.Addr(), p.mr.RKey(), 64)
					p.goAhead()
				}
			}, exitPassed, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, addr := serve(t, "127.0.0.1:0", "--provider", "engine", "--timeout", "500ms")
			misbehave(t, addr, c.client)
			server.want(t, c.status, nil, c.want)
		})
	}
}

// TestServerOfStrangers shows that a connection of a program that is not an RDMA client does not
// count as the one client that the server serves.
func TestServerOfStrangers(t *testing.T) {
	server, addr := serve(t, "127.0.0.1:0", "--provider", "engine")
	for _, hello := range []string{"", "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"} {
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(hello)); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	start(t, "ping", addr, "--provider", "engine", "-C", "2").want(t, exitPassed, nil, nil)
	server.want(t, exitPassed, parts("served 2 pings"), nil)
}

// FuzzPingInfo decodes rping's message, encodes the result, and wants the same bytes.
func FuzzPingInfo(f *testing.F) {
	f.Add(make([]byte, pingInfoLen))
	f.Add([]byte("\x00\x00\x55\x94\xd1\x5c\x91\x70\x87\xd9\xa6\x00\x00\x00\x00\x40"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pingInfoLen {
			return // the program reads no shorter message
		}
		b = b[:pingInfoLen:pingInfoLen]
		again := make([]byte, pingInfoLen)
		parsePingInfo(b).put(again)
		if !bytes.Equal(again, b) {
			t.Fatalf("% x came back as % x", b, again)
		}
	})
}
