package profile

import (
	"embed"
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

//go:embed *.toml
var files embed.FS

// Names returns the names of the built-in profiles, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic("profile: the embedded files can't be listed: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".toml"))
	}
	return names
}

// Text returns the file of a built-in profile, octet for octet.
func Text(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".toml")
	if err != nil {
		return nil, fmt.Errorf("no profile %q is built in: there are %s", name,
			strings.Join(Names(), ", "))
	}
	return data, nil
}

// Builtin returns the profiles that are part of the program.
func Builtin(suite *conformance.Suite) ([]*Profile, error) {
	var out []*Profile
	for _, name := range Names() {
		data, err := Text(name)
		if err != nil {
			return nil, err
		}
		p, err := Parse(name+".toml", data, suite)
		if err != nil {
			return nil, fmt.Errorf("the profile %s that is built in: %w", name, err)
		}
		out = append(out, p)
	}
	return out, nil
}
