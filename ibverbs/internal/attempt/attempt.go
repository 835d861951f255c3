// Package attempt tries the addresses of a name one after the other.
package attempt

import (
	"context"
	"net/netip"
	"strings"
	"time"
)

// leastShare is the minimum time for an address.
const leastShare = 2 * time.Second

// Each calls dial for one address after the other until one succeeds or ctx ends. Each address but
// the last gets its share of the time that ctx leaves, but at least leastShare. share is the
// context of the attempt. The error contains the errors of all attempts.
func Each[C any](ctx context.Context, addrs []netip.AddrPort,
	dial func(share context.Context, addr netip.AddrPort) (C, error)) (C, error) {
	var failures Errors
	for i, addr := range addrs {
		c, err := one(ctx, addr, len(addrs)-i, dial)
		if err == nil {
			return c, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			break
		}
	}
	var none C
	if len(failures) == 1 {
		return none, failures[0]
	}
	return none, failures
}

// one makes one attempt. left is how many attempts remain, including this one.
func one[C any](ctx context.Context, addr netip.AddrPort, left int,
	dial func(context.Context, netip.AddrPort) (C, error)) (C, error) {
	if deadline, limited := ctx.Deadline(); limited && left > 1 {
		share := max(time.Until(deadline)/time.Duration(left), leastShare)
		limited, cancel := context.WithTimeout(ctx, share)
		defer cancel()
		return dial(limited, addr)
	}
	return dial(ctx, addr)
}

// Errors are the errors of several attempts. Unlike with errors.Join, the text has one line.
type Errors []error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors, for errors.Is and As.
func (e Errors) Unwrap() []error { return e }
