package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeSource is what the edits of TestMend are applied to. It has what makes statements hard to
// find: comments, strings and braces in them, calls over several lines, prototypes, labels and the
// preprocessor.
const fakeSource = `/* int twice(int n) { return n; } */
static int twice(int n);

struct pair {
	int a : 4;
#ifdef BIG
	int b : 4;
#else
	int b : 8;
#endif
};

static int twice(int n)
{
	int rv = 0;

	/* a; comment { */
	if (n > 1 &&
	    n < 9) {
		rv = n;
		goto out;
	} else {
		print("a string; {",
		      n);
	}
	switch (n) {
	case 1:
		rv = 5;
		break;
	}
	rv = 7;
out:
	return rv + rv;
}

int other(int n)
{
	return n;
}
`

// mend applies an edit to fakeSource and returns the source as it is then.
func mend(t *testing.T, edits ...string) (source, said string, status int) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "a.c")
	if err := os.WriteFile(file, []byte(fakeSource), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"sources=" + dir}
	for i, text := range edits {
		name := filepath.Join(dir, "edit"+string(rune('1'+i)))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, name)
	}
	cmd := exec.Command("./mend", args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(got), strings.ReplaceAll(string(out), dir+"/", ""), cmd.ProcessState.ExitCode()
}

func TestMend(t *testing.T) {
	for _, c := range []struct{ name, edit, old, new string }{
		{"before", "in a.c twice\nbefore rv = 7\n\tx();\n\n# a comment\n", "\trv = 7;\n",
			"\tx();\n\trv = 7;\n"},
		{"after", "in a.c twice\nafter int rv\n\tint x;\n\tint y;\n", "\tint rv = 0;\n",
			"\tint rv = 0;\n\tint x;\n\tint y;\n"},
		{"after a statement of two lines", "in a.c twice\nafter print(\n\tx();\n", "\t\t      n);\n",
			"\t\t      n);\n\tx();\n"},
		{"after what opens a block", "in a.c twice\nafter n > 1 && n < 9\n\tx();\n", "\t    n < 9) {\n",
			"\t    n < 9) {\n\tx();\n"},
		{"replace", "in a.c twice\nreplace rv = 7\n\trv = 8;\n", "\trv = 7;\n", "\trv = 8;\n"},
		{"replace a block", "in a.c twice\nreplace switch (n)\n\tx();\n",
			"\tswitch (n) {\n\tcase 1:\n\t\trv = 5;\n\t\tbreak;\n\t}\n", "\tx();\n"},
		{"delete", "in a.c twice\ndelete print(\n", "\t\tprint(\"a string; {\",\n\t\t      n);\n",
			""},
		{"change", "in a.c twice\nchange rv = 7 => rv = 70\n", "rv = 7;", "rv = 70;"},
		{"change a line of several", "in a.c twice\nchange n < 9 => n < 10\n", "n < 9", "n < 10"},
		{"ahead", "in a.c twice\nahead\n\tint x;\n", "static int twice(int n)\n{",
			"\tint x;\nstatic int twice(int n)\n{"},
		{"a label", "in a.c twice\nbefore out:\n\tx();\n", "out:\n", "\tx();\nout:\n"},
		{"a later statement", "in a.c twice\nbefore case 1: >> rv =\n\tx();\n", "\t\trv = 5;\n",
			"\tx();\n\t\trv = 5;\n"},
		{"the preprocessor", "in a.c struct pair\nchange #else >> int b : 8 => int b : 9\n",
			"int b : 8", "int b : 9"},
		{"the whole file", "in a.c\ndelete return n;\n", "\treturn n;\n", ""},
		{"when", "in a.c twice\nwhen nothing has this\ndelete rv = 7\n" +
			"in a.c twice\nwhen a string\nchange rv = 7 => rv = 6\n", "rv = 7", "rv = 6"},
		{"unless", "in a.c twice\nunless a string\ndelete rv = 7\nin a.c other\ndelete return\n",
			"\treturn n;\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := fakeSource
			if i := strings.LastIndex(want, c.old); i >= 0 {
				want = want[:i] + c.new + want[i+len(c.old):]
			}
			got, said, status := mend(t, c.edit)
			if status != 0 || said != "" {
				t.Errorf("status %d: %s", status, said)
			}
			if got != want {
				t.Errorf("the source is\n%s\nand should be\n%s", got, want)
			}
		})
	}
}

