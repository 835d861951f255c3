package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// pinger is one end of an rping: a connection, and memory for it. The memory has its own PD, so
// that the connection can be closed first.
type pinger struct {
	vctx    *ibverbs.Context
	pd      *ibverbs.PD
	conn    *rdmacm.Conn    // nil before it is made
	over    context.Context // done some time after conn has ended
	timeout time.Duration   // how long the peer may be silent

	data *ibverbs.MR // client: the pinged data; server: where they go
	sink *ibverbs.MR // client: where the server's Write goes
	send *ibverbs.MR
	recv *ibverbs.MR
}

func newPinger(vctx *ibverbs.Context, timeout time.Duration) (*pinger, error) {
	pd, err := vctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return &pinger{vctx: vctx, pd: pd, timeout: timeout}, nil
}

// config registers memory for pings of size bytes, and posts the first receive
// before the peer can send.
func (p *pinger) config(size int) *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		PD:                 p.pd,
		ResponderResources: 1,
		InitiatorDepth:     1,
		Prepare: func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			if err := p.alloc(size); err != nil {
				return err
			}
			return p.postRecv(conn.QP())
		},
	}
}

func (p *pinger) alloc(size int) error {
	const peers = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite
	for _, b := range []struct {
		mr     **ibverbs.MR
		octets int
		access ibverbs.Access
	}{
		{&p.data, size, peers},
		{&p.sink, size, peers},
		{&p.send, pingInfoLen, ibverbs.AccessLocalWrite},
		{&p.recv, pingInfoLen, ibverbs.AccessLocalWrite},
	} {
		mr, err := p.pd.AllocMR(b.octets, b.access)
		if err != nil {
			return err
		}
		*b.mr = mr
	}
	return nil
}

// flushTime is how long to wait for completions after a connection has ended. It limits the wait,
// because siw does not complete work during which it found that the connection has ended.
const flushTime = time.Second

// use sets the pinger's connection, which close closes.
func (p *pinger) use(conn *rdmacm.Conn) {
	p.conn = conn
	ctx, cancel := context.WithCancel(context.Background())
	p.over = ctx
	go func() {
		<-conn.Done() // also after Close
		time.AfterFunc(flushTime, cancel)
	}()
}

// close ends the connection and frees the memory.
func (p *pinger) close() error {
	var errs []error
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	for _, mr := range []*ibverbs.MR{p.data, p.sink, p.send, p.recv} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(append(errs, p.pd.Close())...)
}

func (p *pinger) postRecv(qp *ibverbs.QP) error {
	sge, err := p.recv.SGE(0, pingInfoLen)
	if err != nil {
		return err
	}
	return qp.PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
}

// tell sends a message to the peer.
func (p *pinger) tell(ctx context.Context, info pingInfo) error {
	info.put(p.send.Bytes())
	sge, err := p.send.SGE(0, pingInfoLen)
	if err != nil {
		return err
	}
	return p.do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}})
}

// do posts one work request and waits for its completion.
func (p *pinger) do(ctx context.Context, wr ibverbs.SendWR) error {
	wr.Flags |= ibverbs.SendSignaled
	if err := p.conn.QP().PostSend(wr); err != nil {
		return p.because(err)
	}
	_, err := p.wait(ctx, p.conn.SendCQ(), wr.Opcode.String())
	return err
}

// hear waits for the peer's message, and posts the next receive.
func (p *pinger) hear(ctx context.Context) (pingInfo, error) {
	wc, err := p.wait(ctx, p.conn.RecvCQ(), "the peer's message")
	if err != nil {
		return pingInfo{}, err
	}
	if wc.ByteLen != pingInfoLen {
		return pingInfo{}, fmt.Errorf("the peer sent a message of %d bytes, rping's have %d", wc.ByteLen, pingInfoLen)
	}
	info := parsePingInfo(p.recv.Bytes())
	return info, p.postRecv(p.conn.QP())
}

// wait waits for one completion, at most for the timeout.
func (p *pinger) wait(ctx context.Context, cq *ibverbs.CQ, what string) (ibverbs.WC, error) {
	limited, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	defer context.AfterFunc(p.over, cancel)()
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(limited, wc[:]); err != nil {
		switch {
		case ctx.Err() != nil || limited.Err() == nil:
		case p.over.Err() != nil:
			err = errors.New("the connection has ended")
		default:
			err = fmt.Errorf("nothing for %v", p.timeout)
		}
		return wc[0], fmt.Errorf("waiting for %s: %w", what, err)
	}
	if err := wc[0].Err(); err != nil {
		return wc[0], fmt.Errorf("waiting for %s: %w", what, p.because(err))
	}
	return wc[0], nil
}

// left reports whether the peer has ended the connection in order, which caused err. The cause is
// then unknown, or the end of the stream.
func (p *pinger) left(err error) bool {
	cause := p.conn.QP().Cause()
	return errors.Is(err, ibverbs.ErrFlushed) && (cause == nil || errors.Is(cause, io.EOF))
}

// because adds the reason for the connection's end to an error, if the provider knows it.
func (p *pinger) because(err error) error {
	if p.left(err) {
		return fmt.Errorf("the peer has ended the connection: %w", err)
	}
	if cause := p.conn.QP().Cause(); cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// text returns b up to the first NUL, which is what rping prints.
func text(b []byte) []byte {
	t, _, _ := bytes.Cut(b, []byte{0})
	return t
}

// pingInfo is the only message of rping's protocol; it gives the sender's memory. Its wire form is
// rping's, not ibverbs.RemoteRegion's.
type pingInfo struct {
	Addr uint64
	Key  uint32
	Size uint32
}

// pingInfoLen is the length of a pingInfo in bytes.
const pingInfoLen = 16

func infoOf(mr *ibverbs.MR) pingInfo {
	return pingInfo{Addr: mr.Addr(), Key: mr.RKey(), Size: uint32(mr.Len())}
}

func (p pingInfo) put(b []byte) {
	binary.BigEndian.PutUint64(b, p.Addr)
	binary.BigEndian.PutUint32(b[8:], p.Key)
	binary.BigEndian.PutUint32(b[12:], p.Size)
}

func parsePingInfo(b []byte) pingInfo {
	return pingInfo{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// fillPing writes the text of ping n, as rping does: a head, then letters that begin one further
// each time, and a NUL at the end. The server prints the text. The C server writes back the text up
// to and including the NUL. b has at least minPing bytes.
func fillPing(b []byte, n int) {
	head := fmt.Appendf(nil, "rdma-ping-%d: ", n)
	copy(b, head)
	const first, last = 'A', 'z'
	letter := first + n%(last-first+1)
	for i := min(len(head), len(b)); i < len(b); i++ {
		b[i] = byte(letter)
		if letter++; letter > last {
			letter = first
		}
	}
	b[len(b)-1] = 0
}
