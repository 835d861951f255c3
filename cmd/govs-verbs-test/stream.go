package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// streamCmd is netcat over rsockets, and rstream with --bench.
type streamCmd struct {
	Addr     string        `arg:"" optional:"" name:"addr:port" help:"The server: an IP address or a name, and a port. rstream's port is 7471."`
	Listen   string        `help:"Accept one connection at this address. Port 0: any free port, which is printed." placeholder:"ADDR:PORT"`
	Provider string        `enum:"auto,engine,kernel" default:"auto" help:"Provider: engine, kernel, or auto for the kernel where it has a usable device with the address. Default auto." placeholder:"PROVIDER"`
	CRC      string        `enum:"on,off" default:"on" help:"Engine: ask for CRC. It is off only if both ends turn it off. Default on." placeholder:"on|off"`
	Cong     string        `help:"TCP congestion control of the engine's sockets; system: the system's default. Default system; with --bench cubic, because some others pace what is sent." placeholder:"NAME"`
	Buffer   int           `help:"Bytes of the send buffer, and of the receive buffer, 2048 to 2^30. Default 131072; with --bench 1048576, as rstream." placeholder:"N"`
	Timeout  time.Duration `default:"60s" help:"Fail if connecting takes longer than this, such as 500ms, and with --bench if nothing is exchanged for so long. Default 60s." placeholder:"TIME"`
	Verbose  bool          `short:"v" help:"Report what went over each connection."`

	streamBenchFlags
}

// Help implements kong's HelpProvider.
func (*streamCmd) Help() string {
	return `Connects standard input and output with a stream over RDMA. The protocol is that of ` +
		`librdmacm's rsockets, so the peer may be this command, a C program that uses rsockets, or ` +
		`a TCP program under librspreload. At the end of the input this end sends no more, and the ` +
		`peer reads the end of the stream. The command ends when both directions have ended, or ` +
		`the peer has closed the stream.

    ` + name + ` stream --listen 192.0.2.1:7471 >copy
    ` + name + ` stream 192.0.2.1:7471 <file

With --bench, both ends exchange what rstream (rdmacm-utils) does, so either end may be rstream. ` +
		`Both need the same --size, --count and --iterations, which are rstream's -S, -C and -I. ` +
		`Without them, four sizes are measured (with --size all, 33): round trips over one ` +
		`connection, then bandwidth over another. With one of them, only one size is measured:

    ` + name + ` stream --bench --listen 192.0.2.1:7471
    rstream -s 192.0.2.1

    rstream -b 192.0.2.1 -S 65536 -C 100 -I 10
    ` + name + ` stream --bench 192.0.2.1:7471 -S 65536 -C 100 -I 10

Bandwidth is of one direction after the other, as rstream measures it; round trips are whole, ` +
		`and rstream prints half of one.`
}

// Limits of --buffer, in bytes.
const (
	minStreamBuffer = 2048
	maxStreamBuffer = 1 << 30
)

// Validate implements kong's check.
func (c *streamCmd) Validate(k *kong.Context) error {
	switch {
	case (c.Addr == "") == (c.Listen == ""):
		return errors.New("give either ADDR:PORT to connect to, or --listen ADDR:PORT to be connected to")
	case given(k, "buffer") && (c.Buffer < minStreamBuffer || c.Buffer > maxStreamBuffer):
		return fmt.Errorf("--buffer %d: has to be %d to %d", c.Buffer, minStreamBuffer, maxStreamBuffer)
	case c.Timeout <= 0:
		return fmt.Errorf("--timeout %v: has to be above 0", c.Timeout)
	}
	if c.Provider == "kernel" {
		for _, option := range []string{"crc", "cong"} {
			if given(k, option) {
				return fmt.Errorf("--%s: is for the engine, and --provider is kernel: leave the "+
					"option out", option)
			}
		}
	}
	if err := c.checkBench(k); err != nil {
		return err
	}
	return checkAddress(c.Addr+c.Listen, c.Listen != "")
}

// rstreamBuffer is the size of rstream's buffers in bytes: it sets 512 KiB, which librdmacm
// doubles.
const rstreamBuffer = 1 << 20

// config returns the configuration of connections.
func (c *streamCmd) config() rsocket.Config {
	n := c.Buffer
	if n == 0 && c.Bench {
		n = rstreamBuffer
	}
	return rsocket.Config{SendBuffer: n, ReceiveBuffer: n}
}

// congestion returns the congestion control for the engine's sockets, or "" for the system's
// default.
func (c *streamCmd) congestion() string {
	switch {
	case c.Cong == "" && c.Bench:
		return "cubic"
	case c.Cong == "system":
		return ""
	}
	return c.Cong
}

