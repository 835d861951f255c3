package walls

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRepository keeps the repository small: the number of files, the largest of them but captures,
// and what a program downloads: a zip of the root module (https://go.dev/ref/mod#zip-files).
func TestRepository(t *testing.T) {
	const maxFiles, maxFile, maxDownload = 1469, 100_000, 3 << 20
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v; the test needs the repository", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(files) > maxFiles {
		t.Errorf("the repository has %d files, want at most %d", len(files), maxFiles)
	}
	var others []string // folders of modules below the root's
	for _, name := range files {
		if dir := path.Dir(name); path.Base(name) == "go.mod" && dir != "." {
			others = append(others, dir+"/")
		}
	}
	var download counter
	archive := zip.NewWriter(&download)
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > maxFile && !strings.HasPrefix(path.Ext(name), ".pcap") {
			t.Errorf("%s has %d bytes, want at most %d", name, len(text), maxFile)
		}
		if slices.ContainsFunc(others, func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			continue
		}
		w, err := archive.Create(module + "@v0.1.0/" + name)
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if download > maxDownload {
		t.Errorf("a program downloads %d bytes, want at most %d; what only the project needs can be "+
			"below a go.mod of its own", download, maxDownload)
	}
	t.Logf("%d files, a download of %d bytes", len(files), download)
}

// A counter counts what is written to it.
type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

var _ io.Writer = (*counter)(nil)
