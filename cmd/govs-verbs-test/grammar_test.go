package main

import (
	"testing"

	"github.com/alecthomas/kong"
)

// TestGrammar: a command's name finds only that command, and anything else finds all commands.
func TestGrammar(t *testing.T) {
	commands := func(args ...string) (names []string) {
		for _, n := range kong.Must(grammar(args)).Model.Children {
			names = append(names, n.Name)
		}
		return names
	}
	all := commands()
	for _, name := range all {
		if got := commands(name, "--help"); len(got) != 1 || got[0] != name {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, other := range []string{"--version", "help", "VM", "Run", "ru"} {
		if got := commands(other, "run"); len(got) != len(all) || len(got) < 10 {
			t.Errorf("%s: %q, want %q", other, got, all)
		}
	}
}
