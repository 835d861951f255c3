package rsocket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// open opens a device and returns an address to listen at. Only this function depends on the
// provider.
func open() (*ibverbs.Context, netip.AddrPort) {
	if os.Getenv("GOVS_PROVIDER") == "kernel" {
		vctx, err := ibverbs.Open(kernel.New(), os.Getenv("GOVS_DEVICE"))
		check(err)
		addr, err := netip.ParseAddr(os.Getenv("GOVS_ADDR"))
		check(err)
		return vctx, netip.AddrPortFrom(addr, 0)
	}
	vctx, err := ibverbs.Open(engine.New(nil), "")
	check(err)
	return vctx, netip.MustParseAddrPort("127.0.0.1:0")
}

// check ends the program if something failed.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// closeLater closes the device after its connections, which net/http closes in its own goroutines.
func closeLater(vctx *ibverbs.Context) {
	for errors.Is(vctx.Close(), syscall.EBUSY) {
		time.Sleep(10 * time.Millisecond)
	}
}

// A server sends back what it receives, until the end of the stream.
func Example() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rsocket.Listen(ctx, vctx, "tcp", addr.String())
	check(err)
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		check(err)
		_, err = io.Copy(conn, conn)
		check(err)
		check(conn.Close())
	}()

	conn, err := rsocket.Dial(ctx, vctx, "tcp", l.Addr().String())
	check(err)
	check(conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte("hello"))
	check(err)
	check(conn.CloseWrite())
	answer, err := io.ReadAll(conn)
	check(err)
	fmt.Printf("%s\n", answer)
	check(conn.Close())
	<-served
	// Output: hello
}

// HTTP over rsockets: a listener for the server, and a function that dials for the client.
func ExampleDialer_DialContext() {
	vctx, addr := open()
	defer closeLater(vctx)
	l, err := rsocket.Listen(context.Background(), vctx, "tcp", addr.String())
	check(err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s over RDMA", r.URL.Path)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	tr := &http.Transport{DialContext: new(rsocket.Dialer).DialContext(vctx)}
	client := &http.Client{Transport: tr, Timeout: time.Minute}
	resp, err := client.Get("http://" + l.Addr().String() + "/page")
	check(err)
	body, err := io.ReadAll(resp.Body)
	check(err)
	check(resp.Body.Close())
	fmt.Printf("%s\n", body)
	tr.CloseIdleConnections()
	check(srv.Shutdown(context.Background()))
	<-served
	// Output: /page over RDMA
}
