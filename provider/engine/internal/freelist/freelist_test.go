package freelist

import (
	"testing"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

type object struct{ used bool }

// TestList: a returned object is lent again, no object is lent twice, and few are kept. An object
// in use is not taken back.
func TestList(t *testing.T) {
	l := &List[object]{
		New:  func() *object { return new(object) },
		Idle: func(o *object) bool { return !o.used },
	}
	lent := map[*object]bool{}
	for range 3 * policy.Kept {
		o := l.Get()
		if lent[o] {
			t.Fatal("an object is lent twice")
		}
		lent[o] = true
	}
	if l.Lent() != len(lent) || l.Made() != len(lent) || len(l.All()) != 0 {
		t.Errorf("of %d lent objects %d are counted, %d are made, %d are in the list", len(lent),
			l.Lent(), l.Made(), len(l.All()))
	}
	for o := range lent {
		l.Put(o)
	}
	if l.Lent() != 0 || l.Made() != policy.Kept+1 || len(l.All()) != policy.Kept+1 {
		t.Errorf("%d are lent, %d are made, %d are in the list, want 0 and twice %d", l.Lent(),
			l.Made(), len(l.All()), policy.Kept+1)
	}
	var o *object
	for range policy.Kept + 1 {
		if o = l.Get(); !lent[o] {
			t.Fatal("an object was made although there are some")
		}
	}
	o.used = true
	defer func() {
		if recover() == nil || l.Lent() != policy.Kept+1 {
			t.Error("an object in use was taken back")
		}
	}()
	l.Put(o)
}
