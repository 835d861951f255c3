package rdmacm

import "fmt"

// String says where the connection leads and how its QP is, for log lines:
// "10.0.0.1:40000 -> 10.0.0.2:7471, qp 17 (IBV_QPS_RTS, up to 64 sends, 64 receives)",
// and why it ended, if it has and that is known. It may be called at any time.
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

// String says what happened and to whom: "RDMA_CM_EVENT_ESTABLISHED 10.0.0.2:7471", and of
// a failure its error.
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

// String says where the id listens, or what it connects:
// "cm id of siw0: 10.0.0.1:40000 -> 10.0.0.2:7471".
func (id *ID) String() string {
	switch {
	case id == nil || id.p == nil:
		return "nil cm id"
	case id.obj.Closed():
		return id.obj.Name() + " (closed)"
	}
	return id.state()
}
