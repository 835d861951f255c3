package recording

import (
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// Events of rdma_cm (RDMA_CM_EVENT_*).
const (
	connectRequest = 4 // brings a new id, and is one of the listening id
	disconnected   = 10
)

// cmEvents are what is known of an entry of rdma_cm.
type cmEvents struct {
	left  bool // it is not compared
	given int  // of DESTROY_ID: how many events of the id the program was given
}

// cmIDs counts the events of ids.
type cmIDs struct {
	byID  map[uint32]*int
	byUID map[uint64]*int
}

// countEvents returns what is known of entries about events, by their index.
func (r *Recording) countEvents() map[int]cmEvents {
	ids := cmIDs{map[uint32]*int{}, map[uint64]*int{}}
	known := map[int]cmEvents{}
	destroyed := map[int]*int{}
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.File != CM || e.Op != Write || e.Errno != 0 {
			continue
		}
		_, parts, err := e.Decode()
		if err != nil {
			continue // step reports it
		}
		var uid uint64
		for _, p := range parts {
			switch v := p.Value.(type) {
			case *abi.CreateID:
				uid = v.UID
			case *abi.CreateIDResp:
				ids.add(v.ID, uid)
			case *abi.Accept:
				if n := ids.byID[v.ID]; n != nil {
					ids.byUID[v.UID] = n
				}
			case *abi.DestroyID:
				destroyed[i] = ids.byID[v.ID]
			case *abi.EventResp:
				ids.count(v)
				known[i] = cmEvents{left: v.Event == disconnected}
			}
		}
	}
	// An event that another thread is given at the same time may be recorded after DESTROY_ID.
	for i, n := range destroyed {
		if n != nil {
			known[i] = cmEvents{given: *n}
		}
	}
	return known
}

func (ids *cmIDs) add(id uint32, uid uint64) {
	n := new(int)
	ids.byID[id], ids.byUID[uid] = n, n
}

func (ids *cmIDs) count(v *abi.EventResp) {
	n := ids.byID[v.ID]
	if v.Event == connectRequest {
		n = ids.byUID[v.UID]
		ids.byID[v.ID] = new(int)
	}
	if n != nil {
		*n++
	}
}

// allReported has a DESTROY_ID say all if it reports as many events as the program was given.
func (s *rawStep) allReported(events cmEvents) {
	for i, f := range s.fields {
		if f.name == "answer.events_reported" && f.parts[0] == number(events.given) {
			s.fields[i].parts = []any{"all"}
		}
	}
}
