package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

//go:embed page
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"lower":    func(v any) string { return strings.ToLower(fmt.Sprint(v)) },
	"sign":     sign,
	"percent":  percent,
	"files":    func() string { return filesURL },
	"linked":   linked,
	"evidence": evidence,
	"route":    runRoute,
	"css":      func() template.CSS { return template.CSS(pageText("style.css")) },
	"script":   func() template.JS { return template.JS(pageScript) },
	"policy":   func() string { return pagePolicy },
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
func HTML(w io.Writer, rep *conformance.Report) error {
	p, err := newPage(rep)
	if err != nil {
		return err
	}
	return pageTemplate.ExecuteTemplate(w, "index.html", p)
}

// filesURL is where the files of this repository can be read.
const filesURL = "https://github.com/govs-rdma/govs/blob/main/"

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

// evidence returns the evidence of an entry, as a link if it is a URL or a note.
func evidence(text string) template.HTML {
	if webURL.MatchString(text) {
		return link(text, text)
	}
	return linked(text)
}

// linked returns a text whose notes are links.
func linked(text string) template.HTML {
	var out template.HTML
	at := 0
	for _, m := range notes.FindAllStringIndex(text, -1) {
		name := text[m[0]:m[1]]
		out += escaped(text[at:m[0]]) + link(filesURL+name, name)
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
