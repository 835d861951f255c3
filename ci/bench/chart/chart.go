// Package chart draws lines over logarithmic axes as SVG, without scripts or fonts of its own, in
// colours that can be read on white and on black.
package chart

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// A Plot has lines over the same axes. Both axes are logarithmic: a doubling has the same length
// everywhere, and proportional growth is a line of slope 1.
type Plot struct {
	Title, X, Y string // of the plot and its axes
	XBinary     bool   // ticks of X are powers of 2, labelled in KiB and MiB where that is shorter
	Lines       []Line
	Notes       []string // below the legend
}

// A Line is a line of a plot.
type Line struct {
	Name   string
	Style  int // colour and mark, from 0 to 7; beyond that they repeat
	Points []Point
}

// A Point is a value and the range that the measurements had. All are above 0.
type Point struct{ X, Y, Low, High float64 }

// Geometry in SVG units.
const (
	width, height        = 960, 540
	left, right          = 76, 270 // margins: the legend is at the right
	top, bottom          = 52, 60
	plotW, plotH         = width - left - right, height - top - bottom
	legendX, legendStep  = width - right + 24, 24
	markRadius           = 3.5
	fontSize, smallFont  = 13, 12
	ink, grid            = "#808890", "#80889044"
	ticksMost, ticksFine = 12, 3
)

// palette has colours with about the same contrast to white and to black, which colour-blind people
// can distinguish; they can distinguish the marks by their shapes, too.
var palette = []string{"#2f7ed8", "#e07000", "#2a9d5c", "#c2439b", "#8a63d2", "#b08900", "#008fa3", "#d0473e"}

// Position returns where a point is drawn.
func (p *Plot) Position(x, y float64) (cx, cy float64, err error) {
	ax, ay, err := p.axes()
	if err != nil {
		return 0, 0, err
	}
	return ax.at(x), ay.at(y), nil
}

