package rdmacm

import "fmt"

// String returns the connection's addresses and the state of its QP, for log lines: "10.0.0.1:40000
// -> 10.0.0.2:7471, qp 17 (IBV_QPS_RTS, up to 64 sends, 64 receives)". If the connection has ended
// and the cause is known, the text includes it. String may be called at any time.
func (c *Conn) String() string {
	if c == nil || c.id == nil {
		return "nil connection"
	}
	s := fmt.Sprintf("%s -> %s, %s", c.LocalAddr(), c.RemoteAddr(), c.qp)
	if cause := c.qp.Cause(); cause != nil {
		s += ": " + cause.Error()
	}
	return s
}

// String returns the event's type and peer: "RDMA_CM_EVENT_ESTABLISHED 10.0.0.2:7471". For a
// failure it adds the error.
func (e *Event) String() string {
	if e == nil {
		return "nil event"
	}
	s := e.Type.String()
	if e.ID != nil {
		s += " " + e.ID.peer()
	}
	if err := e.Err(); err != nil {
		s += ": " + err.Error()
	}
	return s
}

// String returns the address of a listener, or both addresses of a connection: "cm id of siw0:
// 10.0.0.1:40000 -> 10.0.0.2:7471".
func (id *ID) String() string {
	switch {
	case id == nil || id.p == nil:
		return "nil cm id"
	case id.obj.Closed():
		return id.obj.Name() + " (closed)"
	}
	return id.state()
}
