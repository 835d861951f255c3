// Package recording holds what a program wrote to an RDMA device and what the device answered, byte
// for byte. A recording can be a file, or steps: values without what differs from run to run.
// Compare lists the differences between two recordings.
//
// Package tracer records a program over a device of the kernel. The library that govs-verbs-test
// exec loads records one over the engine. Comparing both recordings compares the bridge with siw.
package recording

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Kinds of files that a program has open.
const (
	Uverbs  = "uverbs"  // /dev/infiniband/uverbs*
	CM      = "rdma_cm" // /dev/infiniband/rdma_cm
	Netlink = "netlink" // a socket of NETLINK_RDMA
	Events  = "events"  // a completion channel, or the descriptor of asynchronous events
)

// Operations on files.
const (
	Open  = "open"
	Close = "close"
	Write = "write" // a command; of a netlink socket, a request
	Ioctl = "ioctl"
)

// An Entry is a call of the program that has returned.
type Entry struct {
	Thread  int    // the system's number of the calling thread
	File    string // Uverbs, CM, Netlink or Events
	Op      string // Open, Close, Write or Ioctl
	Errno   syscall.Errno
	Request []byte // the bytes written

	// Answer holds what the device has stored at the address in the request. For a netlink socket
	// it holds the messages that the program has received until its next request.
	Answer []byte
}

// A Recording is the calls of a program, in the order in which they returned.
type Recording struct {
	Comments []string // lines about how it was made
	Entries  []Entry
}

// AppendText appends the entry as a line: thread, file, operation, errno, request and answer,
// separated by spaces. Bytes are in hexadecimal, or - if there are none. Eight or more zeros become
// their number between dots.
func (e *Entry) AppendText(b []byte) []byte {
	b = fmt.Appendf(b, "%d %s %s %d ", e.Thread, e.File, e.Op, int(e.Errno))
	b = appendOctets(b, e.Request)
	b = append(b, ' ')
	b = appendOctets(b, e.Answer)
	return append(b, '\n')
}

// leastZeros is the number of zeros from which they are counted instead of printed.
const leastZeros = 8

func appendOctets(b, octets []byte) []byte {
	if len(octets) == 0 {
		return append(b, '-')
	}
	for len(octets) > 0 {
		zeros := 0
		for zeros < len(octets) && octets[zeros] == 0 {
			zeros++
		}
		n := max(zeros, 1)
		if zeros >= leastZeros {
			b = fmt.Appendf(b, ".%d.", zeros)
		} else {
			b = hex.AppendEncode(b, octets[:n])
		}
		octets = octets[n:]
	}
	return b
}

func parseOctets(s string) ([]byte, error) {
	if s == "-" {
		return nil, nil
	}
	var octets []byte
	for i, part := range strings.Split(s, ".") {
		if i%2 == 0 {
			some, err := hex.DecodeString(part)
			if err != nil {
				return nil, err
			}
			octets = append(octets, some...)
			continue
		}
		n, err := strconv.ParseUint(part, 10, 20)
		if err != nil {
			return nil, err
		}
		octets = append(octets, make([]byte, n)...)
	}
	return octets, nil
}

// Write writes the recording: comments, which begin with #, and a line for each entry.
func (r *Recording) Write(w io.Writer) error {
	var b []byte
	for _, c := range r.Comments {
		b = append(append(append(b, "# "...), c...), '\n')
	}
	for i := range r.Entries {
		b = r.Entries[i].AppendText(b)
	}
	_, err := w.Write(b)
	return err
}

// longestLine is more than the length of any command with its answer.
const longestLine = 4 << 20

// Read reads what Write has written, or AppendText.
func Read(from io.Reader) (*Recording, error) {
	r := &Recording{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, longestLine)
	for n := 1; lines.Scan(); n++ {
		if comment, ok := strings.CutPrefix(lines.Text(), "#"); ok {
			r.Comments = append(r.Comments, strings.TrimSpace(comment))
			continue
		}
		e, err := parse(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("recording: line %d: %w", n, err)
		}
		r.Entries = append(r.Entries, e)
	}
	return r, lines.Err()
}

func parse(line string) (e Entry, err error) {
	words := strings.Split(line, " ")
	if len(words) != 6 {
		return e, fmt.Errorf("%d words, want 6: thread, file, operation, errno, request, answer",
			len(words))
	}
	e.File, e.Op = words[1], words[2]
	if e.Thread, err = strconv.Atoi(words[0]); err != nil {
		return e, err
	}
	errno, err := strconv.ParseUint(words[3], 10, 12)
	if err != nil {
		return e, err
	}
	e.Errno = syscall.Errno(errno)
	if e.Request, err = parseOctets(words[4]); err != nil {
		return e, err
	}
	e.Answer, err = parseOctets(words[5])
	return e, err
}

// A Writer writes entries to a file as they arrive. Its methods may be called concurrently.
type Writer struct {
	mu sync.Mutex
	to io.Writer
}

// NewWriter returns a Writer to a file.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Add writes an entry, in one call of the file's Write.
func (w *Writer) Add(e Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.to.Write(e.AppendText(nil))
	return err
}
