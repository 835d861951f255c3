package remote_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestIntact: bytes that the agent's device writes beside a region, or into a region that has
// ended, are found. Bytes that it writes inside a region are not reported.
func TestIntact(t *testing.T) {
	at := func(b []byte, off int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(&b[0]), off)) }
	for _, c := range []struct {
		name   string
		write  func(b []byte)
		ended  bool
		reason string
	}{
		{"inside", func(b []byte) { b[99] = 7 }, false, ""},
		{"after", func(b []byte) { *at(b, 100) = 7 }, false, "byte 1 after the end of a region of 100 bytes is 0x07"},
		{"before", func(b []byte) { *at(b, -1) = 8 }, false, "byte 1 before the start of a region of 100 bytes is 0x08"},
		{"ended", func(b []byte) { b[3] = 9 }, true, "byte 3 of 100 that were a region was 0x00 when that was deregistered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var region []byte
			p := &scribbler{engine.New(nil), func(b []byte) { region = b }}
			s := dial(t, agent(t, &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return p, nil }}))
			vctx, dev := open(t, s)
			pd := testkit.Must(vctx.AllocPD())(t)
			buf := make([]byte, 100)
			mr := testkit.Must(pd.RegMR(buf, ibverbs.AccessLocalWrite))(t)
			if c.ended {
				testkit.OK(t, mr.Close())
			}
			testkit.OK(t, dev.Pull())
			c.write(region)
			testkit.OK(t, dev.Pull())
			err := dev.Intact()
			switch {
			case c.reason == "" && (err != nil || buf[99] != 7):
				t.Errorf("%v, and the program has %d", err, buf[99])
			case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
				t.Errorf("%v, want %q", err, c.reason)
			}
			testkit.OK(t, mr.Close())
			testkit.OK(t, pd.Close())
			testkit.OK(t, vctx.Close())
		})
	}
}

// late is a provider that writes into a region whenever a CQ is polled.
type late struct {
	*scribbler
	write func()
}

type lateDevice struct {
	provider.Device
	write func()
}

type lateCQ struct {
	provider.CQ
	write func()
}

func (p *late) Open(name string) (provider.Device, error) {
	d, err := p.scribbler.Open(name)
	return &lateDevice{d, p.write}, err
}

func (d *lateDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	q, err := d.Device.CreateCQ(init)
	return &lateCQ{q, d.write}, err
}

func (q *lateCQ) Poll([]provider.WC) (int, error) {
	q.write()
	return 1, nil
}

// TestIntactAfterPoll: a byte that the agent's device writes into a region that has ended is found,
// even if the next call returns a completion. The answer to that call has the device's changes.
func TestIntactAfterPoll(t *testing.T) {
	var region []byte
	p := &late{&scribbler{engine.New(nil), func(b []byte) { region = b }}, func() { region[3] = 9 }}
	s := dial(t, agent(t, &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return p, nil }}))
	_, dev := open(t, s)
	pd := testkit.Must(dev.AllocPD())(t)
	cq := testkit.Must(dev.CreateCQ(provider.CQInitAttr{CQE: 1}))(t)
	mr := testkit.Must(pd.RegMR(make([]byte, 100), provider.AccessLocalWrite))(t)
	testkit.OK(t, mr.Close())
	if n, err := cq.Poll(make([]provider.WC, 1)); n != 1 || err != nil {
		t.Fatalf("Poll: %d, %v", n, err)
	}
	if err := dev.Intact(); err == nil || !strings.Contains(err.Error(), "that were a region") {
		t.Errorf("Intact: %v", err)
	}
}

// TestPlaces: the copy of a buffer has the buffer's offset in a page, and buffers that share memory
// see each other's bytes.
func TestPlaces(t *testing.T) {
	var regions [][]byte
	p := &scribbler{engine.New(nil), func(b []byte) { regions = append(regions, b) }}
	s := dial(t, agent(t, &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return p, nil }}))
	vctx, dev := open(t, s)
	pd := testkit.Must(vctx.AllocPD())(t)
	memory := make([]byte, 20000)
	bufs := [][]byte{memory[4321:9000], memory[5000:6000], memory[8000:10000]}
	var mrs []*ibverbs.MR
	for _, b := range bufs {
		mrs = append(mrs, testkit.Must(pd.RegMR(b, ibverbs.AccessLocalWrite))(t))
	}
	for k, b := range bufs {
		here, there := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&regions[k][0]))
		if here%4096 != there%4096 {
			t.Errorf("region %d: %#x here, %#x there", k, here, there)
		}
	}
	regions[1][10] = 1 // 5010: also of the first, which contains it
	testkit.OK(t, dev.Pull())
	if memory[5010] != 1 || regions[0][5010-4321] != 1 {
		t.Error("what the second region got is not where the first has it")
	}
	regions[2][500] = 2 // 8500: also of the first, which it overlaps
	testkit.OK(t, dev.Pull())
	testkit.OK(t, dev.Push())
	if memory[8500] != 2 || regions[0][8500-4321] != 2 {
		t.Error("what the third region got is not where the first has it")
	}
	for _, mr := range mrs {
		testkit.OK(t, mr.Close())
	}
	testkit.OK(t, pd.Close())
	testkit.OK(t, vctx.Close())
}

// TestMoreThanFits: when a call returns, the program's memory has all of the device's changes, even
// if they need several messages, whatever the call's object is, and even if the call closes it.
func TestMoreThanFits(t *testing.T) {
	var region []byte
	p := &scribbler{engine.New(nil), func(b []byte) { region = b }}
	s := dial(t, agent(t, &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return p, nil }}))
	vctx, _ := open(t, s)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(4, nil))(t)
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 1}}))(t)
	buf := make([]byte, 1<<20)
	mr := testkit.Must(pd.RegMR(buf, ibverbs.AccessLocalWrite))(t)
	for value, call := range []func() error{
		func() error { return qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState) },
		qp.Close,
	} {
		// Each byte between unchanged ones is a record of 18 bytes, so these are 9 MiB of changes.
		for i := 0; i < len(region); i += 2 {
			region[i] = byte(value + 1)
		}
		if err := call(); err != nil || !bytes.Equal(buf, region) {
			t.Errorf("call %d: %v; all changes arrived: %v", value, err, bytes.Equal(buf, region))
		}
	}
	for _, o := range []io.Closer{mr, cq, pd, vctx} {
		testkit.OK(t, o.Close())
	}
}
