// Package web is net/http's client and server, one request after another on each connection, over a
// network of package rawtcp.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
)

// Requests is the workload: GETs, whose answers have Spec.Size octets, on Spec.QPs connections.
const Requests load.Op = "http"

// Complete puts the defaults in and says what is impossible.
func Complete(s *load.Spec) error {
	s.QPs = max(s.QPs, 1)
	s.Poll = load.Block
	switch {
	case s.Op != Requests:
		return fmt.Errorf("no workload %q over HTTP", s.Op)
	case s.Duration <= 0 || s.Iters != 0:
		return errors.New("requests are measured for a duration")
	case s.Size < 1 || s.Size > load.MaxSize || s.QPs > load.MaxQPs:
		return fmt.Errorf("%d octets on %d connections: impossible", s.Size, s.QPs)
	}
	return nil
}

// Server answers requests.
type Server struct {
	l rawtcp.Listener
	s *http.Server
}

// Listen makes a server at addr, whose port may be 0.
func Listen(ctx context.Context, addr netip.AddrPort, network rawtcp.Network) (*Server, error) {
	l, err := network.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Server{l, &http.Server{Handler: http.HandlerFunc(answer)}}, nil
}

// answer writes as many octets as the path says.
func answer(w http.ResponseWriter, r *http.Request) {
	var n int
	if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err != nil || n < 1 || n > load.MaxSize {
		http.Error(w, "the path has to be a number of octets", http.StatusBadRequest)
		return
	}
	_, _ = w.Write(make([]byte, n)) // the client reports what is missing
}

// Addr returns the address that the server listens at.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr().(*net.TCPAddr).AddrPort() }

// Serve serves until ctx ends. n is of no use: there is no telling clients from each other.
func (s *Server) Serve(ctx context.Context, _ int) error {
	defer context.AfterFunc(ctx, func() { _ = s.s.Close() })()
	if err := s.s.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends listening and all connections.
func (s *Server) Close() error { return s.s.Close() }

// Client makes requests.
type Client struct {
	addr    netip.AddrPort
	network rawtcp.Network
}

// Dial returns a client of the server at addr. Each run has connections of its own.
func Dial(addr netip.AddrPort, network rawtcp.Network) *Client { return &Client{addr, network} }

// Run makes requests for the time of spec, after one on each connection that does not count.
func (c *Client) Run(ctx context.Context, spec load.Spec) (r load.Result, err error) {
	if err := Complete(&spec); err != nil {
		return r, err
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.network.Dial(ctx, c.addr)
		},
		MaxIdleConnsPerHost: spec.QPs, MaxConnsPerHost: spec.QPs, DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	url := fmt.Sprintf("http://%s/%d", c.addr, spec.Size)
	buf := make([][]byte, spec.QPs)
	var first, all sync.WaitGroup
	var meter load.Meter
	counts, errs := make([]uint64, spec.QPs), make([]error, spec.QPs)
	first.Add(spec.QPs)
	begin := make(chan time.Time)
	for i := range spec.QPs {
		buf[i] = make([]byte, spec.Size)
		all.Go(func() {
			errs[i] = get(ctx, client, url, buf[i])
			first.Done()
			began := <-begin
			for errs[i] == nil {
				if errs[i] = get(ctx, client, url, buf[i]); errs[i] != nil {
					return
				}
				counts[i]++ // at least one, however short the time is
				if time.Since(began) >= spec.Duration {
					return
				}
			}
		})
	}
	first.Wait()
	meter = load.StartMeter()
	began := time.Now()
	for range spec.QPs {
		begin <- began
	}
	all.Wait()
	for _, n := range counts {
		r.Ops += n
	}
	r.Octets = r.Ops * uint64(spec.Size)
	r.Elapsed, r.Client = meter.Stop(r.Ops)
	return r, errors.Join(errs...)
}

// get makes a request and reads the answer into buf, which has to be as long.
func get(ctx context.Context, client *http.Client, url string, buf []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(buf)) {
		return fmt.Errorf("%s: %s, %d octets", url, resp.Status, resp.ContentLength)
	}
	if _, err := io.ReadFull(resp.Body, buf); err != nil {
		return err
	}
	_, err = resp.Body.Read(buf[:0]) // the end, so that the connection is used again
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// Close does nothing: a run closes its connections.
func (c *Client) Close() error { return nil }
