package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// testCQ makes a CQ that is closed when the test ends.
func testCQ(t testing.TB, d *device, cqe int, ch provider.CompChannel) *cq {
	t.Helper()
	c := testkit.Must(d.CreateCQ(provider.CQInitAttr{CQE: cqe, Channel: ch, Cookie: "cookie"}))(t).(*cq)
	t.Cleanup(func() { c.Close() })
	return c
}

func testChannel(t testing.TB, d *device) *compChannel {
	t.Helper()
	ch := testkit.Must(d.CreateCompChannel())(t).(*compChannel)
	t.Cleanup(func() { ch.Close() })
	return ch
}

//rfc:5040 RDMAP-8.1.2-5-01 CQ entry allocation controlled
//rfc:5042 SEC-6.4.3.2-01 CQ entries controlled
func TestCreateCQArguments(t *testing.T) {
	d, other := unwired(t), unwired(t)
	for _, c := range []struct {
		name    string
		init    provider.CQInitAttr
		want    syscall.Errno
		granted int
	}{
		{"too many", provider.CQInitAttr{CQE: maxCQE + 1}, syscall.EINVAL, 0},
		{"another device's channel", provider.CQInitAttr{CQE: 1, Channel: testChannel(t, other)}, syscall.EINVAL, 0},
		{"nil pointer as channel", provider.CQInitAttr{CQE: 1, Channel: (*compChannel)(nil)}, syscall.EINVAL, 0},
		{"one", provider.CQInitAttr{CQE: 1}, 0, 1},
		{"the most", provider.CQInitAttr{CQE: maxCQE}, 0, roundUp(maxCQE)},
		{"rounded up", provider.CQInitAttr{CQE: 5}, 0, 8},
		{"a power of two", provider.CQInitAttr{CQE: 64}, 0, 64},
	} {
		got, err := d.CreateCQ(c.init)
		if c.want != 0 {
			wantErr(t, err, c.want)
			continue
		}
		testkit.OK(t, err)
		testkit.Equal(t, c.name+": entries", got.CQE(), c.granted)
		testkit.OK(t, got.Close())
	}
}

// TestCQOverflow: what does not fit is lost, counted and reported, once until
// somebody polls; what was there stays.
func TestCQOverflow(t *testing.T) {
	d := unwired(t)
	c := testCQ(t, d, 2, nil)
	for i := range 5 {
		c.push(provider.WC{WRID: uint64(i)}, false)
	}
	wc := make([]provider.WC, 10)
	if n, _ := c.Poll(wc); n != 2 || wc[0].WRID != 0 || wc[1].WRID != 1 {
		t.Errorf("polled %d: %v", n, wc[:n])
	}
	testkit.Equal(t, "losses", c.losses, 3)
	for i := range 3 {
		c.push(provider.WC{WRID: uint64(i)}, false)
	}
	for range 2 {
		e := testkit.Must(d.AsyncEvent(t.Context()))(t)
		testkit.Equal(t, "the event", e, provider.AsyncEvent{Type: provider.EventCQErr, CQ: c})
	}
	testkit.Equal(t, "further events", len(d.async.events), 0)
}

// TestCQResize: whatever part of the ring the completions are in, they stay, in their
// order, and there is as much place as was granted.
func TestCQResize(t *testing.T) {
	for _, from := range []int{1, 8, 64} {
		for _, to := range []int{1, 2, 5, 8, 64, 100} {
			for count := range min(from, to) + 1 {
				for turned := range min(from, 9) {
					c := testCQ(t, unwired(t), from, nil)
					wc := make([]provider.WC, 200)
					for range turned {
						c.push(provider.WC{}, false)
						testkit.Must(c.Poll(wc))(t)
					}
					for i := range count {
						c.push(provider.WC{WRID: uint64(i)}, false)
					}
					testkit.OK(t, c.Resize(to))
					testkit.Equal(t, fmt.Sprint("entries for ", to), c.CQE(), roundUp(to))
					for i := count; i < roundUp(to)+1; i++ {
						c.push(provider.WC{WRID: uint64(i)}, false)
					}
					n := testkit.Must(c.Poll(wc))(t)
					if n != roundUp(to) || c.losses != 1 {
						t.Fatalf("%d to %d, %d in it: polled %d, %d lost", from, to, count, n, c.losses)
					}
					for i := range n {
						if wc[i].WRID != uint64(i) {
							t.Fatalf("%d to %d, %d in it: completion %d is %d", from, to, count, i, wc[i].WRID)
						}
					}
				}
			}
		}
	}
}

