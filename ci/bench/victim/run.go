package victim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/govs-rdma/govs/ci/bench/figures"
	"github.com/govs-rdma/govs/ci/bench/load"
)

// A Sample is one measurement.
type Sample struct {
	Round int // from 0
	Pings *Pings
	Did   Counts // during the measurement
	Error string
}

// A Case is a kind of peers, their number, and how the server waits.
type Case struct {
	Kind  Kind
	Peers int
	Poll  load.Poll
}

func (c Case) String() string { return fmt.Sprintf("%d %s, %s", c.Peers, c.Kind, c.Poll) }

// runner has the state of a run.
type runner struct {
	Config
	trio    *trio
	machine map[string]any // when the run began
	policy  string
	idle    map[Case][]Sample // measured just before each sample of beside
	beside  map[Case][]Sample
}

// warmUp is how long peers work before a measurement begins.
const warmUp = 100 * time.Millisecond

// Run measures. The report has the errors of single measurements; Run returns an error if it can't
// continue.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	r := &runner{
		Config: c, machine: figures.Machine(),
		idle: make(map[Case][]Sample), beside: make(map[Case][]Sample),
	}
	for _, poll := range c.Polls {
		if err := r.poll(ctx, poll); err != nil {
			return nil, err
		}
	}
	return r.report(), nil
}

func (r *runner) poll(ctx context.Context, poll load.Poll) (err error) {
	if r.trio, err = startTrio(ctx, &r.Config, poll); err != nil {
		return err
	}
	r.policy = r.trio.about.Policy
	defer func() { err = errors.Join(err, r.trio.close()) }()
	list, of := r.cases(poll), r.Rounds
	for round := range 2 * r.Rounds {
		if round == r.Rounds {
			if list, of = r.unsettled(poll), 2*r.Rounds; len(list) == 0 {
				return nil
			}
		}
		began := time.Now()
		if err := r.round(ctx, round, list); err != nil {
			return err
		}
		r.Say("%s: round %d of %d, %d cases: %.0f s",
			poll, round+1, of, len(list), time.Since(began).Seconds())
	}
	return nil
}

// cases returns the cases for a server that waits in this way.
func (r *runner) cases(poll load.Poll) (list []Case) {
	for _, n := range r.Peers {
		for _, k := range r.Kinds {
			list = append(list, Case{k, n, poll})
		}
	}
	return list
}

// unsettled returns the cases that are not within their limits after the first rounds, because the
// machine was not quiet or for another reason. They get as many further rounds, all of which count,
// whatever the result.
func (r *runner) unsettled(poll load.Poll) []Case {
	return slices.DeleteFunc(r.cases(poll), func(c Case) bool {
		return result(c, r.idle[c], r.beside[c]).Within
	})
}

// round measures each case of the list once, after as many idle peers. Each round begins with
// another case.
func (r *runner) round(ctx context.Context, round int, list []Case) error {
	for i := range list {
		c := list[(i+round*len(list)/r.Rounds)%len(list)]
		for _, m := range []struct {
			kind Kind
			to   map[Case][]Sample
		}{{Idle, r.idle}, {c.Kind, r.beside}} {
			s, err := r.once(ctx, Case{m.kind, c.Peers, c.Poll})
			if err != nil {
				return err
			}
			s.Round = round
			m.to[c] = append(m.to[c], s)
		}
	}
	return nil
}

// once makes a measurement. If it fails, the processes are replaced.
func (r *runner) once(ctx context.Context, c Case) (Sample, error) {
	s, err := r.measure(ctx, c)
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		return s, ctx.Err()
	}
	r.Say("%s: %v", c, err)
	said := r.trio.close()
	s.Error = errors.Join(err, said).Error()
	r.trio, err = startTrio(ctx, &r.Config, c.Poll)
	return s, err
}

func (r *runner) measure(ctx context.Context, c Case) (s Sample, err error) {
	t := r.trio
	_, err = t.peers.order(ctx, order{Begin: &beginOrder{t.others, c.Kind, c.Peers}}, patience)
	if err != nil {
		return s, err
	}
	if _, err = t.client.order(ctx, order{Ping: &pingOrder{warmUp, r.Every}}, patience); err != nil {
		return s, err
	}
	before, err := t.peers.order(ctx, order{Look: true}, 0)
	if err != nil {
		return s, err
	}
	a, err := t.client.order(ctx, order{Ping: &pingOrder{r.Time, r.Every}}, r.Time+patience)
	if err != nil {
		return s, err
	}
	after, err := t.peers.order(ctx, order{Look: true}, 0)
	if err != nil {
		return s, err
	}
	s = Sample{Pings: a.Pings, Did: after.Counts.since(before.Counts)}
	if _, err = t.peers.order(ctx, order{End: true}, 0); err != nil {
		return s, err
	}
	return s, t.settle(ctx)
}

// settle waits until the server has closed its connections to the peers that have left.
func (t *trio) settle(ctx context.Context) error {
	for began := time.Now(); ; {
		a, err := t.server.order(ctx, order{Look: true}, 0)
		if err != nil || a.Live == 0 {
			return err
		}
		if time.Since(began) > slack {
			return fmt.Errorf("the server still has %d connections of peers that left %v ago", a.Live, slack)
		}
		pause(ctx, 10*time.Millisecond)
	}
}
