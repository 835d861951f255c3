package remote

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// wireError is an error on the control connection. An error that a program may ask for keeps its
// type and fields; any other keeps its text and what it wraps.
type wireError struct {
	Kind        string                     `json:"kind"`
	Text        string                     `json:"text,omitempty"`
	Op          string                     `json:"op,omitempty"`
	Object      string                     `json:"object,omitempty"`
	Errno       int                        `json:"errno,omitempty"`
	Unsupported *provider.UnsupportedError `json:"unsupported,omitempty"`
	WC          *provider.WCError          `json:"wc,omitempty"`
	Terminate   *provider.TerminateError   `json:"terminate,omitempty"`
	Work        *provider.WorkError        `json:"work,omitempty"`
	Rejected    *provider.RejectedError    `json:"rejected,omitempty"`
	Is          []string                   `json:"is,omitempty"` // matching sentinels, by name
	Wraps       []*wireError               `json:"wraps,omitempty"`
}

// maxErrors limits how deep errors may wrap each other.
const maxErrors = 16

// sentinels are the errors that programs compare with, by name.
var sentinels = map[string]error{
	"closed": os.ErrClosed, "eof": io.EOF, "unexpected-eof": io.ErrUnexpectedEOF,
	"canceled": context.Canceled, "deadline": context.DeadlineExceeded,
	"unsupported": errors.ErrUnsupported, "flushed": provider.ErrFlushed,
	"none-signaled": provider.ErrNoneSignaled,
}

// encodeError converts err for the control connection; nil stays nil.
func encodeError(err error) *wireError { return encodeTo(err, maxErrors) }

func encodeTo(err error, depth int) *wireError {
	if err == nil {
		return nil
	}
	if depth == 0 {
		return &wireError{Kind: "text", Text: err.Error()}
	}
	inner := func(errs ...error) (out []*wireError) {
		for _, e := range errs {
			if e != nil {
				out = append(out, encodeTo(e, depth-1))
			}
		}
		return out
	}
	for name, s := range sentinels {
		if err == s {
			return &wireError{Kind: name}
		}
	}
	switch e := err.(type) {
	case syscall.Errno:
		return &wireError{Kind: "errno", Errno: int(e)}
	case *provider.Error:
		return &wireError{Kind: "error", Op: e.Op, Object: e.Object, Wraps: inner(e.Err)}
	case *provider.UnsupportedError:
		return &wireError{Kind: "lacks", Unsupported: e}
	case *provider.WCError:
		return &wireError{Kind: "wc", WC: e}
	case *provider.TerminateError:
		plain := *e
		plain.Err = nil
		return &wireError{Kind: "terminate", Terminate: &plain, Wraps: inner(e.Err)}
	case *provider.WorkError:
		plain := *e
		plain.Err = nil
		return &wireError{Kind: "work", Work: &plain, Wraps: inner(e.Err)}
	case *provider.RejectedError:
		plain := *e
		plain.Cause = nil
		return &wireError{Kind: "rejected", Rejected: &plain, Wraps: inner(e.Cause)}
	}
	w := &wireError{Kind: "text", Text: err.Error()}
	if is, ok := err.(interface{ Is(error) bool }); ok {
		for name, s := range sentinels {
			if is.Is(s) {
				w.Is = append(w.Is, name)
			}
		}
		slices.Sort(w.Is)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		w.Wraps = inner(e.Unwrap())
	case interface{ Unwrap() []error }:
		w.Wraps = inner(e.Unwrap()...)
	}
	return w
}

// farError is an error of the agent whose type is not in the contract.
type farError struct {
	text  string
	is    []string // matching sentinels, by name
	wraps []error
}

func (e *farError) Error() string   { return e.text }
func (e *farError) Unwrap() []error { return e.wraps }

// Is matches the sentinels that the agent's error matched.
func (e *farError) Is(target error) bool {
	for _, name := range e.is {
		if s := sentinels[name]; s != nil && s == target {
			return true
		}
	}
	return false
}

// decode returns the error that w describes.
func (w *wireError) decode() error { return w.decodeTo(maxErrors) }

func (w *wireError) decodeTo(depth int) error {
	if w == nil {
		return nil
	}
	if depth == 0 {
		return &farError{text: w.Text}
	}
	var wraps []error
	for _, in := range w.Wraps {
		if err := in.decodeTo(depth - 1); err != nil {
			wraps = append(wraps, err)
		}
	}
	var first error
	if len(wraps) > 0 {
		first = wraps[0]
	}
	if s, ok := sentinels[w.Kind]; ok {
		return s
	}
	switch {
	case w.Kind == "errno":
		return syscall.Errno(w.Errno)
	case w.Kind == "error" && first != nil:
		return &provider.Error{Op: w.Op, Object: w.Object, Err: first}
	case w.Kind == "lacks" && w.Unsupported != nil:
		return w.Unsupported
	case w.Kind == "wc" && w.WC != nil:
		return w.WC
	case w.Kind == "terminate" && w.Terminate != nil:
		w.Terminate.Err = first
		return w.Terminate
	case w.Kind == "work" && w.Work != nil:
		w.Work.Err = first
		return w.Work
	case w.Kind == "rejected" && w.Rejected != nil:
		w.Rejected.Cause = first
		return w.Rejected
	}
	text := w.Text
	if text == "" {
		text = "an error of the agent that says nothing"
	}
	return &farError{text, w.Is, wraps}
}
