package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestLogKeepsErrors: records that peers cause don't displace the overflow of a CQ, which is the
// program's own fault, and of another level.
func TestLogKeepsErrors(t *testing.T) {
	var out bytes.Buffer
	l := &logger{to: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))}
	for range 3 * logPerSecond {
		l.add(slog.LevelWarn, "Terminate received")
	}
	l.overflow(64)
	l.draining.Wait()
	if !strings.Contains(out.String(), "CQ overflow") {
		t.Errorf("logged %q, without the overflow", out.String())
	}
}