// WriteSVG writes the plot.
func (p *Plot) WriteSVG(w io.Writer) error {
	ax, ay, err := p.axes()
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="system-ui, sans-serif" font-size="%d">`+"\n", width, height, fontSize)
	fmt.Fprintf(&b, "<title>%s</title>\n", escape(p.Title))
	text(&b, left, 28, "start", 16, p.Title)
	p.drawAxes(&b, ax, ay)
	for _, l := range p.Lines {
		drawLine(&b, ax, ay, l)
	}
	p.drawLegend(&b)
	b.WriteString("</svg>\n")
	_, err = io.WriteString(w, b.String())
	return err
}

// axis maps values to their positions.
type axis struct {
	low, high float64 // values at its ends
	from, to  float64 // the positions of these values
	ticks     []float64
}

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*(math.Log(v)-math.Log(a.low))/(math.Log(a.high)-math.Log(a.low))
}

// axes fit all points, up to the next tick on each side.
func (p *Plot) axes() (x, y axis, err error) {
	var xs, ys []float64
	for _, l := range p.Lines {
		for _, pt := range l.Points {
			xs, ys = append(xs, pt.X), append(ys, pt.Y)
			if pt.Low > 0 {
				ys = append(ys, pt.Low, pt.High)
			}
		}
	}
	if len(xs) == 0 {
		return x, y, errors.New("a plot without points")
	}
	for _, v := range slices.Concat(xs, ys) {
		if !(v > 0) || math.IsInf(v, 0) {
			return x, y, fmt.Errorf("%g can't be drawn over a logarithmic axis", v)
		}
	}
	base := 10.0
	if p.XBinary {
		base = 2
	}
	x = newAxis(slices.Min(xs), slices.Max(xs), base, left, left+plotW)
	y = newAxis(slices.Min(ys), slices.Max(ys), 10, top+plotH, top)
	return x, y, nil
}

// newAxis makes ticks at powers of base, and also at 2 and 5 times these if base is 10 and there
// are few.
func newAxis(low, high, base, from, to float64) axis {
	var ticks []float64
	steps := []float64{1}
	first, last := power(low, base, math.Floor), power(high, base, math.Ceil)
	if base == 10 && last-first <= ticksFine {
		steps = []float64{1, 2, 5}
	}
	for e := first; e <= last; e++ {
		for _, s := range steps {
			ticks = append(ticks, s*math.Pow(base, e))
		}
	}
	const touch = 1 + 1e-9
	for len(ticks) > 2 && ticks[1] <= low*touch {
		ticks = ticks[1:]
	}
	for len(ticks) > 2 && ticks[len(ticks)-2]*touch >= high {
		ticks = ticks[:len(ticks)-1]
	}
	if len(ticks) == 1 {
		ticks = append(ticks, ticks[0]*base)
	}
	a := axis{ticks[0], ticks[len(ticks)-1], from, to, ticks}
	for len(a.ticks) > ticksMost {
		var fewer []float64
		for i := 0; i < len(a.ticks); i += 2 {
			fewer = append(fewer, a.ticks[i])
		}
		a.ticks = fewer
	}
	return a
}

// power returns the exponent of v, rounded. It ignores the floating-point error of an exact
// power.
func power(v, base float64, round func(float64) float64) float64 {
	e := math.Log(v) / math.Log(base)
	if r := math.Round(e); math.Abs(e-r) < 1e-9 {
		return r
	}
	return round(e)
}

func (p *Plot) drawAxes(b *strings.Builder, x, y axis) {
	for _, t := range x.ticks {
		at := x.at(t)
		line(b, at, top, at, top+plotH, grid)
		text(b, at, top+plotH+20, "middle", smallFont, label(t, p.XBinary))
	}
	for _, t := range y.ticks {
		at := y.at(t)
		line(b, left, at, left+plotW, at, grid)
		text(b, left-8, at+4, "end", smallFont, label(t, false))
	}
	line(b, left, top, left, top+plotH, ink)
	line(b, left, top+plotH, left+plotW, top+plotH, ink)
	text(b, left+plotW/2, height-14, "middle", fontSize, p.X)
	fmt.Fprintf(b, `<text x="18" y="%d" text-anchor="middle" fill="%s" transform="rotate(-90 18 %d)">%s</text>`+"\n",
		top+plotH/2, ink, top+plotH/2, escape(p.Y))
}

// label writes a number as short as possible.
func label(v float64, binary bool) string {
	units := []string{"", "k", "M", "G"}
	step := 1000.0
	if binary {
		units, step = []string{"", "Ki", "Mi", "Gi"}, 1024
	}
	i := 0
	for v >= step && i+1 < len(units) {
		v /= step
		i++
	}
	return fmt.Sprintf("%.3g%s", v, units[i])
}

// drawLine draws ranges, the line and the marks.
func drawLine(b *strings.Builder, x, y axis, l Line) {
	colour := l.colour()
	points := slices.Clone(l.Points)
	slices.SortFunc(points, func(p, q Point) int { return cmp.Compare(p.X, q.X) })
	fmt.Fprintf(b, `<g class="line" stroke="%s" fill="none">`+"\n<title>%s</title>\n", colour, escape(l.Name))
	var path strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", command, x.at(p.X), y.at(p.Y))
		if p.Low > 0 && p.High > p.Low {
			fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke-opacity="0.45" stroke-width="3"/>`+"\n",
				x.at(p.X), y.at(p.Low), x.at(p.X), y.at(p.High))
		}
	}
	fmt.Fprintf(b, `<path d="%s" stroke-width="2"/>`+"\n", path.String())
	for _, p := range points {
		mark(b, l.Style, x.at(p.X), y.at(p.Y), colour)
	}
	b.WriteString("</g>\n")
}

func (l Line) colour() string { return palette[l.Style%len(palette)] }

// mark draws the mark of a style: circle, square, or diamond.
func mark(b *strings.Builder, n int, x, y float64, colour string) {
	switch n % 3 {
	case 0:
		fmt.Fprintf(b, `<circle class="mark" cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, markRadius, colour)
	case 1:
		fmt.Fprintf(b, `<rect class="mark" x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x-markRadius, y-markRadius, 2*markRadius, 2*markRadius, colour)
	default:
		const r = markRadius * 1.3
		fmt.Fprintf(b, `<path class="mark" d="M%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fZ" fill="%s"/>`+"\n", x, y-r, x+r, y, x, y+r, x-r, y, colour)
	}
}

func (p *Plot) drawLegend(b *strings.Builder) {
	y := float64(top + 10)
	for _, l := range p.Lines {
		colour := l.colour()
		fmt.Fprintf(b, `<g class="legend" stroke="%s" fill="none">`+"\n", colour)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke-width="2"/>`+"\n", legendX, y, legendX+24, y)
		mark(b, l.Style, legendX+12, y, colour)
		b.WriteString("</g>\n")
		text(b, legendX+32, y+4, "start", smallFont, l.Name)
		y += legendStep
	}
	for _, n := range p.Notes {
		y += 4
		text(b, legendX, y+4, "start", smallFont, n)
		y += legendStep - 8
	}
}

func line(b *strings.Builder, x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

func text(b *strings.Builder, x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", x, y, anchor, size, ink, escape(s))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}
