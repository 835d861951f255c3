package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
)

// request is the head of a request.
type request struct {
	Verb string          `json:"verb"`
	On   uint32          `json:"on,omitempty"` // the object
	Args json.RawMessage `json:"args,omitempty"`
}

// answer is the head of an answer.
type answer struct {
	Err    *wireError      `json:"err,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Next   *position       `json:"next,omitempty"` // of the changes that do not fit into the message
	Raw    bool            `json:"raw,omitempty"`  // the body is not changes of memory
}

// none stands for no arguments, or no result.
type none struct{}

// reply is an answer, or the error of the connection, for a waiting call.
type reply struct {
	answer
	body []byte
	err  error // the connection has ended
}

// call sends the agent a request for a verb and waits for the answer. It also sends the changes of
// m, unless m is nil. When ctx ends it asks the agent to cancel the request, and still returns the
// agent's answer.
func (c *Session) call(ctx context.Context, m *memory, verb string, on uint32,
	args any) (reply, error) {
	if err := c.usable(); err != nil {
		return reply{}, err
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return reply{}, fmt.Errorf("%s: %w", verb, err)
	}
	head, err := json.Marshal(request{verb, on, raw})
	if err != nil {
		return reply{}, fmt.Errorf("%s: %w", verb, err)
	}
	if len(head) > maxHead {
		return reply{}, fmt.Errorf("%s: %d bytes of arguments, and a message has room for %d; "+
			"pass fewer at once: %w", verb, len(head), maxHead, syscall.EMSGSIZE)
	}
	number, got, err := c.send(m, head)
	if err != nil {
		return reply{}, err
	}
	var r reply
	select {
	case r = <-got:
	case <-ctx.Done():
		c.cancel(number)
		r = <-got
	}
	if r.err != nil {
		return r, r.err
	}
	err = r.Err.decode()
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = ctx.Err() // may be a deadline, which the agent does not know
	}
	return r, err
}

// send sends a request with the changes of m, unless m is nil. Each request has the pending
// records: if a poll did not, the agent would take what a device has written into an ended region
// for a change of an existing one, and [Device.Intact] would not report it.
func (c *Session) send(m *memory, head []byte) (number uint64, got chan reply, err error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	got = make(chan reply, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return 0, nil, c.gone
	}
	if len(c.waiting) >= maxUnderWay {
		c.mu.Unlock()
		return 0, nil, fmt.Errorf("%d calls wait for the agent, which is its limit: %w", maxUnderWay,
			syscall.EAGAIN)
	}
	c.lastNumber++
	number = c.lastNumber
	c.waiting[number] = got
	c.mu.Unlock()
	var from position
	for {
		body, next := c.changes(m, number, from)
		out := message{kind: kindRequest, number: number, head: head, body: body}
		if next != nil {
			out = message{kind: kindBeat, body: body}
		}
		if err := c.conn.write(&out); err != nil {
			c.mu.Lock()
			delete(c.waiting, number)
			c.mu.Unlock()
			return 0, nil, c.fail(err)
		}
		if next == nil {
			return number, got, nil
		}
		from = *next
	}
}

// cancel asks the agent to cancel a request.
func (c *Session) cancel(number uint64) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.conn.write(&message{kind: kindCancel, number: number}); err != nil {
		_ = c.fail(err)
	}
}

// do calls a verb of an object and decodes its result. It also sends the changes of m, unless m is
// nil.
func do[R any](ctx context.Context, f *far, m *memory, verb string, args any) (R, error) {
	var result R
	r, err := f.c.call(ctx, m, verb, f.h, args)
	if len(r.Result) > 0 {
		if jerr := json.Unmarshal(r.Result, &result); jerr != nil {
			return result, f.c.fail(fmt.Errorf("%w: %s is answered with something else: %w", errFrame,
				verb, jerr))
		}
	}
	for r.Next != nil && err == nil && f.mem != nil {
		// The object may be closed, but its device is not.
		r, err = f.c.call(ctx, nil, verbPull, f.mem.device, *r.Next)
	}
	return result, err
}
