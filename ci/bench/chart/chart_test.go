package chart

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
)

func plot() *Plot {
	return &Plot{
		Title: `"1 < 2" & more`, X: "octets", Y: "GB/s", XBinary: true,
		Lines: []Line{
			{Name: "a <b>", Style: 0, Points: []Point{{64, 0.1, 0.05, 0.2}, {1 << 20, 8, 7, 9}, {4096, 1, 0.9, 1.1}}},
			{Name: "squares", Style: 1, Points: []Point{{64, 0.02, 0, 0}}},
			{Name: "diamonds", Style: 5, Points: []Point{{4096, 3, 3, 3}}},
		},
		Notes: []string{"a note"},
	}
}

type node struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []node     `xml:",any"`
}

func (n node) attr(name string) string {
	for _, a := range n.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (n node) number(t *testing.T, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(n.attr(name), 64)
	if err != nil {
		t.Fatalf("%s of %s: %v", name, n.XMLName.Local, err)
	}
	return v
}

// all returns the nodes below n with a name and, unless class is empty, a class.
func (n node) all(name, class string) []node {
	var list []node
	for _, c := range n.Nodes {
		if c.XMLName.Local == name && (class == "" || c.attr("class") == class) {
			list = append(list, c)
		}
		list = append(list, c.all(name, class)...)
	}
	return list
}

func draw(t *testing.T, p *Plot) node {
	t.Helper()
	var b bytes.Buffer
	if err := p.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	svg := b.String()
	if strings.Contains(svg, "script") {
		t.Error("there is a script in it")
	}
	dec := xml.NewDecoder(strings.NewReader(svg))
	var root node
	if err := dec.Decode(&root); err != nil {
		t.Fatalf("no XML: %v", err)
	}
	if rest := strings.TrimSpace(svg[dec.InputOffset():]); rest != "" {
		t.Fatalf("after the root is %q", rest)
	}
	if root.XMLName.Local != "svg" || root.XMLName.Space != "http://www.w3.org/2000/svg" {
		t.Fatalf("the root is %v", root.XMLName)
	}
	return root
}

func TestPointsAreWhereTheyBelong(t *testing.T) {
	p := plot()
	root := draw(t, p)
	lines := root.all("g", "line")
	if len(lines) != len(p.Lines) {
		t.Fatalf("%d lines, want %d", len(lines), len(p.Lines))
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.06 { // the SVG has one decimal
			t.Errorf("%s at %g, want %g", what, got, want)
		}
	}
	circles := lines[0].all("circle", "mark")
	for i, at := range []int{0, 2, 1} { // in the order of X
		x, y, err := p.Position(p.Lines[0].Points[at].X, p.Lines[0].Points[at].Y)
		if err != nil {
			t.Fatal(err)
		}
		near("circle", circles[i].number(t, "cx"), x)
		near("circle", circles[i].number(t, "cy"), y)
	}
	if bars := lines[0].all("line", ""); len(bars) != 3 {
		t.Errorf("%d ranges, want 3", len(bars))
	} else {
		_, low, _ := p.Position(64, 0.05)
		_, high, _ := p.Position(64, 0.2)
		near("range", bars[0].number(t, "y1"), low)
		near("range", bars[0].number(t, "y2"), high)
	}
	square := lines[1].all("rect", "mark")[0]
	x, y, _ := p.Position(64, 0.02)
	near("square", square.number(t, "x")+markRadius, x)
	near("square", square.number(t, "y")+markRadius, y)
	if n := len(lines[2].all("path", "mark")); n != 1 {
		t.Errorf("%d diamonds, want 1", n)
	}
	// A doubling has the same length everywhere; larger values are higher or further right.
	x1, y1, _ := p.Position(64, 0.1)
	x2, y2, _ := p.Position(128, 0.2)
	x4, y4, _ := p.Position(256, 0.4)
	near("twice", x2-x1, x4-x2)
	near("twice", y2-y1, y4-y2)
	if x2 <= x1 || y2 >= y1 {
		t.Errorf("from %g,%g to %g,%g", x1, y1, x2, y2)
	}
}

func TestTextsAreThereAndInside(t *testing.T) {
	p := plot()
	root := draw(t, p)
	texts := make(map[string]bool)
	for _, n := range root.all("text", "") {
		texts[n.Text] = true
		if x, y := n.number(t, "x"), n.number(t, "y"); x < 0 || x > width || y < 0 || y > height {
			t.Errorf("%q at %g,%g is outside", n.Text, x, y)
		}
	}
	for _, want := range []string{p.Title, p.X, p.Y, "a <b>", "squares", "a note", "64", "4Ki", "1Mi", "0.1", "10"} {
		if !texts[want] {
			t.Errorf("no text %q among %v", want, texts)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high, base float64
		first, last     float64
		most            int
	}{
		{64, 1 << 22, 2, 64, 1 << 22, ticksMost},
		{1, 1000, 10, 1, 1000, ticksMost},
		{0.05, 9, 10, 0.05, 10, ticksMost},
		{3, 3, 10, 2, 5, 2},
		{8, 8, 2, 8, 16, 2},
		{1, 1 << 40, 2, 1, 1 << 40, ticksMost},
	} {
		a := newAxis(tc.low, tc.high, tc.base, 0, 100)
		if math.Abs(a.low/tc.first-1) > 1e-9 || math.Abs(a.high/tc.last-1) > 1e-9 || len(a.ticks) > tc.most || len(a.ticks) < 1 {
			t.Errorf("%g to %g: axis from %g to %g with %v", tc.low, tc.high, a.low, a.high, a.ticks)
		}
		if at := a.at(tc.low); at < -1e-9 || at > 100 {
			t.Errorf("%g to %g: the least is at %g", tc.low, tc.high, at)
		}
	}
}

func TestWhatCannotBeDrawn(t *testing.T) {
	for name, p := range map[string]*Plot{
		"no lines":  {},
		"no points": {Lines: []Line{{Name: "a"}}},
		"zero":      {Lines: []Line{{Points: []Point{{X: 1, Y: 0}}}}},
		"negative":  {Lines: []Line{{Points: []Point{{X: -1, Y: 1}}}}},
		"NaN":       {Lines: []Line{{Points: []Point{{X: 1, Y: math.NaN()}}}}},
		"infinite":  {Lines: []Line{{Points: []Point{{X: math.Inf(1), Y: 1}}}}},
	} {
		if err := p.WriteSVG(io.Discard); err == nil {
			t.Errorf("%s: drawn", name)
		}
	}
}
