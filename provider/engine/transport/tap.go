package transport

import (
	"net/netip"
	"time"
)

// TapEvent says what a TapRecord records.
type TapEvent uint8

// Events of a stream.
const (
	TapOpen  TapEvent = iota // the stream is connected
	TapData                  // bytes were sent or received
	TapFIN                   // the end of a direction was sent or received
	TapReset                 // the connection was reset by us (sent) or lost (received)
)

// String returns a short name.
func (e TapEvent) String() string {
	switch e {
	case TapOpen:
		return "open"
	case TapData:
		return "data"
	case TapFIN:
		return "FIN"
	case TapReset:
		return "reset"
	}
	return "unknown"
}

// TapRecord is one event at one end of a stream. A stream whose two ends are in one process gives
// two sets of records, which differ in Conn.
type TapRecord struct {
	// Time is taken before bytes are sent and after they are received, so records sorted by it are
	// in causal order.
	Time time.Time

	Conn   uint64         // number of this end of the stream, unique in the process
	Local  netip.AddrPort // of this end
	Remote netip.AddrPort
	Dialed bool // this end sent the SYN
	Event  TapEvent
	Sent   bool   // from Local to Remote; otherwise received. Of Open: see Dialed
	Data   []byte // with TapData; valid until Tap returns
}

// Tap sees everything that goes through the streams of a Network. Tap is called on the goroutine
// that reads or writes, so concurrently. The sent records of one end come in order, and so do its
// received records.
type Tap interface {
	Tap(TapRecord)
}
