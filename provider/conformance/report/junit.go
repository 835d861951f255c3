package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Name    string       `xml:"name,attr"`
	Tests   int          `xml:"tests,attr"`
	Failed  int          `xml:"failures,attr"`
	Errors  int          `xml:"errors,attr"`
	Skipped int          `xml:"skipped,attr"`
	Suites  []junitSuite `xml:"testsuite"`
}

// junitSuite is one pairing.
type junitSuite struct {
	Name    string      `xml:"name,attr"`
	Tests   int         `xml:"tests,attr"`
	Failed  int         `xml:"failures,attr"`
	Errors  int         `xml:"errors,attr"`
	Skipped int         `xml:"skipped,attr"`
	Time    string      `xml:"time,attr"`
	Cases   []junitCase `xml:"testcase"`

	millis int64
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Error   *junitMessage `xml:"error,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report in the form that CI systems read: a suite per
// pairing, a case per scenario. FAIL and XPASS are failures, SETUP is an error,
// UNSUPPORTED is skipped, XFAIL passes and says why in its output.
func WriteJUnit(name string, r *conformance.Report) error {
	doc := junitSuites{Name: "govs-verbs-test"}
	index := make(map[string]int)
	for i := range r.Results {
		res := &r.Results[i]
		pairing := res.Initiator + "->" + res.Responder
		at, ok := index[pairing]
		if !ok {
			at = len(doc.Suites)
			index[pairing] = at
			doc.Suites = append(doc.Suites, junitSuite{Name: pairing})
		}
		doc.Suites[at].add(r, res)
	}
	for i := range doc.Suites {
		s := &doc.Suites[i]
		s.Time = seconds(s.millis)
		doc.Tests += s.Tests
		doc.Failed += s.Failed
		doc.Errors += s.Errors
		doc.Skipped += s.Skipped
	}
	return writeFile(name, func(w io.Writer) error {
		if _, err := io.WriteString(w, xml.Header); err != nil {
			return err
		}
		enc := xml.NewEncoder(w)
		enc.Indent("", "  ")
		if err := enc.Encode(doc); err != nil {
			return err
		}
		_, err := io.WriteString(w, "\n")
		return err
	})
}

func (s *junitSuite) add(r *conformance.Report, res *conformance.Result) {
	c := junitCase{Class: s.Name, Name: res.Scenario, Time: seconds(res.DurationMillis)}
	m := &junitMessage{
		Message: printable(string(res.Verdict) + ": " + res.Why),
		Text:    printable(strings.Join(Details(r, res), "\n")),
	}
	s.Tests++
	s.millis += res.DurationMillis
	switch res.Verdict {
	case conformance.Fail, conformance.XPass:
		c.Failure = m
		s.Failed++
	case conformance.Setup:
		c.Error = m
		s.Errors++
	case conformance.Unsupported:
		c.Skipped = m
		s.Skipped++
	case conformance.XFail:
		c.Out = m.Message + "\n" + m.Text
	}
	s.Cases = append(s.Cases, c)
}

func seconds(millis int64) string { return fmt.Sprintf("%.3f", float64(millis)/1000) }

// printable drops what XML 1.0 can't hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r == 0xfffe || r == 0xffff {
			return '?'
		}
		return r
	}, s)
}
