package remote

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// Version is the version of the control connection's protocol. Both ends must use the same version.
const Version = 2

// The start of a connection: each end sends its hello, then the client sends its proof, and then
// the agent sends its own proof with a verdict. Neither end trusts the other before that.
const (
	magic     = "govsagnt"
	nonceLen  = 32
	proofLen  = sha256.Size
	maxBuild  = 255
	maxReason = 1024

	// handshakeLimit limits the duration of the start.
	handshakeLimit = 5 * time.Second
)

// MinSecret is the minimum length of a secret, in bytes.
const MinSecret = 16

// ErrSecret means that the two ends have different secrets.
var ErrSecret = errors.New("the two ends have different secrets")

// ErrBusy means that the agent serves another run.
var ErrBusy = errors.New("the agent is busy")

// ErrVersion means that the two ends use different versions of the protocol.
var ErrVersion = errors.New("the two ends speak different versions of the control protocol")

// ErrWeakSecret means that a secret is missing or too short.
var ErrWeakSecret = fmt.Errorf("a secret of at least %d bytes is needed", MinSecret)

// CheckSecret returns [ErrWeakSecret] if a secret is not sufficient for an agent at addr. It must
// have [MinSecret] bytes; only on a loopback address may it be empty.
func CheckSecret(secret []byte, addr netip.Addr) error {
	switch {
	case len(secret) == 0 && addr.Unmap().IsLoopback():
		return nil
	case len(secret) == 0:
		return fmt.Errorf("%v is not a loopback address, so that %w", addr, ErrWeakSecret)
	case len(secret) < MinSecret:
		return fmt.Errorf("%d bytes can be guessed: %w", len(secret), ErrWeakSecret)
	}
	return nil
}

// hello is the first message of either end.
type hello struct {
	version uint16
	build   string
	nonce   [nonceLen]byte
}

func newHello(build string) (h hello) {
	h.version, h.build = Version, build[:min(len(build), maxBuild)]
	_, _ = rand.Read(h.nonce[:]) // never fails
	return h
}

func (h *hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, h.version)
	b = append(b, byte(len(h.build)))
	b = append(b, h.build...)
	return append(b, h.nonce[:]...)
}

// readHello reads a hello. If the version is another one, it stops, because it does not know what
// follows.
func readHello(r io.Reader) (h hello, err error) {
	var start [len(magic) + 3]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return h, err
	}
	if string(start[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: it does not begin as one", errFrame)
	}
	h.version = binary.BigEndian.Uint16(start[len(magic):])
	build := make([]byte, start[len(start)-1])
	if _, err := io.ReadFull(r, build); err != nil {
		return h, err
	}
	h.build = string(build)
	if h.version != Version {
		return h, fmt.Errorf("%w: %d (build %q) there, %d here; use the same release on both hosts",
			ErrVersion, h.version, h.build, Version)
	}
	_, err = io.ReadFull(r, h.nonce[:])
	return h, err
}

// keys holds the keys that both ends derive from the secret and the two hellos.
type keys struct {
	clientProof, agentProof [proofLen]byte
	toAgent, toClient       []byte
}

func derive(secret []byte, client, agent *hello) (k keys) {
	both := agent.append(client.append(nil))
	of := func(label string) []byte {
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(label))
		m.Write(both)
		return m.Sum(nil)
	}
	copy(k.clientProof[:], of("govs agent: the client's proof"))
	copy(k.agentProof[:], of("govs agent: the agent's proof"))
	k.toAgent, k.toClient = of("govs agent: messages to the agent"),
		of("govs agent: messages to the client")
	return k
}

// verdict is the agent's decision about a client.
type verdict uint8

const (
	welcome verdict = iota
	wrongSecret
	busy
)

// greet does the client's part of the start.
func greet(c net.Conn, secret []byte, build string) (keys, hello, error) {
	_ = c.SetDeadline(time.Now().Add(handshakeLimit))
	mine := newHello(build)
	if _, err := c.Write(mine.append(nil)); err != nil {
		return keys{}, hello{}, err
	}
	theirs, err := readHello(c)
	if err != nil {
		return keys{}, hello{}, err
	}
	k := derive(secret, &mine, &theirs)
	if _, err := c.Write(k.clientProof[:]); err != nil {
		return keys{}, hello{}, err
	}
	var answer [proofLen + 3]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return keys{}, hello{}, err
	}
	if verdict(answer[proofLen]) == wrongSecret {
		return keys{}, hello{}, fmt.Errorf("%w: the agent refuses this end's", ErrSecret)
	}
	if !hmac.Equal(answer[:proofLen], k.agentProof[:]) {
		return keys{}, hello{}, fmt.Errorf("%w: what listens there does not know this end's",
			ErrSecret)
	}
	n := binary.BigEndian.Uint16(answer[proofLen+1:])
	if n > maxReason {
		return keys{}, hello{}, errFrame
	}
	reason := make([]byte, n)
	if _, err := io.ReadFull(c, reason); err != nil {
		return keys{}, hello{}, err
	}
	switch verdict(answer[proofLen]) {
	case welcome:
	case busy:
		return keys{}, hello{}, fmt.Errorf("%w: %s", ErrBusy, printable(reason))
	default:
		return keys{}, hello{}, errFrame
	}
	_ = c.SetDeadline(time.Time{})
	return k, theirs, nil
}

// receive does the agent's part of the start, on a connection with a deadline, which it removes at
// the end. It calls admit once the client has proved that it knows the secret; admit returns why
// the agent refuses the client, or "" if it does not.
func receive(c net.Conn, secret []byte, build string, admit func() (refusal string)) (keys, error) {
	mine := newHello(build)
	theirs, err := readHello(c)
	if err != nil && !errors.Is(err, ErrVersion) {
		return keys{}, err
	}
	if _, werr := c.Write(mine.append(nil)); werr != nil || err != nil {
		return keys{}, errors.Join(err, werr)
	}
	k := derive(secret, &theirs, &mine)
	var proof [proofLen]byte
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return keys{}, err
	}
	if !hmac.Equal(proof[:], k.clientProof[:]) {
		refusal := [proofLen + 3]byte{proofLen: byte(wrongSecret)}
		_, _ = c.Write(refusal[:])
		return keys{}, ErrSecret
	}
	answer, v := k.agentProof[:], welcome
	refusal := admit()
	if refusal != "" {
		v, refusal = busy, refusal[:min(len(refusal), maxReason)]
	}
	answer = append(answer, byte(v))
	answer = binary.BigEndian.AppendUint16(answer, uint16(len(refusal)))
	if _, err := c.Write(append(answer, refusal...)); err != nil {
		return keys{}, err
	}
	if v == busy {
		return keys{}, ErrBusy
	}
	_ = c.SetDeadline(time.Time{})
	return k, nil
}
