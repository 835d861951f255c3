package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// The ends exchange messages, as JSON in Sends, over a connection of their own: the client asks,
// the server answers. Neither sends a message during a run, so an end polls only for the run.

// message is a message of an end. One field is set.
type message struct {
	Hello *hello `json:",omitempty"` // both, first
	Run   *order `json:",omitempty"` // client: the next run
	Ready *ready `json:",omitempty"` // server: the client may connect to it
	Go    bool   `json:",omitempty"` // server: it is connected and has begun the run
	Done  *done  `json:",omitempty"` // server: the run is over
	Error string `json:",omitempty"` // server: why it cannot continue
}

type hello struct {
	Session uint64 `json:",omitempty"` // server: for the private data of the data connections
	End     End
}

type order struct {
	Spec  Spec
	Seed  uint64 // of the client's pattern; the server's seed is its complement
	New   bool   // the run needs new connections
	Table table
}

type ready struct{ Table table }

type done struct {
	Ops   uint64 // by the server, if the run is bidirectional
	Usage Usage  // of the whole run, because a target of Writes cannot count messages
}

// table gives the address of the list of an end's regions, which the peer reads.
type table struct {
	Addr uint64
	Len  uint64
	RKey uint32
}

const (
	controlSize  = 4096 // maximum length of a message in bytes
	controlDepth = 4
)

// settle is how long the client waits before its first message. From siw's reply to the connection
// request until its accept call returns, siw does not read what arrives.
const settle = 100 * time.Millisecond

// Private data of a connection request: its kind, and for data connections the session and the
// number of the QP.
const (
	controlHello = "govs-perf/1 control"
	dataHello    = "govs-perf/1 data"
	busyText     = "busy with another client"
)

func dataPrivate(session uint64, lane int) []byte {
	b := binary.BigEndian.AppendUint64([]byte(dataHello), session)
	return binary.BigEndian.AppendUint32(b, uint32(lane))
}

func parseDataPrivate(b []byte) (session uint64, lane int, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(dataHello))
	if !ok || len(rest) != 12 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(rest), int(binary.BigEndian.Uint32(rest[8:])), true
}

// control is the connection for messages between the ends.
type control struct {
	conn *rdmacm.Conn
	recv *ibverbs.MR // controlDepth slots
	send *ibverbs.MR
	next int // slot of the next message
}

// config returns a configuration with which a connection over pd receives messages from the start.
func (c *control) config(pd *ibverbs.PD, private string) (*rdmacm.ConnConfig, error) {
	var err error
	if c.recv, err = pd.AllocMR(controlDepth*controlSize, ibverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if c.send, err = pd.AllocMR(controlSize, ibverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	return &rdmacm.ConnConfig{
		PD:          pd,
		PrivateData: []byte(private),
		Prepare: func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			for slot := range controlDepth {
				if err := c.post(conn.QP(), slot); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

func (c *control) post(qp *ibverbs.QP, slot int) error {
	sge, err := c.recv.SGE(slot*controlSize, controlSize)
	if err != nil {
		return err
	}
	return qp.PostRecv(ibverbs.RecvWR{WRID: uint64(slot), SGList: []ibverbs.SGE{sge}})
}

func (c *control) close() error {
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	for _, mr := range []*ibverbs.MR{c.recv, c.send} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

// tell sends a message to the other end.
func (c *control) tell(ctx context.Context, m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > controlSize {
		return fmt.Errorf("a message of %d bytes, and the peer takes at most %d",
			len(text), controlSize)
	}
	sge, err := c.send.SGE(0, copy(c.send.Bytes(), text))
	if err != nil {
		return err
	}
	return c.do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}})
}

// do posts one work request and waits for its completion.
func (c *control) do(ctx context.Context, wr ibverbs.SendWR) error {
	wr.Flags |= ibverbs.SendSignaled
	if err := c.conn.QP().PostSend(wr); err != nil {
		return because(c.conn.QP(), err)
	}
	var wc [1]ibverbs.WC
	if _, err := c.conn.SendCQ().PollWait(ctx, wc[:]); err != nil {
		return err
	}
	return because(c.conn.QP(), wc[0].Err())
}

// errLeft reports that the peer has ended the connection in order.
var errLeft = errors.New("the peer has left")

// hear waits for a message. It returns an Error in the message as its error.
func (c *control) hear(ctx context.Context) (message, error) {
	var m message
	var wc [1]ibverbs.WC
	if _, err := c.conn.RecvCQ().PollWait(ctx, wc[:]); err != nil {
		return m, err
	}
	if err := because(c.conn.QP(), wc[0].Err()); err != nil {
		return m, err
	}
	slot := c.next
	c.next = (c.next + 1) % controlDepth
	text := c.recv.Bytes()[slot*controlSize:][:wc[0].ByteLen]
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, fmt.Errorf("the peer's message: %w", err)
	}
	if err := c.post(c.conn.QP(), slot); err != nil {
		return m, err
	}
	if m.Error != "" {
		return m, fmt.Errorf("the server: %s", m.Error)
	}
	return m, nil
}

// because adds the reason for the connection's end to an error, if the provider knows it. For an
// orderly end it returns errLeft.
func because(qp *ibverbs.QP, err error) error {
	if err == nil {
		return nil
	}
	cause := qp.Cause()
	switch {
	case errors.Is(err, ibverbs.ErrFlushed) && (cause == nil || errors.Is(cause, io.EOF)):
		return fmt.Errorf("%w: %w", errLeft, err)
	case errors.Is(err, ibverbs.ErrFlushed):
		return fmt.Errorf("the connection has ended: %w: %w", cause, err)
	case cause != nil:
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// readTable reads the peer's list of regions.
func (c *control) readTable(ctx context.Context, pd *ibverbs.PD, t table, regions int, octets uint64) (_ []ibverbs.RemoteRegion, err error) {
	if t.Len != uint64(regions*ibverbs.RemoteRegionSize) {
		return nil, fmt.Errorf("the peer lists its regions in %d bytes; a list of %d has %d",
			t.Len, regions,
			regions*ibverbs.RemoteRegionSize)
	}
	// On iWARP the sink of a Read has to be writable for the peer.
	mr, err := pd.AllocMR(int(t.Len), ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()
	sge, err := mr.SGE(0, int(t.Len))
	if err != nil {
		return nil, err
	}
	wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: t.Addr, RKey: t.RKey}
	if err := c.do(ctx, wr); err != nil {
		return nil, fmt.Errorf("reading the peer's list of regions: %w", err)
	}
	list := make([]ibverbs.RemoteRegion, regions)
	for i := range list {
		if err := list[i].UnmarshalBinary(mr.Bytes()[i*ibverbs.RemoteRegionSize:][:ibverbs.RemoteRegionSize]); err != nil {
			return nil, err
		}
		if list[i].Len != octets {
			return nil, fmt.Errorf("a region of the peer has %d bytes, want %d", list[i].Len, octets)
		}
	}
	return list, nil
}
