package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// TestCitedPrototypesAreThoseOfTheHeaders checks the comments of the wrappers against the installed
// headers.
func TestCitedPrototypesAreThoseOfTheHeaders(t *testing.T) {
	for _, b := range bindings {
		if _, err := os.Stat(filepath.Join("/usr/include", b.header)); err != nil {
			if os.Getenv("REQUIRE_SIW") == "1" {
				t.Fatalf("REQUIRE_SIW=1, but %v", err)
			}
			t.Skipf("the header is not installed: %v", err)
		}
	}
	var out strings.Builder
	ok, err := report(&out, root, "/usr/include", true)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Errorf("wrong comments:\n%s", out.String())
	}
	t.Log(out.String())
}

// TestCitedFunctionsAreCalled: a wrapper calls the function that it cites, and a wrapper cites each
// function that is called.
func TestCitedFunctionsAreCalled(t *testing.T) {
	for _, b := range bindings {
		cited, err := citations(filepath.Join(root, b.pkg))
		if err != nil {
			t.Fatal(err)
		}
		if len(cited) < 10 {
			t.Errorf("%s: only %d citations", b.pkg, len(cited))
		}
		called := calls(t, filepath.Join(root, b.pkg), b.prefix)
		for name, c := range cited {
			if !called[name] {
				t.Errorf("%s cites %s, which %s does not call", c.place, name, b.pkg)
			}
		}
		for name := range called {
			if _, ok := cited[name]; !ok {
				t.Errorf("%s calls %s, which no comment cites", b.pkg, name)
			}
		}
	}
}

// TestNotBound: no wrapper cites a function that the Limitations of its package list as not bound.
func TestNotBound(t *testing.T) {
	for pkg, limit := range map[string]struct {
		one   string // that the pattern must match
		names *regexp.Regexp
	}{
		"cgo/ibv": {"ibv_create_ah", regexp.MustCompile(`^ibv_(\w+_ah|\w+_ah_from_wc|attach_mcast|` +
			`detach_mcast|open_xrcd|close_xrcd|create_flow\w*|\w+_dm|reg_dmabuf_mr|wr_\w+|` +
			`start_poll|next_poll|end_poll|wc_read_\w+|advise_mr)$`)},
		"cgo/rdmacm": {"rdma_create_ep", regexp.MustCompile(`^(rdma_(create_ep|destroy_ep|get_request)|` +
			`rdma_(join|leave)_multicast\w*|rdma_(get|free)addrinfo|rdma_post_\w+|rdma_get_\w+_comp|` +
			`r(socket|bind|listen|accept|connect|send|recv))$`)},
	} {
		if !limit.names.MatchString(limit.one) {
			t.Errorf("%s: the pattern does not find what it is for", pkg)
		}
		cited, err := citations(filepath.Join(root, pkg))
		if err != nil || len(cited) == 0 {
			t.Fatalf("%s: %d citations: %v", pkg, len(cited), err)
		}
		for name, c := range cited {
			if limit.names.MatchString(name) {
				t.Errorf("%s cites %s, but %s/doc.go says that it is not bound", c.place, name, pkg)
			}
		}
	}
}

// calls returns the functions of the library that Go code, or C code in preambles
// and shims, calls or names as an argument.
func calls(t *testing.T, dir, prefix string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	goCall := regexp.MustCompile(`\bC\.(` + prefix + `\w+)\(`)
	tags := regexp.MustCompile(`\b(struct|union|enum)\s+\w+`)
	cCall := regexp.MustCompile(`[^\w.](` + prefix + `\w+)[(,]`)
	found := make(map[string]bool)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		re, text := goCall, string(source)
		switch {
		case strings.HasSuffix(file, "_test.go"):
			continue
		case strings.HasSuffix(file, ".h"):
			re, text = cCall, tags.ReplaceAllString(comments.ReplaceAllString(text, ""), "")
		case strings.HasSuffix(file, ".go"):
			if preamble, _, ok := strings.Cut(text, "import \"C\""); ok {
				for _, m := range cCall.FindAllStringSubmatch(preamble, -1) {
					found[m[1]] = true
				}
			}
		}
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			found[m[1]] = true
		}
	}
	return found
}

func TestFunctionsOfAHeader(t *testing.T) {
	const header = `
#ifdef __cplusplus
extern "C" {
#endif
/* int ibv_commented(void); */
#define ibv_macro(x) \
	ibv_other(x)
enum ibv_e { IBV_A, IBV_B };
struct ibv_s {
	int (*ibv_member)(int x);
};
const char *ibv_name(enum ibv_e  e);	// int ibv_not(void);
int  __attribute_const ibv_rate(enum ibv_e rate);
static inline struct ibv_s *ibv_inline(struct ibv_s *s,
				       int n)
{
	if (n) { return ibv_called(s); }
	return s;
}
void ibv_callback(void (*f)(int), int x);
int other_function(void);
#ifdef __cplusplus
}
#endif
`
	want := map[string]string{
		"ibv_name":     "const char*ibv_name(enum ibv_e e)",
		"ibv_rate":     "int ibv_rate(enum ibv_e rate)",
		"ibv_inline":   "struct ibv_s*ibv_inline(struct ibv_s*s,int n)",
		"ibv_callback": "void ibv_callback(void(*f)(int),int x)",
	}
	if diff := cmp.Diff(want, functions(header, "ibv_")); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// TestWrongCommentsAreFound: report finds what is wrong with a comment.
func TestWrongCommentsAreFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("include/infiniband/verbs.h", "int ibv_a(int x);\nint ibv_b(void);\n")
	write("include/rdma/rdma_cma.h", "int rdma_a(void);\n")
	write("cgo/rdmacm/a.go", "package rdmacm\n\n// A is bound.\n//\n// Implements: int rdma_a(void);\nfunc A() {}\n")
	check := func(comment, want string) {
		t.Helper()
		write("cgo/ibv/a.go", "package ibv\n\n// A is bound.\n//\n// "+comment+"\nfunc (x *T) A() {}\n\ntype T int\n")
		var out strings.Builder
		ok, err := report(&out, dir, filepath.Join(dir, "include"), true)
		if err != nil {
			out.WriteString(err.Error())
		}
		if ok != (want == "ibv_b                        not bound") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: ok %v\n%s", comment, ok, out.String())
		}
	}
	check("Implements: int ibv_a(int x);", "ibv_b                        not bound")
	check("Implements: int ibv_a(long x);", "and the header\n    int ibv_a(int x)")
	check("Implements: int ibv_c(void);", "T.A (a.go): the header does not declare it")
	check("Implements: nothing", `T.A (a.go): no prototype: "nothing"`)
	if _, err := report(&strings.Builder{}, dir, dir, false); err == nil {
		t.Error("headers that are not there were read")
	}
}
