package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// probeTime is how long a target may take to accept a TCP connection, and to answer a Request,
// before scaling.
const probeTime = 5 * time.Second

// Probe connects to the target as a client does, and leaves. The error says that nothing there
// speaks iWARP, or that its program does not accept what it is said to accept. Otherwise every
// scenario would fail, and none would say why. Probe checks nothing else in the answer; scenarios
// do. When ctx ends before the answer, the error is the context's.
func (t *Target) Probe(ctx context.Context, scale float64) error {
	wait := time.Duration(float64(probeTime) * scale)
	dialCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	p, err := rawpeer.Dial(dialCtx, t.Addr, nil)
	if err != nil {
		return t.unreachable(err)
	}
	defer p.Close()
	p.Over = ctx.Done()
	if err := p.Send(rawpeer.Request(true, 1, 1, nil).AppendTo(nil)); err != nil {
		return fmt.Errorf("sending an MPA Request to %v: %w", t.Addr, err)
	}
	f, err := p.ReadFrame(mpa.KindReply, wait)
	var bad *iwarp.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("asking whether %v answers an MPA Request: %w", t.Addr, ctx.Err())
	case err == nil && f.Reject && t.Offers != NeedsListener:
		return fmt.Errorf("the program at %v rejects connections, and %q is expected of it: "+
			"start one that accepts them, or expect %q only", t.Addr, t.Offers, NeedsListener)
	case err == nil:
		select {
		case <-time.After(time.Duration(float64(acceptTime) * scale)):
		case <-ctx.Done():
		}
		_ = p.CloseWrite()
		_, _ = p.Drain(wait) // until the program has left, too
		return nil
	case errors.Is(err, rawpeer.ErrSilence):
		return fmt.Errorf("%v accepts TCP connections, but has not answered an MPA Request within "+
			"%v (%w): an iWARP stack has to listen there, with a program that accepts connections",
			t.Addr, wait, err)
	case errors.As(err, &bad) && (bad == mpa.ErrKey || bad == mpa.ErrTwoInitiator):
		answer, _ := p.Drain(0)
		return fmt.Errorf("what listens at %v does not speak iWARP: it has answered an MPA Request "+
			"with %q: is the port right?", t.Addr, answer[:min(len(answer), 40)])
	case bad == nil && t.Offers != NeedsListener:
		return fmt.Errorf("%v has ended a connection after an MPA Request of revision 2, without a "+
			"Reply (%v), and %q is expected of it: an iWARP stack has to listen there, with a "+
			"program that accepts connections", t.Addr, err, t.Offers)
	}
	return nil
}

// unreachable explains why there is no TCP connection to the target.
func (t *Target) unreachable(err error) error {
	return fmt.Errorf("no TCP connection to the target: %w: a program has to listen there during the "+
		"whole run, such as rping -s -P", err)
}
