package remote

import (
	"context"
	"time"
)

// Clock measures how far the agent's clock is ahead of this host's. within is the maximum error:
// half of the shortest of several round trips.
func (c *Session) Clock(ctx context.Context) (ahead, within time.Duration, err error) {
	const tries = 9
	for k := range tries {
		began := time.Now()
		r, err := do[clockReading](ctx, &far{c: c}, nil, verbClock, none{})
		trip := time.Since(began)
		if err != nil {
			return 0, 0, err
		}
		if k == 0 || trip/2 < within {
			ahead, within = r.Now.Sub(began.Add(trip/2)), trip/2
		}
	}
	return ahead, within, nil
}

// StartCapture makes the agent record the packets of a TCP port.
func (c *Session) StartCapture(ctx context.Context, port uint16) error {
	_, err := do[none](ctx, &far{c: c}, nil, verbCapture, captureArgs{port})
	return err
}

// StopCapture ends the agent's recording of a port and returns its file.
func (c *Session) StopCapture(ctx context.Context, port uint16) ([]byte, error) {
	r, err := c.call(ctx, nil, verbStop, 0, captureArgs{port})
	return r.body, err
}
