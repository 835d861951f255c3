package provider

// AsyncEvent reports something that happened to an object outside of any call (struct
// ibv_async_event). Exactly one of the fields beside Type names the object.
type AsyncEvent struct {
	Type AsyncEventType
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port uint8
}
