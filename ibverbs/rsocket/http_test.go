package rsocket_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// certificate makes a key pair for 127.0.0.1 and 192.0.2.1.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), crand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rsocket"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(192, 0, 2, 1)},
	}
	der := testkit.Must(x509.CreateCertificate(crand.Reader, template, template, key.Public(), key))(t)
	pool := x509.NewCertPool()
	pool.AddCert(testkit.Must(x509.ParseCertificate(der))(t))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestConnHTTP runs net/http over rsockets: version 1.1, the same with TLS, and version 2, with
// many concurrent requests and bodies in both directions.
func TestConnHTTP(t *testing.T) {
	cert, pool := certificate(t)
	for _, tc := range []struct {
		name     string
		tls      bool
		protocol string
	}{{"HTTP 1.1", false, "HTTP/1.1"}, {"HTTP 1.1 with TLS", true, "HTTP/1.1"}, {"HTTP 2", true, "HTTP/2.0"}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := timeout(t)
			vctx, addr := device(t)
			var l net.Listener = testkit.Must(rsocket.Listen(ctx, vctx, "tcp", addr.String()))(t)
			url := "http://" + l.Addr().String()
			protocols := new(http.Protocols)
			protocols.SetHTTP1(tc.protocol == "HTTP/1.1")
			protocols.SetHTTP2(tc.protocol == "HTTP/2.0")
			srv := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != tc.protocol {
					http.Error(w, "this is "+r.Proto, http.StatusInternalServerError)
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				_, _ = w.Write(body)
			})}
			if tc.tls {
				url = "https://" + l.Addr().String()
				srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
			}
			served := make(chan error, 1)
			go func() {
				if tc.tls {
					served <- srv.ServeTLS(l, "", "")
				} else {
					served <- srv.Serve(l)
				}
			}()
			tr := &http.Transport{
				DialContext: new(rsocket.Dialer).DialContext(vctx), Protocols: protocols,
				TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13},
			}
			client := &http.Client{Transport: tr}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for k := range 5 {
						if err := post(ctx, client, url, i<<(2*k)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			tr.CloseIdleConnections()
			testkit.OK(t, srv.Shutdown(ctx))
			wantErr(t, "Serve", <-served, http.ErrServerClosed)
		})
	}
}

// post posts n bytes and compares the response.
func post(ctx context.Context, client *http.Client, url string, n int) error {
	body := make([]byte, n)
	_, _ = newRandom(byte(n)).Read(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Equal(got, body)) {
		err = fmt.Errorf("%s: %d bytes came back of %d: %.100q", resp.Status, len(got), n, got)
	}
	return err
}
