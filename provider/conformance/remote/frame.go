package remote

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
)

// kind is the type of a message.
type kind uint8

const (
	kindRequest kind = 1 + iota // head is a request, body changes of memory
	kindAnswer                  // head is an answer, body changes of memory or the result
	kindCancel                  // asks the agent to cancel the request with the number
	kindBeat                    // empty: shows that the sender is alive
	kindBye                     // head is the reason for which the sender ends the connection
	kinds
)

// A message is what the two ends exchange once both have proved that they know the secret.
type message struct {
	kind   kind
	number uint64 // of a request
	head   []byte // JSON
	body   []byte
}

// Limits of a message.
const (
	maxHead = 4 << 20
	maxBody = 64 << 20

	frameHeader = 1 + 8 + 4 + 4 // kind, number, lengths of head and body
	macLen      = 16
)

var errFrame = errors.New("malformed message on the control connection")

// parseHeader decodes the start of a message.
func parseHeader(b []byte) (m message, head, body int, err error) {
	m.kind, m.number = kind(b[0]), binary.BigEndian.Uint64(b[1:])
	h, n := binary.BigEndian.Uint32(b[9:]), binary.BigEndian.Uint32(b[13:])
	if m.kind == 0 || m.kind >= kinds || h > maxHead || n > maxBody {
		return m, 0, 0, fmt.Errorf("%w: kind %d, %d and %d bytes", errFrame, m.kind, h, n)
	}
	return m, int(h), int(n), nil
}

func (m *message) header() (b [frameHeader]byte) {
	b[0] = byte(m.kind)
	binary.BigEndian.PutUint64(b[1:], m.number)
	binary.BigEndian.PutUint32(b[9:], uint32(len(m.head)))
	binary.BigEndian.PutUint32(b[13:], uint32(len(m.body)))
	return b
}

// authenticator computes the authentication codes of one direction's messages, which are numbered.
type authenticator struct {
	mac  hash.Hash
	next uint64
}

func newAuthenticator(key []byte) *authenticator {
	return &authenticator{mac: hmac.New(sha256.New, key)}
}

func (a *authenticator) code(parts ...[]byte) []byte {
	a.mac.Reset()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], a.next)
	a.next++
	a.mac.Write(n[:])
	for _, p := range parts {
		a.mac.Write(p)
	}
	return a.mac.Sum(nil)[:macLen]
}

// readMessage reads a message. It calls renew before each piece of pieceOctets bytes, which have to
// arrive within the patience. The message's buffer has the length that the header announces. A
// buffer that grows with what arrives would take up to three times that, because each growth copies
// it.
func readMessage(r *bufio.Reader, a *authenticator, renew func()) (message, error) {
	renew()
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return message{}, err
	}
	m, head, body, err := parseHeader(h[:])
	if err != nil {
		return message{}, err
	}
	all := make([]byte, head+body+macLen)
	for rest := all; len(rest) > 0; {
		renew()
		n, err := io.ReadFull(r, rest[:min(len(rest), pieceOctets)])
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return message{}, err
		}
		rest = rest[n:]
	}
	m.head, m.body = all[:head:head], all[head:head+body:head+body]
	if !hmac.Equal(a.code(h[:], m.head, m.body), all[head+body:]) {
		return message{}, fmt.Errorf("%w: its code of authentication is wrong", errFrame)
	}
	return m, nil
}

// writeMessage writes one message.
func writeMessage(w *bufio.Writer, a *authenticator, m *message) error {
	if len(m.head) > maxHead || len(m.body) > maxBody {
		return fmt.Errorf("a message of %d and %d bytes is too long for the control connection",
			len(m.head), len(m.body))
	}
	h := m.header()
	for _, part := range [][]byte{h[:], m.head, m.body, a.code(h[:], m.head, m.body)} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return w.Flush()
}
