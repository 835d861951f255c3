package p9_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing/fstest"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9/p9test"
)

// A server in memory, and a client that reads a file from it.
func Example() {
	files := fstest.MapFS{"motd": {Data: []byte("no news")}}
	server := p9.NewServer(p9.NewFS(files), p9.Limits{OpenFiles: 8})

	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(context.Background(), p9.NewStream(far, 8192, 4, time.Minute))
	}()

	const root, file = 0, 1 // fids
	client, err := p9test.New(p9test.Stream{Conn: near}, 8192)
	if err == nil {
		err = client.Attach(root)
	}
	if err == nil {
		_, err = client.Walk(root, file, "motd")
	}
	if err == nil {
		err = client.Open(file, os.O_RDONLY)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := client.Read(file, 0, 100)
	fmt.Printf("%s, %v\n", data, err)

	_ = near.Close()
	fmt.Println(<-served)
	_ = far.Close()
	// Output:
	// no news, <nil>
	// <nil>
}
