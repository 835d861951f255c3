package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
)

// maxMessage is the length in bytes of the longest request or answer, and of every
// receive.
const maxMessage = 1024

// request is a call: an id that the client chose (8 bytes), how long the client will wait in
// microseconds (8), the length of the method's name (1), the name, and the payload. The wait
// is a duration and not a deadline, because the clocks of two machines differ.
type request struct {
	id      uint64
	timeout time.Duration
	method  string
	payload []byte
}

const requestHead = 8 + 8 + 1

func (r request) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, r.id)
	b = binary.BigEndian.AppendUint64(b, uint64(r.timeout.Microseconds()))
	b = append(b, byte(len(r.method)))
	b = append(b, r.method...)
	return append(b, r.payload...)
}

func parseRequest(b []byte) (request, error) {
	if len(b) < requestHead || len(b) < requestHead+int(b[requestHead-1]) {
		return request{}, errors.New("a request that is cut short")
	}
	name, payload := b[requestHead:][:b[requestHead-1]], b[requestHead+int(b[requestHead-1]):]
	micros := min(binary.BigEndian.Uint64(b[8:]), uint64(maxTimeout/time.Microsecond))
	return request{
		id:      binary.BigEndian.Uint64(b),
		timeout: time.Duration(micros) * time.Microsecond,
		method:  string(name), payload: payload,
	}, nil
}

// maxTimeout is how long a method may take, whatever the client says.
const maxTimeout = time.Minute

// answer is the id of the request (8 bytes), whether it is an error (1), and the payload,
// or the error's text.
type answer struct {
	id      uint64
	failed  bool
	payload []byte
}

const answerHead = 8 + 1

func (a answer) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, a.id)
	if a.failed {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return append(b, a.payload...)
}

func parseAnswer(b []byte) (answer, error) {
	if len(b) < answerHead {
		return answer{}, errors.New("an answer that is cut short")
	}
	return answer{binary.BigEndian.Uint64(b), b[8] != 0, b[answerHead:]}, nil
}

// remoteError is the error that a method returned.
type remoteError string

func (e remoteError) Error() string { return "the server: " + string(e) }

// buffers is a region of messages, each of maxMessage bytes.
type buffers struct{ mr *ibverbs.MR }

func newBuffers(pd *ibverbs.PD, n int) (buffers, error) {
	mr, err := pd.AllocMR(n*maxMessage, ibverbs.AccessLocalWrite)
	return buffers{mr}, err
}

// at returns buffer i.
func (b buffers) at(i int) []byte { return b.mr.Bytes()[i*maxMessage:][:maxMessage] }

// sge names n bytes of buffer i.
func (b buffers) sge(i, n int) (ibverbs.SGE, error) { return b.mr.SGE(i*maxMessage, n) }

// newCQ makes a CQ with a channel to wait on.
func newCQ(vctx *ibverbs.Context, n int) (*ibverbs.CQ, error) {
	channel, err := vctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := vctx.CreateCQ(n, &ibverbs.CQOptions{Channel: channel})
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	return cq, nil
}

// closeCQ undoes newCQ.
func closeCQ(cq *ibverbs.CQ) error { return errors.Join(cq.Close(), cq.Channel().Close()) }

func tooLong(what string, n, limit int) error {
	return fmt.Errorf("the %s has %d bytes, there is room for %d", what, n, limit)
}
