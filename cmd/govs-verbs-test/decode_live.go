package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// liveEvery is the shortest time between two decodings, because each decodes all of a connection
// again.
const liveEvery = 50 * time.Millisecond

// live decodes an interface's packets until ctx ends, or until --count frames are printed.
func (c *decodeCmd) live(ctx context.Context, out *output) (err error) {
	switch {
	case c.Port == 0:
		return unable(errors.New("decode: --interface needs --port, the TCP port of the connections"))
	case c.JSON:
		return unable(errors.New("decode: --json is for a file; record one with dumpcap or tcpdump"))
	case c.Count < 0:
		return unable(fmt.Errorf("decode: --count %d: has to be above 0, or left out for no limit", c.Count))
	}
	follower, err := (&capture.Wire{Interface: c.Interface}).Follow(c.Port)
	if err != nil {
		return unable(fmt.Errorf("decode: %w", err))
	}
	fmt.Fprintf(out.errors, "decoding port %d on %s\n", c.Port, c.Interface)
	live := wire.NewLive(c.Port)
	live.All = c.All
	frames, enough := 0, false
	printed := func(lines []string) (enough bool) {
		for _, line := range lines {
			fmt.Fprintln(out, line)
			if isFrame(line) {
				frames++
			}
			if frames == c.Count && c.Count > 0 {
				return true
			}
		}
		return false
	}
	for err == nil {
		err = follower.Packets(ctx, live.Packet)
		if enough = printed(live.Lines()); enough {
			break
		}
		select {
		case <-time.After(liveEvery):
		case <-ctx.Done():
		}
	}
	dropped, closeErr := follower.Close()
	if !enough {
		printed(live.End())
	}
	if dropped > 0 {
		fmt.Fprintf(out.errors, "note: the kernel dropped %d packets, because decoding did not keep up\n", dropped)
	}
	if err = errors.Join(c.liveError(ctx, err), closeErr); err == nil && frames == 0 {
		err = fmt.Errorf("%s: no iWARP passed at port %d", c.Interface, c.Port)
	}
	return err
}

// liveError returns the error with which live ends; a signal is not an error.
func (c *decodeCmd) liveError(ctx context.Context, err error) error {
	switch {
	case err == nil, ctx.Err() != nil:
		return nil
	case errors.Is(err, syscall.ENETDOWN):
		err = fmt.Errorf("is down or has been removed: %w", err)
	}
	return unable(fmt.Errorf("decode: interface %s: %w", c.Interface, err))
}

// isFrame reports whether a line of a ladder is a frame, not a heading or a note.
func isFrame(line string) bool {
	return strings.Contains(line, " --> ") || strings.Contains(line, " <-- ")
}
