// Package p9test has a client of 9P2000.L for tests.
package p9test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
)

// Conn carries messages to a server.
type Conn interface {
	// Send is called by one goroutine at a time. It does not keep the message when it returns.
	Send(message []byte) error
	// Receive returns the next message, which is valid until the next call.
	Receive() ([]byte, error)
}

// Stream is a Conn over a byte stream.
type Stream struct{ net.Conn }

// Send implements Conn.
func (s Stream) Send(message []byte) error {
	_, err := s.Write(message)
	return err
}

// Receive implements Conn.
func (s Stream) Receive() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return nil, err
	}
	b := append(head[:], make([]byte, binary.LittleEndian.Uint32(head[:])-4)...)
	_, err := io.ReadFull(s, b[4:])
	return b, err
}

// Client calls a server. All methods may be called concurrently.
type Client struct {
	conn    Conn
	msize   int
	sending sync.Mutex

	mu      sync.Mutex
	replies map[uint16]chan []byte
	next    uint16
	err     error // why the connection ended
}

// New starts a session with messages of msize bytes at most.
func New(conn Conn, msize int) (*Client, error) {
	c := &Client{conn: conn, msize: msize, replies: make(map[uint16]chan []byte)}
	go c.receive()
	var v p9.Rversion
	err := c.Tagged(p9.NoTag, p9.KindVersion, &p9.Tversion{Msize: uint32(msize), Version: p9.Version}, &v)
	if err == nil && (v.Version != p9.Version || int(v.Msize) > msize) {
		err = fmt.Errorf("the server answers %+v to a Tversion", v)
	}
	c.msize = int(v.Msize)
	return c, err
}

// Msize returns the length of the longest message.
func (c *Client) Msize() int { return c.msize }

// receive hands out replies until the connection ends.
func (c *Client) receive() {
	for {
		b, err := c.conn.Receive()
		var tag uint16
		if err == nil {
			_, tag, err = p9.Header(b)
		}
		c.mu.Lock()
		reply := c.replies[tag]
		if err == nil && reply == nil {
			err = fmt.Errorf("a reply of type %d to tag %d, which nobody waits for", b[4], tag)
		}
		if err != nil {
			c.err = err
			for _, reply := range c.replies {
				close(reply)
			}
			clear(c.replies)
			c.mu.Unlock()
			return
		}
		delete(c.replies, tag)
		c.mu.Unlock()
		reply <- append([]byte(nil), b...)
	}
}

// Call calls the server. reply may be nil if the reply has no fields. An error of the server is a
// syscall.Errno.
func (c *Client) Call(kind uint8, request, reply any) error {
	c.mu.Lock()
	c.next = (c.next + 1) % 0x8000
	tag := c.next
	c.mu.Unlock()
	return c.Tagged(tag, kind, request, reply)
}

// Tagged calls the server with a tag that the caller chooses.
func (c *Client) Tagged(tag uint16, kind uint8, request, reply any) error {
	return c.Start(tag, kind, request)(reply)
}

// Start sends a request and returns a function that waits for the reply.
func (c *Client) Start(tag uint16, kind uint8, request any) func(reply any) error {
	buf := make([]byte, c.msize)
	n, err := p9.Encode(buf, kind, tag, request)
	if err != nil {
		return func(any) error { return err }
	}
	return c.Raw(tag, kind, buf[:n])
}

// Raw sends the bytes of a message and returns a function that waits for the reply.
func (c *Client) Raw(tag uint16, kind uint8, message []byte) func(reply any) error {
	answer := make(chan []byte, 1)
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.replies[tag] = answer
	}
	c.mu.Unlock()
	if err == nil {
		c.sending.Lock()
		err = c.conn.Send(message)
		c.sending.Unlock()
	}
	if err != nil {
		return func(any) error { return err }
	}
	return func(reply any) error {
		b, ok := <-answer
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.err
		case b[4] == p9.KindError:
			var e p9.Rlerror
			if err := p9.Decode(b, &e); err != nil {
				return err
			}
			return syscall.Errno(e.Errno)
		case b[4] != kind+1:
			return fmt.Errorf("a reply of type %d to type %d", b[4], kind)
		}
		return p9.Decode(b, reply)
	}
}

