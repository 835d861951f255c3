// Capi reports which part of libibverbs and librdmacm the packages below cgo bind.
// It reads the prototypes that the comments of the wrappers cite after
// "Implements:", and the headers that are installed.
//
//	go run ./ci/capi [-missing] [-include DIR]
//
// It exits with 1 if a comment cites a prototype that its header does not have,
// and with 2 if a header can't be read.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// bindings says which package binds which header.
var bindings = []struct {
	pkg    string // folder below the project's root
	header string // file below the include directory
	prefix string // of the functions that belong to the library
}{
	{"cgo/ibv", "infiniband/verbs.h", "ibv_"},
	{"cgo/rdmacm", "rdma/rdma_cma.h", "rdma_"},
}

func main() {
	missing := flag.Bool("missing", false, "list what is not bound, too")
	include := flag.String("include", "/usr/include", "directory of the headers")
	root := flag.String("root", ".", "the project's root")
	flag.Parse()
	ok, err := report(os.Stdout, *root, *include, *missing)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "capi:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// report writes what is covered, and returns false if a comment is wrong.
func report(w io.Writer, root, include string, missing bool) (bool, error) {
	ok := true
	for _, b := range bindings {
		source, err := os.ReadFile(filepath.Join(include, b.header))
		if err != nil {
			return false, err
		}
		declared := functions(string(source), b.prefix)
		cited, err := citations(filepath.Join(root, b.pkg))
		if err != nil {
			return false, err
		}
		fmt.Fprintf(w, "%s binds %d of the %d functions of %s\n", b.pkg, len(cited), len(declared), b.header)
		for _, name := range sorted(cited) {
			switch proto := declared[name]; proto {
			case cited[name].prototype:
				fmt.Fprintf(w, "  %-28s %s\n", name, cited[name].place)
			case "":
				ok = false
				fmt.Fprintf(w, "  %-28s %s: the header does not declare it\n", name, cited[name].place)
			default:
				ok = false
				fmt.Fprintf(w, "  %-28s %s: the comment says\n    %s\n  and the header\n    %s\n", name, cited[name].place, cited[name].prototype, proto)
			}
		}
		if !missing {
			continue
		}
		for _, name := range sorted(declared) {
			if _, bound := cited[name]; !bound {
				fmt.Fprintf(w, "  %-28s not bound\n", name)
			}
		}
	}
	return ok, nil
}
