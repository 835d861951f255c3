package rdmap

import (
	"math"
	"sync"
	"testing"
)

//rfc:5040 RDMAP-5.2.2-02 Source keeps enough QN1 buffers for negotiated IRD
//rfc:5040 RDMAP-6.1-02 Inbound read limit (IRD) provided as negotiated
//rfc:5040 RDMAP-6.1-03 Outbound read limit (ORD) provided as negotiated
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
func TestReadQueuesAreBounded(t *testing.T) {
	for _, tt := range []struct{ asked, depth int }{{-1, 0}, {0, 0}, {1, 1}, {3, 3}, {4, 4}, {128, 128}, {0x3fff, 0x3ffe}, {math.MaxInt, 0x3ffe}} {
		in, out := NewInboundReads(tt.asked), NewOutstandingReads(tt.asked)
		if in.Depth() != tt.depth || out.Depth() != tt.depth {
			t.Fatalf("depth %d and %d for %d asked, want %d", in.Depth(), out.Depth(), tt.asked, tt.depth)
		}
		for i := range tt.depth {
			if !in.Push(InboundRead{MSN: uint32(i)}) || !out.Push(OutstandingRead{Cookie: uint64(i)}) {
				t.Fatalf("no place for the %d. of %d", i+1, tt.depth)
			}
		}
		if in.Push(InboundRead{}) || out.Push(OutstandingRead{}) {
			t.Errorf("a place too many in %d", tt.depth)
		}
		if !in.Full() || !out.Full() || in.Len() != tt.depth || out.Len() != tt.depth {
			t.Errorf("full %v %v, length %d %d; want full at %d", in.Full(), out.Full(), in.Len(), out.Len(), tt.depth)
		}
	}
}

//rfc:5040 RDMAP-5.2.1-05 ReadReqs processed in order
func TestReadQueuesKeepOrder(t *testing.T) {
	in, out := NewInboundReads(3), NewOutstandingReads(3)
	// The indexes may start anywhere, and pass 2^32.
	for _, i := range []*struct {
		head, tail interface{ Store(uint32) }
	}{{&in.ring.head, &in.ring.tail}, {&out.ring.head, &out.ring.tail}} {
		i.head.Store(math.MaxUint32 - 2)
		i.tail.Store(math.MaxUint32 - 2)
	}
	var pushed, popped uint32
	for round := range 20 {
		for range 1 + round%3 {
			if in.Push(InboundRead{MSN: pushed}) != out.Push(OutstandingRead{Cookie: uint64(pushed)}) {
				t.Fatal("queues of equal depth disagree")
			}
			pushed++
		}
		for in.Front() != nil {
			if in.Front().MSN != popped || out.Front().Cookie != uint64(popped) {
				t.Fatalf("front is %d and %d, want %d", in.Front().MSN, out.Front().Cookie, popped)
			}
			in.Front().Done = 1 // changed by the responder, and removed with the element
			if !in.Pop() || !out.Pop() {
				t.Fatal("Pop of a queue with a front")
			}
			popped++
		}
		if in.Pop() || out.Pop() || out.Front() != nil || in.Len() != 0 || out.Len() != 0 {
			t.Fatal("an empty queue has something")
		}
	}
	if pushed != popped || pushed < 30 {
		t.Errorf("%d pushed, %d popped", pushed, popped)
	}
}

// A popped place keeps none of its contents.
func TestPopClears(t *testing.T) {
	in := NewInboundReads(1)
	in.Push(InboundRead{MSN: 9, Done: 9})
	in.Pop()
	if in.ring.slots[0] != (InboundRead{}) {
		t.Errorf("the place holds %+v", in.ring.slots[0])
	}
}

// One goroutine pushes and another pops without a lock; run with -race.
func TestReadQueuesBetweenGoroutines(t *testing.T) {
	const total = 20000
	in := NewInboundReads(4)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint32(0); i < total; {
			if in.Push(InboundRead{MSN: i, ReadRequest: ReadRequest{Size: i}}) {
				i++
			}
		}
	})
	wg.Go(func() {
		for i := uint32(0); i < total; {
			r := in.Front()
			if r == nil {
				continue
			}
			if r.MSN != i || r.Size != i {
				t.Errorf("request %d is %+v", i, r)
				return
			}
			r.Done = 1
			in.Pop()
			i++
		}
	})
	for range 1000 {
		if n := in.Len(); n < 0 || n > in.Depth() {
			t.Errorf("an onlooker sees %d of %d", n, in.Depth())
		}
	}
	wg.Wait()
}

func TestReadQueuesAllocateNothing(t *testing.T) {
	in, out := NewInboundReads(4), NewOutstandingReads(4)
	n := testing.AllocsPerRun(100, func() {
		in.Push(InboundRead{MSN: 1})
		out.Push(OutstandingRead{Cookie: 1})
		in.Front().Done++
		_ = out.Front().Size
		in.Pop()
		out.Pop()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
