package rsocket_test

import (
	"net"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
	"github.com/govs-rdma/govs/provider"
)

// TestListenerCloseWhileAccepting: Close also ends an Accept that has answered a request and waits
// for the device, here for an event that never comes.
func TestListenerCloseWhileAccepting(t *testing.T) {
	f := fake.New()
	f.Transport = provider.TransportIWARP
	listening, answered := make(chan *fake.ID, 1), make(chan struct{}, 1)
	f.OnCM = func(id *fake.ID, call string) {
		switch call {
		case "listen":
			listening <- id
		case "accept":
			answered <- struct{}{}
		}
	}
	vctx := testkit.Must(ibverbs.Open(f, ""))(t)
	l := testkit.Must(rsocket.Listen(timeout(t), vctx, "tcp", "192.0.2.1:7471"))(t)
	hello := proto.Hello{
		Credits: 16, SGL: proto.Region{Addr: 1 << 20, Len: 2},
		Data: proto.Region{Addr: 1 << 16, Len: 4096},
	}
	(<-listening).Request(provider.ConnParam{PrivateData: hello.Append(nil)})
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	<-answered
	testkit.OK(t, l.Close())
	select {
	case err := <-accepted:
		wantErr(t, "Accept", err, net.ErrClosed)
	case <-time.After(patience):
		t.Fatal("Accept waits on after Close")
	}
	testkit.OK(t, vctx.Close())
}

// TestConnGrantsWhileReading: a program that reads arrived data without ever waiting takes the
// completions of its grants, so it does not run out of places for them. Each half of the receives
// is granted when it has been read, not when the program waits next.
func TestConnGrantsWhileReading(t *testing.T) {
	const receives = 16
	r, s := dialRaw(t, rsocket.Config{ReceiveQueue: receives})
	for range receives {
		r.message(t, proto.KindData, 1)
	}
	time.Sleep(50 * time.Millisecond) // all arrive before the first Read, which takes them at once
	for i := range receives {
		if i == receives-1 {
			time.Sleep(20 * time.Millisecond) // the earlier grants complete
		}
		if n := testkit.Must(s.Read(make([]byte, 1)))(t); n != 1 {
			t.Fatalf("Read returns %d", n)
		}
	}
	// The grant of the second half of the ring, which takes two of the four places, and two grants
	// of receives.
	if n := s.Stats().Received.Grants; n != 3 {
		t.Errorf("%d grants after all is read, want 3", n)
	}
}
