package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

type decodeCmd struct {
	File string `arg:"" help:"Capture file: pcap or pcapng."`
	Port uint16 `help:"Only connections to this TCP port."`
	All  bool   `help:"Also list TCP connections that are not iWARP."`
	JSON bool   `name:"json" help:"Print JSON: a list of connections with their frames."`
}

// decodedConn and decodedFrame are what decode --json prints.
type decodedConn struct {
	Initiator string         `json:"initiator"`
	Responder string         `json:"responder"`
	CRC       bool           `json:"crc"`
	Frames    []decodedFrame `json:"frames"`
}

type decodedFrame struct {
	Seconds   float64 `json:"seconds"` // since the connection began
	Direction string  `json:"direction"`
	Offset    uint64  `json:"offset"` // in the direction's stream, octets
	Length    int     `json:"length"` // octets
	Text      string  `json:"text"`
	Error     string  `json:"error,omitempty"`
}

// Run decodes. It is a failure if there is no iWARP in the file.
func (c *decodeCmd) Run(out *output) error {
	trace, err := wire.ReadFile(c.File, c.Port)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return &environmentError{err}
		}
		return err
	}
	seen := len(trace.Conns)
	if !c.All {
		trace = trace.IWARP()
	}
	if len(trace.Conns) == 0 {
		return fmt.Errorf("%s: no iWARP in %d TCP connections: none begins with an MPA Request", c.File, seen)
	}
	if c.JSON {
		return printJSON(out, decodedConns(trace))
	}
	for _, line := range trace.Ladder() {
		fmt.Fprintln(out, line)
	}
	return nil
}

func decodedConns(trace *wire.Trace) []decodedConn {
	conns := make([]decodedConn, 0, len(trace.Conns))
	for _, conn := range trace.Conns {
		d := decodedConn{Initiator: conn.Initiator.String(), Responder: conn.Responder.String(), CRC: conn.CRC()}
		for i := range conn.Frames {
			f := &conn.Frames[i]
			row := decodedFrame{
				Seconds: f.Time.Sub(conn.Start).Seconds(), Direction: f.Dir.String(), Offset: f.Offset, Length: len(f.Octets), Text: f.String(),
			}
			if f.Err != nil {
				row.Error = f.Err.Error()
			}
			d.Frames = append(d.Frames, row)
		}
		conns = append(conns, d)
	}
	return conns
}