// TestCQResizeBusy: resizing under those that push and poll loses and repeats nothing.
func TestCQResizeBusy(t *testing.T) {
	const all = 20000
	c := testCQ(t, unwired(t), 64, nil)
	var polled atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range all {
			for int64(i)-polled.Load() >= 64 { // never more than the smallest size holds
				runtime.Gosched()
			}
			c.push(provider.WC{WRID: uint64(i)}, false)
		}
	})
	wg.Go(func() {
		for size := 64; polled.Load() < all; size = 64 + (size*7)%1000 {
			if err := c.Resize(size); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wc := make([]provider.WC, 9)
	for next := uint64(0); next < all; {
		n := testkit.Must(c.Poll(wc))(t)
		for _, got := range wc[:n] {
			testkit.Equal(t, "the next completion", got.WRID, next)
			next++
		}
		polled.Store(int64(next))
		runtime.Gosched()
	}
	wg.Wait()
	testkit.Equal(t, "losses", c.losses, 0)
}

// TestReqNotify walks through which completion fires the channel.
//
//rfc:5040 RDMAP-5.3-05 SE may raise an event if the CQ is armed
func TestReqNotify(t *testing.T) {
	const anyWC, solicited = 0, 1
	success, failure := provider.WC{}, provider.WC{Status: provider.WCWRFlushErr}
	for _, c := range []struct {
		name string
		arms []int
		wc   provider.WC
		sol  bool
		want bool
	}{
		{"not armed", nil, success, true, false},
		{"any", []int{anyWC}, success, false, true},
		{"any, solicited", []int{anyWC}, success, true, true},
		{"solicited only, other", []int{solicited}, success, false, false},
		{"solicited only", []int{solicited}, success, true, true},
		{"solicited only, failure", []int{solicited}, failure, false, true},
		{"any is not narrowed", []int{anyWC, solicited}, success, false, true},
		{"widened to any", []int{solicited, anyWC}, success, false, true},
		{"twice is once", []int{anyWC, anyWC}, success, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := unwired(t)
			ch := testChannel(t, d)
			q := testCQ(t, d, 8, ch)
			for _, arm := range c.arms {
				testkit.OK(t, q.ReqNotify(arm == solicited))
			}
			q.push(c.wc, c.sol)
			testkit.Equal(t, "an event", q.events == 1, c.want)
			if c.want {
				q.push(c.wc, true)
				q.push(failure, true)
				testkit.Equal(t, "events for one request", q.events, 1)
				testkit.OK(t, q.ReqNotify(false))
				q.push(c.wc, false)
				testkit.Equal(t, "events for two requests", q.events, 2)
				for range 2 {
					if got := testkit.Must(ch.Next(t.Context()))(t); got != provider.CQ(q) || got.Cookie() != "cookie" {
						t.Errorf("Next returned %v", got)
					}
				}
			}
			if first, _ := ch.pop(); first != nil {
				t.Error("an event too many")
			}
		})
	}
}

// TestReqNotifyWithoutChannel: allowed, and nothing happens.
func TestReqNotifyWithoutChannel(t *testing.T) {
	c := testCQ(t, unwired(t), 2, nil)
	testkit.OK(t, c.ReqNotify(false))
	c.push(provider.WC{}, true)
}

// TestNoLostWakeup: arm, poll until empty, wait, again and again, while others
// push. A lost wake-up leaves all goroutines of the bubble blocked, which
// synctest reports.
func TestNoLostWakeup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pushers, each = 4, 2000
		d := unwired(t)
		ch := testChannel(t, d)
		c := testCQ(t, d, pushers*each, ch)
		for range pushers {
			go func() {
				for range each {
					c.push(provider.WC{}, false)
				}
			}()
		}
		wc := make([]provider.WC, 3)
		for seen := 0; seen < pushers*each; {
			testkit.OK(t, c.ReqNotify(false))
			for {
				n := testkit.Must(c.Poll(wc))(t)
				if seen += n; n == 0 {
					break
				}
			}
			if seen < pushers*each {
				testkit.Must(ch.Next(t.Context()))(t)
			}
		}
	})
}

// TestChannelOfManyCQs: events are handed out oldest first, a CQ that fires
// often does not starve the others, and each event wakes a waiter.
func TestChannelOfManyCQs(t *testing.T) {
	d := unwired(t)
	ch := testChannel(t, d)
	var cqs [4]*cq
	for i := range cqs {
		cqs[i] = testCQ(t, d, 8, ch)
	}
	fire := func(i int) {
		testkit.OK(t, cqs[i].ReqNotify(false))
		cqs[i].push(provider.WC{}, false)
	}
	for _, i := range []int{2, 2, 2, 0, 3} {
		fire(i)
	}
	testkit.OK(t, cqs[0].Close()) // its event goes with it
	for _, want := range []int{2, 3, 2, 2} {
		testkit.Equal(t, "the CQ of the event", testkit.Must(ch.Next(t.Context()))(t), provider.CQ(cqs[want]))
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := ch.Next(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 3 {
		fire(1 + i)
	}
	wg.Wait()
}

// TestChannelForget removes CQs from every place of the queue.
func TestChannelForget(t *testing.T) {
	for gone := range 3 {
		d := unwired(t)
		ch := testChannel(t, d)
		var cqs [3]*cq
		for i := range cqs {
			cqs[i] = testCQ(t, d, 8, ch)
			testkit.OK(t, cqs[i].ReqNotify(false))
			cqs[i].push(provider.WC{}, false)
		}
		testkit.OK(t, cqs[gone].Close())
		for i := range cqs {
			if i != gone {
				testkit.Equal(t, fmt.Sprintf("the event after CQ %d was closed", gone),
					testkit.Must(ch.Next(t.Context()))(t), provider.CQ(cqs[i]))
			}
		}
		late := testCQ(t, d, 8, ch)
		testkit.OK(t, late.ReqNotify(false))
		late.push(provider.WC{}, false)
		testkit.Equal(t, fmt.Sprintf("the last event after CQ %d was closed", gone),
			testkit.Must(ch.Next(t.Context()))(t), provider.CQ(late))
	}
}

func TestNextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := testChannel(t, unwired(t))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		wait := func(ctx context.Context) {
			_, err := ch.Next(ctx)
			ended <- err
		}
		go wait(ctx)
		go wait(context.Background())
		go wait(context.Background())
		synctest.Wait()
		cancel()
		wantErr(t, <-ended, context.Canceled)
		testkit.OK(t, ch.Close())
		wantErr(t, <-ended, os.ErrClosed)
		wantErr(t, <-ended, os.ErrClosed)
		testkit.OK(t, ch.Close())
	})
}

