package conformance

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// jsonField is a row of a table in SCHEMA.md, as far as the program can check.
type jsonField struct{ name, kind, present string }

// jsonKind is what SCHEMA.md calls a type.
func jsonKind(t reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() {
		return "time"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice:
		return "array of " + jsonKind(t.Elem())
	case reflect.Map:
		return "object of " + jsonKind(t.Elem())
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Struct:
		return t.Name()
	}
	return "number"
}

// jsonTypes adds the fields of a struct, and of those in it, by its name.
func jsonTypes(t reflect.Type, types map[string][]jsonField) {
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer:
		jsonTypes(t.Elem(), types)
		return
	case reflect.Struct:
	default:
		return
	}
	if t == reflect.TypeFor[time.Time]() || types[t.Name()] != nil {
		return
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		present := "always"
		if options == "omitempty" {
			present = "if not empty"
		}
		types[t.Name()] = append(types[t.Name()], jsonField{name, jsonKind(f.Type), present})
	}
	for f := range t.Fields() {
		jsonTypes(f.Type, types)
	}
}

// schemaTables reads the tables of SCHEMA.md by the heading before them.
func schemaTables(t *testing.T) map[string][]jsonField {
	t.Helper()
	data, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := make(map[string][]jsonField)
	heading := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "## "); ok {
			heading = h
			continue
		}
		cells := strings.Split(line, " | ")
		name, isRow := strings.CutPrefix(cells[0], "| `")
		if !isRow {
			continue
		}
		if len(cells) != 4 {
			t.Fatalf("SCHEMA.md: a row of %d cells: %s", len(cells), line)
		}
		tables[heading] = append(tables[heading], jsonField{strings.TrimSuffix(name, "`"), cells[1], cells[2]})
	}
	return tables
}

func TestSchemaDocument(t *testing.T) {
	types := make(map[string][]jsonField)
	jsonTypes(reflect.TypeFor[Report](), types)
	jsonTypes(reflect.TypeFor[Collection](), types)
	tables := schemaTables(t)
	for name, want := range types {
		got := tables[name]
		for i := range max(len(want), len(got)) {
			switch {
			case i >= len(got):
				t.Errorf("%s: SCHEMA.md lacks %+v", name, want[i])
			case i >= len(want):
				t.Errorf("%s: SCHEMA.md has %+v, which the program has not", name, got[i])
			case got[i] != want[i]:
				t.Errorf("%s: SCHEMA.md has %+v, the program %+v", name, got[i], want[i])
			}
		}
	}
	for name := range tables {
		if types[name] == nil {
			t.Errorf("SCHEMA.md has %s, which the program has not", name)
		}
	}
	data, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{ReportSchema, CollectionSchema} {
		if strings.Count(string(data), "`"+version+"`") < 2 {
			t.Errorf("SCHEMA.md is not about %s", version)
		}
	}
}
