package provider

// AsyncEvent is something that happened to an object outside any call (struct
// ibv_async_event). Exactly one of the fields beside Type says which object.
type AsyncEvent struct {
	Type AsyncEventType
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port uint8
}
