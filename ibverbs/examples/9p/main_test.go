package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9/p9test"
	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/auto"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

const msize = 64 << 10

// rdmaConn is the client's end of an RDMA connection.
type rdmaConn struct {
	conn *rdmacm.Conn
	last rdmacm.Message
	mr   *ibverbs.MR
}

// Send implements p9test.Conn.
func (c *rdmaConn) Send(message []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), exampletest.Patience)
	defer cancel()
	sge, err := c.mr.SGE(0, copy(c.mr.Bytes(), message))
	if err != nil {
		return err
	}
	return c.conn.Send(ctx, sge)
}

// Receive implements p9test.Conn.
func (c *rdmaConn) Receive() (b []byte, err error) {
	if c.last.Data != nil {
		if err := c.last.Release(); err != nil {
			return nil, err
		}
	}
	c.last, err = c.conn.Receive(context.Background())
	return c.last.Data, err
}

// dial connects to a server as Linux does: 32 receives, no private data, no Reads.
func dial(t *testing.T, addr string) *rdmaConn {
	t.Helper()
	p, err := auto.Named(exampletest.Provider(), nil)
	if err != nil {
		t.Fatal(err)
	}
	vctx, err := ibverbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	c := new(rdmaConn)
	c.conn, err = rdmacm.DialName(ctx, vctx, addr, &rdmacm.ConnConfig{
		Cap:      ibverbs.QPCap{MaxSendWR: 32},
		Receives: 33, ReceiveSize: msize,
		ResponderResources: -1, InitiatorDepth: -1,
	})
	if err == nil {
		c.mr, err = c.conn.PD().AllocMR(2*msize, ibverbs.AccessLocalWrite)
	}
	if err != nil {
		t.Fatal(errors.Join(err, vctx.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(c.conn.Close(), c.mr.Close(), vctx.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// use writes and reads files in many goroutines, with as many requests under way as Linux has.
func use(t *testing.T, c *p9test.Client) {
	t.Helper()
	if err := c.Attach(0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for k := range uint32(32) {
		wg.Go(func() {
			data := bytes.Repeat([]byte{byte(k)}, c.Msize()-100)
			err := c.Create(0, 1+k, fmt.Sprint("file", k), os.O_RDWR)
			for i := uint64(0); i < 4 && err == nil; i++ {
				at := i * uint64(len(data))
				if _, err = c.Write(1+k, at, data); err != nil {
					break
				}
				var got []byte
				if got, err = c.Read(1+k, at, len(data)); err == nil && !bytes.Equal(got, data) {
					err = fmt.Errorf("read %d bytes that are others", len(got))
				}
			}
			if err = errors.Join(err, c.Call(p9.KindRemove, &p9.Tfid{Fid: 1 + k}, nil)); err != nil {
				t.Errorf("file %d: %v", k, err)
			}
		})
	}
	wg.Wait()
}

func TestTCP(t *testing.T) {
	server := exampletest.Start(t, "--tcp", "--listen", exampletest.Host()+":0", t.TempDir())
	useTCP(t, server.Addr)
	server.Line(": left")
}

// useTCP uses a server over a TCP connection of its own.
func useTCP(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p9test.New(p9test.Stream{Conn: conn}, msize)
	if err != nil {
		t.Fatal(err)
	}
	use(t, c)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestRDMA connects two clients, one of which breaks the protocol.
func TestRDMA(t *testing.T) {
	dir := t.TempDir()
	server := exampletest.Start(t, "--msize", fmt.Sprint(msize), "--listen", exampletest.Host()+":0", dir)
	conn := dial(t, server.Addr)
	c, err := p9test.New(conn, msize)
	if err != nil {
		t.Fatal(err)
	}
	use(t, c)
	for name, message := range map[string][]byte{
		"too long for a receive": make([]byte, msize+1),
		"no 9P message":          []byte("GET / HTTP/1.1\r\n\r\n"),
		"another size":           {200, 0, 0, 0, 100, 0xff, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			hostile := dial(t, server.Addr)
			_ = hostile.Send(message) // the server may have ended the connection already
			select {
			case <-hostile.conn.Done():
			case <-time.After(exampletest.Patience):
				t.Error("the connection goes on")
			}
		})
	}
	use(t, c2(t, c))
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
	if err := conn.conn.Disconnect(); err != nil {
		t.Error(err)
	}
	server.Line(conn.conn.LocalAddr().String() + ": left")
}

// c2 begins another session of a client.
func c2(t *testing.T, c *p9test.Client) *p9test.Client {
	t.Helper()
	err := c.Tagged(p9.NoTag, p9.KindVersion, &p9.Tversion{Msize: msize, Version: p9.Version}, new(p9.Rversion))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCloseOfSilentClient: the server waits for nothing when it closes the connection of a client
// that has sent no message. Otherwise each one that is displaced would keep its place for a second.
func TestCloseOfSilentClient(t *testing.T) {
	p, err := auto.Named(exampletest.Provider(), nil)
	if err != nil {
		t.Fatal(err)
	}
	vctx, err := ibverbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	defer vctx.Close()
	l, err := rdmacm.ListenName(t.Context(), vctx, exampletest.Host()+":0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed := make(chan error, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err != nil {
			closed <- err
			return
		}
		server, err := acceptRDMA(t.Context(), req, &options{msize: msize, depth: 4, requests: 2})
		if err != nil {
			closed <- err
			return
		}
		server.grace = time.Hour
		closed <- server.Close()
	}()
	dial(t, l.Addr().String()) // stays connected until the test ends
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(exampletest.Patience):
		t.Fatal("Close waits for the client")
	}
}

// TestServerStops interrupts a server that has a client.
func TestServerStops(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0", t.TempDir())
	conn := dial(t, server.Addr)
	c, err := p9test.New(conn, msize)
	if err != nil {
		t.Fatal(err)
	}
	use(t, c)
	server.Stop()
	if _, err := c.Attr(0); err == nil {
		t.Error("a server that has ended answers")
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"there are 0 arguments", []string{"--listen", "127.0.0.1:0"}},
		{"--listen ADDRESS is needed", []string{dir}},
		{"--msize 4095: has to be 4096 to 1048576", []string{"--listen", "127.0.0.1:0", "--msize", "4095", dir}},
		{"have to be at least 1", []string{"--listen", "127.0.0.1:0", "--depth", "0", dir}},
		{syscall.ENOTDIR.Error(), []string{"--listen", "127.0.0.1:0", file}},
		{"there are engine, kernel and auto", []string{"--provider", "x", "--listen", "127.0.0.1:0", dir}},
	} {
		if _, stderr, err := exampletest.Run(t, c.args...); err == nil || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: %v, prints %q, want %q", c.args, err, stderr, c.want)
		}
	}
}
