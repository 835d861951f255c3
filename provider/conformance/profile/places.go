package profile

import (
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// places holds the line of each table, key and array element of a TOML document, by its path:
// "divergence[2].shows[0].keys[1]".
type places map[string]int

// findPlaces finds the lines. The document is well-formed, because it has been decoded before.
func findPlaces(data []byte) places {
	f := finder{places: make(places), counts: make(map[string]int)}
	f.Reset(data)
	for f.NextExpression() {
		switch e := f.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			f.enter(e)
		case unstable.KeyValue:
			f.keyValue(e)
		}
	}
	return f.places
}

type finder struct {
	unstable.Parser
	places places
	counts map[string]int // elements of each array of tables
	table  string         // path of the table that the keys belong to
}

func (f *finder) line(n *unstable.Node) int { return f.Shape(n.Raw).Start.Line }

// enter begins a table. A key that names an array of tables stands for its last element.
func (f *finder) enter(e *unstable.Node) {
	f.table = ""
	line := 0
	for keys := e.Key(); keys.Next(); {
		if f.table != "" && f.counts[f.table] > 0 {
			f.table = element(f.table, f.counts[f.table]-1)
		}
		f.table = joined(f.table, string(keys.Node().Data))
		line = f.line(keys.Node())
	}
	if e.Kind == unstable.ArrayTable {
		f.counts[f.table]++
		f.table = element(f.table, f.counts[f.table]-1)
	}
	f.places[f.table] = line
}

func (f *finder) keyValue(e *unstable.Node) {
	at := f.table
	for keys := e.Key(); keys.Next(); {
		at = joined(at, string(keys.Node().Data))
		f.places[at] = f.line(keys.Node())
	}
	if e.Value().Kind != unstable.Array {
		return
	}
	i := 0
	for elements := e.Value().Children(); elements.Next(); i++ {
		if n := elements.Node(); n.Raw.Length > 0 {
			f.places[element(at, i)] = f.line(n)
		}
	}
}

func joined(table, key string) string {
	if table == "" {
		return key
	}
	return table + "." + key
}

func element(array string, i int) string { return fmt.Sprintf("%s[%d]", array, i) }

// line returns the line of a path, or else of the nearest thing around it.
func (p places) line(at string) int {
	for {
		if line, ok := p[at]; ok {
			return line
		}
		end := strings.LastIndexAny(at, ".[")
		if end < 0 {
			return 1
		}
		at = at[:end]
	}
}