// TestMendSecond: an edit finds what those before it have changed, in its file and in others.
func TestMendSecond(t *testing.T) {
	const first = "edit one\nin a.c other\nbefore return n\n\tfirst();\n"
	const second = "edit two\nin a.c other\nafter first();\n\tsecond();\n"
	for _, files := range [][]string{{first, second}, {first + "\n" + second}} {
		got, said, status := mend(t, files...)
		if status != 0 || !strings.Contains(got, "\tfirst();\n\tsecond();\n\treturn n;\n") {
			t.Errorf("status %d, %s: the source is\n%s", status, said, got)
		}
	}
}

// TestMendRefused: an edit that does not fit says where and why, and nothing is written, not even
// what fits.
func TestMendRefused(t *testing.T) {
	for _, c := range []struct{ edit, says string }{
		{"in a.c twice\ndelete nothing like it\n",
			`edit2:2: twice of a.c has no statement with "nothing like it", not one`},
		{"in a.c twice\ndelete rv =\n",
			`edit2:2: twice of a.c has 4 statements with "rv =", not one`},
		{"in a.c twice\ndelete case 1: >> none\n",
			`edit2:2: twice of a.c has no statement with "none" after "case 1:", not one`},
		{"in a.c twice\nchange out: >> rv => x\n",
			`edit2:2: "rv" is 2 times in the statement, not once`},
		{"in a.c twice\nchange n > 1 && n < 9 => x\n",
			`edit2:2: "n > 1 && n < 9" is in no one line in the statement, not once`},
		{"in a.c thrice\ndelete rv\n", "edit2:2: a.c has no thrice"},
		{"in b.c twice\ndelete rv\n", "edit2:1: there is no source b.c"},
		{"in a.c twice\nreplace n > 1 &&\n\tx();\n",
			"edit2:2: more than the end of a block is in its last line: use change"},
		{"in a.c twice\nremove rv\n", "edit2:2: not an operation: remove rv"},
		{"in a.c twice\nbefore rv = 7\n", "edit2:2: before needs lines, each with a tab before it"},
		{"in a.c twice\ndelete rv = 7\n\tx();\n", "edit2:2: delete takes no lines"},
		{"in a.c twice\nchange rv = 7\n", "edit2:2: change takes ANCHOR => TEXT"},
		{"in a.c twice\n\tx();\n", "edit2:2: these lines belong to no operation"},
		{"before rv = 7\n\tx();\n", "edit2:1: no source is open: begin with in FILE"},
		{"# nothing\n", "edit2:1: the edit changes nothing"},
		{"edit one\nin a.c twice\ndelete rv = 7\nedit two\n", "edit2:4: the edit changes nothing"},
		{"edit one\nedit two\nin a.c twice\ndelete rv = 7\n", "edit2:1: the edit changes nothing"},
		{"edit one\nin a.c twice\nedit two\ndelete rv = 7\n", "edit2:1: the edit changes nothing"},
		{"edit one\nin a.c twice\ndelete rv = 7\nedit two\ndelete rv\n",
			"edit2:5: no source is open: begin with in FILE"},
	} {
		got, said, status := mend(t, "in a.c other\ndelete return n\n", c.edit)
		if status != 1 || said != c.says+"\n" {
			t.Errorf("%q: status %d, %q, want %q", c.edit, status, said, c.says)
		}
		if got != fakeSource {
			t.Errorf("%q: the source was changed:\n%s", c.edit, got)
		}
	}
}

// TestMended: each edit of siw has the name of the note about what it mends, and begins with a
// comment.
func TestMended(t *testing.T) {
	files, err := filepath.Glob("mended/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	seen := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edits := strings.Split("\n"+string(text), "\nedit ")
		if edits[0] != "" {
			t.Errorf("%s: it begins with %q, and not with an edit", file, edits[0])
		}
		for _, edit := range edits[1:] {
			name, edit, _ := strings.Cut(edit, "\n")
			_, plain := os.Stat(filepath.Join("../../kernel-notes", name+".md"))
			_, siw := os.Stat(filepath.Join("../../kernel-notes", "siw-"+name+".md"))
			if plain != nil && siw != nil {
				t.Errorf("%s: no note has the name of the edit %s", file, name)
			}
			if seen[name] {
				t.Errorf("%s: there are two edits %s", file, name)
			}
			seen[name] = true
			if !strings.HasPrefix(edit, "# ") {
				t.Errorf("%s: the edit %s begins without a comment", file, name)
			}
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "#") && len(line) > 120 {
				t.Errorf("%s:%d: the comment is longer than 120", file, i+1)
			}
		}
	}
}
