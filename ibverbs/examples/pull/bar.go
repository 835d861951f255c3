package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// bar draws how much of a whole is done, again and again in one line.
type bar struct {
	out   io.Writer // nil: it draws nothing
	whole uint64
	begin time.Time
	drawn time.Time
}

const (
	barWidth = 40
	barEvery = 100 * time.Millisecond
)

func newBar(out io.Writer, whole uint64, wanted bool) *bar {
	b := &bar{whole: whole, begin: time.Now()}
	if wanted {
		b.out = out
	}
	return b
}

// draw draws the bar, ten times a second at most, and at the end.
func (b *bar) draw(done uint64) {
	now := time.Now()
	if b.out == nil || now.Sub(b.drawn) < barEvery && done < b.whole {
		return
	}
	b.drawn = now
	share := float64(done) / float64(b.whole)
	n := int(share * barWidth)
	line := strings.Repeat("=", n)
	if n < barWidth {
		line += ">"
	}
	fmt.Fprintf(b.out, "\r[%-*s] %3.0f%% %16s", barWidth, line, 100*share, rate(done, now.Sub(b.begin)))
}

// end goes on to the next line if something was drawn.
func (b *bar) end() {
	if !b.drawn.IsZero() {
		fmt.Fprintln(b.out)
	}
}

// rate returns bytes per time.
func rate(bytes uint64, took time.Duration) string {
	return fmt.Sprintf("%.1f MiB/s", float64(bytes)/(1<<20)/max(took.Seconds(), 1e-9))
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