// Run connects, or accepts, and transfers.
func (c *streamCmd) Run(ctx context.Context, k *kong.Context, out *output) (err error) {
	addr, err := resolve(ctx, c.Addr+c.Listen, c.Listen != "")
	if err != nil {
		return unable(interrupted(ctx, err))
	}
	opts := new(engine.Options)
	opts.TCP.CongestionControl = c.congestion()
	if err := checkCongestion("--cong", c.congestion()); err != nil {
		return unable(err)
	}
	if c.CRC == "off" {
		opts.CRC = engine.CRCOff
	}
	vctx, why, err := openProvider(c.Provider, addr.Addr(), opts)
	if err != nil {
		return unable(err)
	}
	defer func() { err = errors.Join(interrupted(ctx, err), vctx.Close()) }()
	fmt.Fprintln(out.errors, why)
	next, stop, err := c.connector(ctx, out, vctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if c.Bench {
		return c.bench(ctx, c.phases(k), out, vctx, next)
	}
	conn, err := next(ctx)
	if err != nil {
		return err
	}
	return c.closing(out, conn, c.pipe(ctx, out, conn))
}

// connector returns a function that makes the next connection: Dial, or Accept of a listener. stop
// ends the listener.
func (c *streamCmd) connector(ctx context.Context, out *output, vctx *ibverbs.Context,
	addr netip.AddrPort,
) (
	next func(context.Context) (*rsocket.Conn, error), stop func() error, err error,
) {
	if c.Listen == "" {
		d := rsocket.Dialer{Config: c.config(), Timeout: c.Timeout}
		return func(ctx context.Context) (*rsocket.Conn, error) {
			conn, err := d.Dial(ctx, vctx, "tcp", addr.String())
			if err != nil {
				return nil, fmt.Errorf("connecting: %w", c.whyNot(err))
			}
			return conn, nil
		}, func() error { return nil }, nil
	}
	lc := rsocket.ListenConfig{Config: c.config(), Refused: func(peer netip.AddrPort, err error) {
		if peer.IsValid() {
			fmt.Fprintf(out.errors, "refused %v: %v\n", peer, err)
		} else {
			fmt.Fprintf(out.errors, "refused a connection: %v\n", err)
		}
	}}
	l, err := lc.Listen(ctx, vctx, "tcp", addr.String())
	if err != nil {
		return nil, nil, unable(err)
	}
	fmt.Fprintf(out.errors, "listening on %s\n", l.Addr())
	return l.AcceptContext, l.Close, nil
}

// whyNot adds advice to the error of a failed Dial.
func (c *streamCmd) whyNot(err error) error {
	var timeout net.Error
	var rejected *rdmacm.RejectedError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer for %v (--timeout): %w", c.Timeout, err)
	case errors.As(err, &rejected):
		return fmt.Errorf("the server has to be %s stream --listen ADDR:PORT, or a program of "+
			"rsockets: %w", name, err)
	}
	return err
}

// closing closes a connection whose use returned err. With --verbose it also prints what the
// connection transferred.
func (c *streamCmd) closing(out *output, conn *rsocket.Conn, err error) error {
	report := conn.String()
	err = errors.Join(err, conn.Close())
	if c.Verbose {
		fmt.Fprintln(out.errors, report)
	}
	return err
}

// noticing is how long it may take, after the peer has closed the stream, to notice that input was
// lost.
const noticing = 200 * time.Millisecond

// inputSize is the maximum number of bytes per read of the input.
const inputSize = 256 << 10

// pipe connects standard input and output with a connection, until both directions have ended.
func (c *streamCmd) pipe(ctx context.Context, out *output, conn *rsocket.Conn) error {
	past := func() { _ = conn.SetDeadline(time.Unix(1, 0)) } // makes waiting calls return
	defer context.AfterFunc(ctx, past)()
	sent := make(chan error, 1)
	go func() {
		// A Read of the input may never return, so it must not use the connection's memory.
		_, err := io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{os.Stdin},
			make([]byte, inputSize))
		if err == nil {
			err = conn.CloseWrite()
		} else if !conn.Stats().PeerDisconnected {
			past()
		}
		sent <- err
	}()
	if _, err := conn.WriteTo(out); err != nil {
		select {
		case first := <-sent:
			return errors.Join(first, err)
		default:
			return err
		}
	}
	if !conn.Stats().PeerDisconnected {
		select {
		case err := <-sent:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case err := <-sent:
		return err
	case <-time.After(noticing):
		return nil // the other goroutine still waits for input that nobody would read
	}
}
