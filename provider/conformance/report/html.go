package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

//go:embed page
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"lower":   func(v any) string { return strings.ToLower(fmt.Sprint(v)) },
	"sign":    sign,
	"percent": percent,
	"route":   runRoute,
	"css":     func() template.CSS { return template.CSS(pageText("style.css")) },
	"script":  func() template.JS { return template.JS(pageScript) },
	"policy":  func() string { return pagePolicy },
}).ParseFS(pageFiles, "page/*.html"))

// pageScript lists the files of the script, each after the files that it needs.
var pageScript = pageText("base.js") + pageText("scenario.js") + pageText("coverage.js") +
	pageText("list.js") + pageText("main.js")

// pagePolicy lets a browser run this script only, whatever a report has in it, and load nothing.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageScript))
	return "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; " +
		"script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

// pageText is the text of an embedded file.
func pageText(name string) string {
	b, err := pageFiles.ReadFile(path.Join("page", name))
	if err != nil {
		panic(err) // the file is embedded, or the program does not compile
	}
	return string(b)
}

// HTML writes a report as one page that needs no other file and no server. The summary, what to
// look at and the known divergences are HTML. The page's script makes the matrix, the scenarios
// and the coverage from compressed data in the page.
//
// files is where the repository's notes and documents are, with a slash at its end: a URL, or a
// path relative to the page.
func HTML(w io.Writer, rep *conformance.Report, files string) error {
	p, err := newPage(rep)
	if err != nil {
		return err
	}
	p.Files = files
	return pageTemplate.ExecuteTemplate(w, "index.html", p)
}

const (
	modulePath = "github.com/govs-rdma/govs"
	blobs      = "https://" + modulePath + "/blob/" // the files of a tag or branch
)

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// filesFor returns the files argument of HTML for a page in dir. Links of a page inside a checkout
// lead to the files there, so that they work without network. Other pages name the release that
// wrote the report, or the branch main if version is none.
func filesFor(dir, version string) string {
	if up, ok := checkoutAbove(dir); ok {
		return up
	}
	if !release.MatchString(version) {
		version = "main"
	}
	return blobs + version + "/"
}

// checkoutAbove returns the way from dir up to the folder of this module that dir is in.
func checkoutAbove(dir string) (up string, ok bool) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", false
	}
	for up = "./"; ; up += "../" {
		mod, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if bytes.HasPrefix(mod, []byte("module "+modulePath+"\n")) {
			return up, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

// What becomes a link: evidence that is a URL, and the repository's notes and documents in texts
// of the suite. The script has the second as well.
var (
	webURL = regexp.MustCompile(`^https?://\S+$`)
	notes  = regexp.MustCompile(`(?:kernel-notes|docs)/[\w.-]+\.md`)
)

func escaped(text string) template.HTML { return template.HTML(template.HTMLEscapeString(text)) }

func link(url, text string) template.HTML {
	return `<a href="` + escaped(url) + `">` + escaped(text) + `</a>`
}

// EvidenceLink returns the evidence of an entry, as a link if it is a URL or a note.
func (p *page) EvidenceLink(text string) template.HTML {
	if webURL.MatchString(text) {
		return link(text, text)
	}
	return p.Linked(text)
}

// Linked returns a text whose notes are links.
func (p *page) Linked(text string) template.HTML {
	var out template.HTML
	at := 0
	for _, m := range notes.FindAllStringIndex(text, -1) {
		name := text[m[0]:m[1]]
		out += escaped(text[at:m[0]]) + link(p.Files+name, name)
		at = m[1]
	}
	return out + escaped(text[at:])
}

// percent returns the percentage of whole that part is, for widths and for text; 0 if whole is 0.
func percent(part, whole int) int {
	if whole == 0 {
		return 0
	}
	return part * 100 / whole
}

// sign returns a verdict's sign, which the page shows beside its word. The script has the same.
func sign(v conformance.Verdict) string {
	switch v {
	case conformance.Pass:
		return "✓"
	case conformance.XFail:
		return "≈"
	case conformance.Unsupported:
		return "–"
	case conformance.Fail:
		return "✗"
	case conformance.XPass:
		return "!"
	}
	return "?"
}
