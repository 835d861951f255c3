package main

import (
	"bytes"
	"context"
	"time"
)

// method is what the server does for a call. The payload is valid until it returns, and it
// should return when ctx is done.
type method func(ctx context.Context, payload []byte) ([]byte, error)

// methods are all methods of the server. None does harm when it runs twice.
var methods = map[string]method{
	"upper": func(_ context.Context, payload []byte) ([]byte, error) {
		return bytes.ToUpper(payload), nil
	},
	"sleep": func(ctx context.Context, payload []byte) ([]byte, error) {
		d, err := time.ParseDuration(string(payload))
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(d):
			return []byte("slept " + d.String()), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	},
}
