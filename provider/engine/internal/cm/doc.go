// Package cm is the connection manager of the engine: ids, their events, and MPA's start-up (RFC
// 5044 section 7, RFC 6581) over byte streams. It makes connections and hands each to its QP. It
// knows neither queue pairs nor streams; package engine gives it both as interfaces.
//
//	          program: rdma_cm calls, events
//	             |                     ^
//	            ID  -->  EventChannel -+
//	             |  listens            |  connects
//	         listening                 |
//	arrival, one a connection          |
//	             |  Request            |  Request, Reply
//	             +------> wire <-------+
//	                        |  a Conn, after the Reply
//	                    QP.Begin --> Stream
//
// A device has one [Manager], with the device as its [Host]. An [ID] is an rdma_cm_id. It moves
// through the states of idState, and has a goroutine only while its connection is in the start-up
// or waits for the program's answer. A listener has one goroutine that accepts, and one for each
// connection that has not sent its Request (listening.go, arrivals.go). CONNECT_REQUESTs of one
// peer come in the order of its connections.
//
// # Ends
//
// Until QP.Begin succeeds, the connection is the id's. After that it is the Stream's, and the id
// only asks the Stream to end. The function that the id gives QP.Begin raises DISCONNECTED. A
// connection that ends in the start-up with something left to send goes to Host.CloseAfter, which
// needs no goroutine.
//
// # Bounds
//
// Config.MaxPending and MaxPendingPerPeer bound what a listener holds for peers that have not been
// accepted, MaxAccepted and MaxAcceptedPerPeer the connections that came to the listeners of the
// Manager (admission.go).
//
// # Locks
//
// The locks are ID, Wire, EventChannel, Listening and Admission, in the order of package locks. A
// listener's ID comes before the IDs of its requests. ID is held during calls of Host.CreateQP,
// Host.QP, Host.Failed, QP.Closed and QP.CheckConnectable. No lock is held during Host.Step,
// Host.CloseAfter, QP.Begin and the methods of a Stream.
package cm
