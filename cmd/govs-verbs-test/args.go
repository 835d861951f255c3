package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// negative matches a negative number or duration. No flag begins with a digit.
var negative = regexp.MustCompile(`^-[0-9.]`)

// prepared returns the arguments in the form that kong accepts. It turns "--size -5" into
// "--size=-5", because kong would take -5 for a flag and not say which values are right. It turns
// "help COMMAND" into "COMMAND --help", and "version" into "--version".
func prepared(app *kong.Application, args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "help":
		return append(args[1:len(args):len(args)], "--help")
	case len(args) == 1 && args[0] == "version":
		return []string{"--version"}
	}
	values := valueFlags(app.Node)
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if values[arg] && i+1 < len(args) && negative.MatchString(args[i+1]) {
			i++
			if strings.HasPrefix(arg, "--") {
				arg += "="
			}
			arg += args[i]
		}
		out = append(out, arg)
	}
	return out
}

// valueFlags returns the flags of all commands that have a value, as users type them.
func valueFlags(n *kong.Node) map[string]bool {
	flags := make(map[string]bool)
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			if f.IsBool() {
				continue
			}
			flags["--"+f.Name] = true
			if f.Short != 0 {
				flags["-"+string(f.Short)] = true
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(n)
	return flags
}

var (
	missing   = regexp.MustCompile(`^expected "(<[^"]*>.*)"$`)
	notNumber = regexp.MustCompile(`^(--[a-z-]+): expected a valid (\d+) bit (u?int) but got "(.*)"$`)
)

// explained rewords kong's errors. For a missing argument it adds the command's usage, and for a
// bad number the permitted ones.
func explained(err error) error {
	if m := notNumber.FindStringSubmatch(err.Error()); m != nil {
		right := "a number"
		switch {
		case m[3] == "uint" && m[2] == "16":
			right = "a number from 0 to 65535"
		case m[3] == "uint":
			right = "a positive number"
		}
		return fmt.Errorf("%s %s: has to be %s", m[1], m[4], right)
	}
	var parse *kong.ParseError
	m := missing.FindStringSubmatch(err.Error())
	if m == nil || !errors.As(err, &parse) || parse.Context.Selected() == nil {
		return err
	}
	return fmt.Errorf("the argument %s is missing; usage: %s %s", m[1], name, parse.Context.Selected().Summary())
}
