//go:build linux && cgo

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/bridge/recording"
	"golang.org/x/sys/unix"
)

// recorder records the program's commands and the answers. The methods of a nil recorder do
// nothing.
type recorder struct {
	to     *recording.Writer
	failed sync.Once
}

// add adds an entry for the calling thread.
func (r *recorder) add(file, op string, err error, request, answer []byte) {
	e := recording.Entry{Thread: unix.Gettid(), File: file, Op: op, Request: request,
		Answer: answer}
	if err != nil {
		e.Errno = syscall.Errno(-negative(err))
	}
	if err := r.to.Add(e); err != nil {
		r.failed.Do(func() {
			fmt.Fprintf(os.Stderr, "govs-verbs-test exec: --record: %v\n", err)
		})
	}
}

// opened records that a device was opened.
func (r *recorder) opened(file string, err error) {
	if r != nil {
		r.add(file, recording.Open, err, nil, nil)
	}
}

// closed records that the calling thread closes the last descriptor of a file. The calls of others
// may last longer.
func (r *recorder) closed(f bridge.File) {
	if r != nil {
		r.add(fileName(f), recording.Close, nil, nil, nil)
	}
}

// fileName returns package recording's name for a file.
func fileName(f bridge.File) string {
	switch f.(type) {
	case device:
		return recording.Uverbs
	case bridge.CMFile:
		return recording.CM
	}
	return recording.Events
}

// write makes f execute the command, and records it. It first fills the place of the answer with
// marks, to show what the bridge does not write.
func (r *recorder) write(p *process, f bridge.File, command []byte) (int, error) {
	file, request := fileName(f), slices.Clone(command)
	addr, room := recording.Place(file, request)
	before := make([]byte, room)
	marked := room > 0 && p.ReadMemory(addr, before) == nil &&
		p.WriteMemory(addr, recording.Marked(room)) == nil
	k, err := f.Write(command)
	var answer []byte
	if marked {
		now := make([]byte, room)
		if p.ReadMemory(addr, now) == nil && err == nil {
			answer = recording.Written(now)
		}
		// Bytes that were not written get their former values.
		_ = p.WriteMemory(addr+uint64(len(answer)), before[len(answer):])
	}
	if ibverbs.Errno(err) != syscall.EAGAIN || file != recording.CM { // the program repeats GET_EVENT
		r.add(file, recording.Write, err, request, answer)
	}
	return k, err
}

// netlink records a request and its answers.
func (r *recorder) netlink(request []byte, answers [][]byte) {
	if r != nil {
		r.add(recording.Netlink, recording.Write, nil, request, bytes.Join(answers, nil))
	}
}
