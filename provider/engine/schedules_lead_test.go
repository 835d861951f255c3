//go:build schedules

package engine

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Who waits in the poller of a lane: its progress goroutine or a leader.

// seatPoller is a poller whose Wait is over after Wake only.
type seatPoller struct {
	transport.Poller
	woken  chan struct{}
	inside atomic.Int32
	both   bool // two goroutines have waited at the same time
}

func (p *seatPoller) Wait(context.Context) error {
	p.both = p.both || p.inside.Add(1) > 1
	sched.Await(p.woken)
	p.inside.Add(-1)
	return nil
}

func (p *seatPoller) Wake() {
	sched.Step()
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

func (p *seatPoller) Serve() int { sched.Step(); return 0 }

// seats is a device of a few lanes whose progress goroutines are aside.
func seats(n int) (d *device, ch *compChannel, pollers []*seatPoller) {
	d = new(device)
	d.prog.awake = make(chan struct{}, 1)
	for range n {
		p := &seatPoller{woken: make(chan struct{}, 1)}
		pollers = append(pollers, p)
		d.poller.all = append(d.poller.all, newLane(p))
	}
	for _, l := range d.poller.all {
		l.seat.offer()
	}
	ch = &compChannel{dev: d}
	ch.wake.init()
	return d, ch, pollers
}

// leader is an actor that leads l.
func (ch *compChannel) leader(l *lane, ends *int) func() {
	return func() {
		if done, _ := ch.lead(context.Background(), l); done {
			*ends++
		}
	}
}

// event is an actor that has an event for the channel.
func (ch *compChannel) event() {
	ch.wake.set()
	ch.wakeLeader()
}

func init() {
	protocols = append(protocols,
		protocol{
			name: "an event comes for one who leads", preemptions: 3,
			begin: func(*stage) ([]func(), func() error) {
				d, ch, _ := seats(1)
				ends := 0
				return []func(){ch.leader(d.poller.all[0], &ends), ch.event}, func() error {
					if ends != 1 {
						return errors.New("the leader left without the event")
					}
					return nil
				}
			},
		},
		protocol{
			name: "a progress goroutine takes its seat back", preemptions: 3,
			begin: func(*stage) ([]func(), func() error) {
				d, ch, p := seats(1)
				other := &compChannel{dev: d}
				other.wake.init()
				s := &d.poller.all[0].seat
				ends := 0
				return []func(){
						ch.leader(d.poller.all[0], &ends),
						other.leader(d.poller.all[0], &ends),
						func() {
							s.takeBack(p[0].Wake)
							p[0].Wake()
							_ = p[0].Wait(context.Background())
						},
					}, func() error {
						if p[0].both || ends > 0 || ch.leads.Load() != nil || !s.held.Load() {
							return errors.New("two goroutines have waited in a poller, or nobody may")
						}
						return nil
					}
			},
		},
		protocol{
			name: "a goroutine falls asleep while another leads", preemptions: 3,
			begin: func(*stage) ([]func(), func() error) {
				d, ch, p := seats(1)
				s := &d.poller.all[0].seat
				s.takeBack(p[0].Wake)
				ends := 0
				return []func(){
					func() {
						s.offer()
						if d.sleepers.Load() == 0 {
							sched.Await(s.recall)
						}
						s.takeBack(p[0].Wake)
					},
					d.fallAsleep,
					ch.leader(d.poller.all[0], &ends),
				}, func() error { return nil }
			},
		},
		protocol{
			name: "two goroutines wait on a channel and lead", preemptions: 3,
			begin: func(*stage) ([]func(), func() error) {
				d, ch, _ := seats(2)
				events := 0
				// next is compChannel.Next.
				next := func(l *lane) {
					for events == 0 {
						if done, _ := ch.lead(context.Background(), l); !done {
							sched.Await(ch.wake.pending)
						}
					}
					if events--; events > 0 {
						ch.event()
					}
				}
				fire := func() { events++; ch.event() }
				return []func(){
					func() { next(d.poller.all[0]) }, func() { next(d.poller.all[1]) }, fire, fire,
				}, func() error { return nil }
			},
		},
	)
}