func TestCQCloseOrder(t *testing.T) {
	d := unwired(t)
	ch := testChannel(t, d)
	c := testCQ(t, d, 8, ch)
	wantErr(t, ch.Close(), syscall.EBUSY)
	q := new(qp)
	testkit.Equal(t, "attached", c.attach(q), true)
	wantErr(t, c.Close(), syscall.EBUSY)
	c.detach(q)
	c.push(provider.WC{}, false)
	testkit.OK(t, c.ReqNotify(false))
	c.push(provider.WC{}, false)
	for i := range 20 { // overflows, too
		c.push(provider.WC{WRID: uint64(i)}, false)
	}
	testkit.OK(t, c.Close())
	testkit.OK(t, c.Close())
	testkit.OK(t, ch.Close())
	wantErr(t, errOf(c.Poll(make([]provider.WC, 1))), os.ErrClosed)
	wantErr(t, c.ReqNotify(false), os.ErrClosed)
	wantErr(t, c.Resize(8), os.ErrClosed)
	testkit.Equal(t, "attached to a closed CQ", c.attach(q), false)
	wantErr(t, errOf(ch.Next(t.Context())), os.ErrClosed)
	wantErr(t, errOf(d.CreateCQ(provider.CQInitAttr{CQE: 1, Channel: ch})), os.ErrClosed)
	testkit.Equal(t, "events of a closed CQ", len(d.async.events), 0)
}

// TestDirectQPs: the list that progress walks has every QP while they are few.
func TestDirectQPs(t *testing.T) {
	c := testCQ(t, unwired(t), 8, nil)
	var qps []*qp
	for range policy.Few + 3 {
		qps = append(qps, new(qp))
	}
	wantListed := func(n int) {
		t.Helper()
		want := n
		if n > policy.Few {
			want = 0
		}
		testkit.Equal(t, fmt.Sprintf("listed of %d QPs", n), len(*c.direct.Load()), want)
	}
	for i, q := range qps {
		c.attach(q)
		wantListed(i + 1)
	}
	for i, q := range qps {
		c.detach(q)
		wantListed(len(qps) - i - 1)
	}
}

func TestCQAllocs(t *testing.T) {
	d := unwired(t)
	ch := testChannel(t, d)
	c := testCQ(t, d, 8, ch)
	wc := make([]provider.WC, 4)
	ctx := t.Context()
	wantNoAllocs(t, func() {
		c.ReqNotify(false)
		c.push(provider.WC{}, false)
		c.Poll(wc)
		ch.Next(ctx)
		c.Poll(wc)
	})
}

func TestAsyncQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := unwired(t)
		const extra = 7
		for i := range maxAsync + extra {
			d.raise(provider.AsyncEvent{Type: provider.EventPortErr, Port: uint8(i)})
		}
		for i := range maxAsync {
			testkit.Equal(t, "the event", testkit.Must(d.AsyncEvent(t.Context()))(t).Port, uint8(i))
		}
		_, err := d.AsyncEvent(t.Context())
		wantErr(t, err, syscall.ENOBUFS)
		testkit.Equal(t, "the error", err.Error(),
			"ibv_get_async_event govs0: 7 events lost; call AsyncEvent all the time: no buffer space available")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, errOf(d.AsyncEvent(ctx)), context.Canceled)

		got := make(chan provider.AsyncEvent, 2)
		for range 2 {
			go func() {
				e, err := d.AsyncEvent(context.Background())
				if err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				got <- e
			}()
		}
		synctest.Wait()
		d.raise(provider.AsyncEvent{Type: provider.EventPortActive})
		testkit.Equal(t, "the event", (<-got).Type, provider.EventPortActive)
		testkit.OK(t, d.Close())
		testkit.Equal(t, "the event after Close", <-got, provider.AsyncEvent{})
		d.raise(provider.AsyncEvent{}) // late ones are dropped
	})
}