// Walk makes a new fid that names what the names lead to from an old fid.
func (c *Client) Walk(from, to uint32, names ...string) ([]p9.Qid, error) {
	var r p9.Rwalk
	err := c.Call(p9.KindWalk, &p9.Twalk{Fid: from, NewFid: to, Names: names}, &r)
	if err == nil && len(r.Qids) != len(names) {
		err = syscall.ENOENT
	}
	return r.Qids, err
}

// Attach makes a fid that names the root.
func (c *Client) Attach(fid uint32) error {
	return c.Call(p9.KindAttach, &p9.Tattach{Fid: fid, AFid: p9.NoFid}, new(p9.Rattach))
}

// Open opens the file of a fid.
func (c *Client) Open(fid uint32, flags int) error {
	return c.Call(p9.KindOpen, &p9.Topen{Fid: fid, Flags: uint32(flags)}, new(p9.Ropen))
}

// Create copies a directory's fid; the copy becomes a new, open file.
func (c *Client) Create(dir, fid uint32, name string, flags int) error {
	if _, err := c.Walk(dir, fid); err != nil {
		return err
	}
	return c.Call(p9.KindCreate, &p9.Tcreate{Fid: fid, Name: name, Flags: uint32(flags), Mode: 0o644}, new(p9.Ropen))
}

// Read reads from an open file.
func (c *Client) Read(fid uint32, offset uint64, count int) ([]byte, error) {
	var r p9.Rread
	err := c.Call(p9.KindRead, &p9.Tread{Fid: fid, Offset: offset, Count: uint32(count)}, &r)
	return r.Data, err
}

// Write writes to an open file.
func (c *Client) Write(fid uint32, offset uint64, data []byte) (int, error) {
	var r p9.Rwrite
	err := c.Call(p9.KindWrite, &p9.Twrite{Fid: fid, Offset: offset, Data: data}, &r)
	return int(r.Count), err
}

// Attr returns a file's attributes.
func (c *Client) Attr(fid uint32) (p9.Attr, error) {
	var r p9.Rgetattr
	err := c.Call(p9.KindGetattr, &p9.Tgetattr{Fid: fid, Mask: 0x7ff}, &r)
	return r.Attr, err
}

// Clunk frees a fid.
func (c *Client) Clunk(fid uint32) error { return c.Call(p9.KindClunk, &p9.Tfid{Fid: fid}, nil) }

// Entry is an entry of a directory.
type Entry struct {
	Qid    p9.Qid
	Offset uint64
	Type   uint8
	Name   string
}

// ReadDir reads up to count bytes of entries of an open directory, from an offset on.
func (c *Client) ReadDir(fid uint32, offset uint64, count int) (entries []Entry, err error) {
	var r p9.Rreaddir
	if err := c.Call(p9.KindReaddir, &p9.Treaddir{Fid: fid, Offset: offset, Count: uint32(count)}, &r); err != nil {
		return nil, err
	}
	for b := r.Data; len(b) > 0; {
		if len(b) < 24 || len(b) < 24+int(binary.LittleEndian.Uint16(b[22:])) {
			return nil, fmt.Errorf("an entry is cut short: % x", b)
		}
		n := int(binary.LittleEndian.Uint16(b[22:]))
		entries = append(entries, Entry{
			Qid: p9.Qid{
				Type: b[0], Version: binary.LittleEndian.Uint32(b[1:]), Path: binary.LittleEndian.Uint64(b[5:]),
			},
			Offset: binary.LittleEndian.Uint64(b[13:]), Type: b[21], Name: string(b[24 : 24+n]),
		})
		b = b[24+n:]
	}
	return entries, nil
}
