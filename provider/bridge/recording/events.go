package recording

import (
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// Events of rdma_cm (RDMA_CM_EVENT_*).
const (
	connectRequest = 4 // brings a new id, and belongs to the listening id
	disconnected   = 10
)

// cmEvents is what countEvents finds out about an entry of rdma_cm.
type cmEvents struct {
	left  bool // leave it out of the comparison
	given int  // of DESTROY_ID: how many events of the id the program has received
	its   bool // of an event: its uid is the program's value for the id
}

// cmID is an id, from its creation on.
type cmID struct {
	uid   uint64
	given int // events received
}

// cmIDs counts the events of ids.
type cmIDs struct {
	byID  map[uint32]*cmID
	byUID map[uint64]*cmID
}

// countEvents returns the cmEvents of entries, by their index.
func (r *Recording) countEvents() map[int]cmEvents {
	ids := cmIDs{map[uint32]*cmID{}, map[uint64]*cmID{}}
	known := map[int]cmEvents{}
	destroyed, uids := map[int]*cmID{}, map[int]*cmID{}
	events := map[int]uint64{} // their uids
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
				if id := ids.byID[v.ID]; id != nil {
					id.uid, ids.byUID[v.UID] = v.UID, id
				}
			case *abi.DestroyID:
				destroyed[i] = ids.byID[v.ID]
			case *abi.EventResp:
				ids.count(v)
				if v.Event != connectRequest {
					uids[i], events[i] = ids.byID[v.ID], v.UID
				}
				known[i] = cmEvents{left: v.Event == disconnected}
			}
		}
	}
	// Another thread may receive an event at the same time, so it may be recorded after DESTROY_ID.
	for i, id := range destroyed {
		if id != nil {
			known[i] = cmEvents{given: id.given}
		}
	}
	// In the same way, an event that follows ACCEPT and has its uid may be recorded before it.
	for i, id := range uids {
		k := known[i]
		k.its = id != nil && events[i] != 0 && events[i] == id.uid
		known[i] = k
	}
	return known
}

func (ids *cmIDs) add(id uint32, uid uint64) {
	x := &cmID{uid: uid}
	ids.byID[id], ids.byUID[uid] = x, x
}

func (ids *cmIDs) count(v *abi.EventResp) {
	id := ids.byID[v.ID]
	if v.Event == connectRequest {
		id = ids.byUID[v.UID]
		ids.byID[v.ID] = &cmID{}
	}
	if id != nil {
		id.given++
	}
}

// use replaces the number that DESTROY_ID reports by "all" if the program has received that many
// events. It replaces an event's uid by "its" if the uid is the id's.
func (s *rawStep) use(events cmEvents) {
	for i, f := range s.fields {
		switch {
		case f.name == "answer.events_reported" && s.name == "rdma_cm.destroy_id" &&
			f.parts[0] == number(events.given):
			s.fields[i].parts = []any{"all"}
		case f.name == "answer.uid" && events.its:
			s.fields[i].parts = []any{"its"}
		}
	}
}
