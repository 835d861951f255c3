package engine

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestLimitsOfObjects: of each kind of object there are as many as the device
// says, and not one more. The counts are lowered, so that they can be reached:
// the limits that Query returns are those that are enforced.
func TestLimitsOfObjects(t *testing.T) {
	d := unwired(t)
	full := testkit.Must(d.Query())(t)
	for name, got := range map[string][2]int{
		"MaxQP": {full.MaxQP, maxQP}, "MaxCQ": {full.MaxCQ, maxCQ}, "MaxMR": {full.MaxMR, maxMR}, "MaxPD": {full.MaxPD, maxPD},
		"MaxSRQ": {full.MaxSRQ, maxSRQ},
		"MaxCQE": {full.MaxCQE, maxCQE}, "NumCompVectors": {full.NumCompVectors, 1},
		"MaxResRdAtom": {full.MaxResRdAtom, maxRdAtom * maxQP},
	} {
		testkit.Equal(t, name, got[0], got[1])
	}
	d.qps.Max, d.cqs.Max, d.memory.MRs.Max, d.pds.Max, d.srqs.Max = 3, 4, 5, 6, 7
	a := testkit.Must(d.Query())(t)
	p, c := testPD(t, d), testCQ(t, d, 8, nil)
	for _, l := range []struct {
		name     string
		max, had int
		make     func() (io.Closer, error)
	}{
		{"PDs", a.MaxPD, 1, func() (io.Closer, error) { return d.AllocPD() }},
		{"CQs", a.MaxCQ, 1, func() (io.Closer, error) { return d.CreateCQ(provider.CQInitAttr{CQE: 1}) }},
		{"MRs", a.MaxMR, 0, func() (io.Closer, error) { return p.RegMR(make([]byte, 8), 0) }},
		{"SRQs", a.MaxSRQ, 0, func() (io.Closer, error) {
			return p.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 1}})
		}},
		{"QPs", a.MaxQP, 0, func() (io.Closer, error) {
			return p.CreateQP(provider.QPInitAttr{SendCQ: c, RecvCQ: c, Cap: provider.QPCap{MaxSendWR: 1}})
		}},
	} {
		t.Run(l.name, func(t *testing.T) {
			var made []io.Closer
			for range l.max - l.had {
				made = append(made, testkit.Must(l.make())(t))
			}
			wantErr(t, errOf(l.make()), syscall.ENOMEM)
			testkit.OK(t, made[0].Close())
			testkit.OK(t, made[0].Close())
			made[0] = testkit.Must(l.make())(t) // a place that is given back can be used, once
			wantErr(t, errOf(l.make()), syscall.ENOMEM)
			for _, m := range made {
				testkit.OK(t, m.Close())
			}
		})
	}
}

// TestLimitsOfQueues: a QP may have what the device says, really has it, and can't have more.
// TestCreateCQArguments and TestCreateSRQArguments have the others.
func TestLimitsOfQueues(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil), MaxIRD: 8, MaxORD: 4}, sideOptions{})
	a := testkit.Must(s.dev.Query())(t)
	most := provider.QPCap{MaxSendWR: a.MaxQPWR, MaxRecvWR: a.MaxQPWR, MaxSendSGE: a.MaxSGE, MaxRecvSGE: a.MaxSGE, MaxInlineData: a.MaxInline}
	create := func(k provider.QPCap) (provider.QP, error) {
		return s.pd.CreateQP(provider.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: k})
	}
	for name, beyond := range map[string]func(*provider.QPCap){
		"MaxQPWR, sending":   func(k *provider.QPCap) { k.MaxSendWR++ },
		"MaxQPWR, receiving": func(k *provider.QPCap) { k.MaxRecvWR++ },
		"MaxSGE, sending":    func(k *provider.QPCap) { k.MaxSendSGE++ },
		"MaxSGE, receiving":  func(k *provider.QPCap) { k.MaxRecvSGE++ },
		"MaxInline":          func(k *provider.QPCap) { k.MaxInlineData++ },
	} {
		k := most
		beyond(&k)
		if _, err := create(k); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("one more than %s: %v", name, err)
		}
	}
	q := testkit.Must(create(most))(t)
	defer q.Close()
	attr, _ := testkit.Must2(q.Query())(t)
	testkit.Equal(t, "what is granted", attr.Cap, most)
	recvs := make([]provider.RecvWR, a.MaxQPWR+1)
	recvs[0].SGList = make([]provider.SGE, a.MaxSGE)
	if n, err := q.PostRecv(recvs); n != a.MaxQPWR || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d receives of %d: %v", n, len(recvs), err)
	}
	_, err := create(provider.QPCap{MaxSendWR: 1, MaxSendSGE: a.MaxSGERd + 1})
	if a.MaxSGERd > a.MaxSGE || a.MaxSGERd == a.MaxSGE && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a Read of more than MaxSGERd: %v", err)
	}

	depths := provider.QPAttr{MaxRdAtomic: a.MaxQPInitRdAtom, MaxDestRdAtomic: a.MaxQPRdAtom}
	const both = provider.QPAttrMaxRdAtomic | provider.QPAttrMaxDestRdAtomic
	testkit.OK(t, q.Modify(depths, both))
	depths.MaxRdAtomic++
	wantErr(t, q.Modify(depths, both), syscall.EINVAL)
	depths.MaxRdAtomic--
	depths.MaxDestRdAtomic++
	wantErr(t, q.Modify(depths, both), syscall.EINVAL)
}

// TestLimitsOfMessages: what MaxInline and MaxSGERd promise can be sent.
func TestLimitsOfMessages(t *testing.T) {
	a := testkit.Must(newSide(t, Options{Network: memnet.New(nil)}, sideOptions{}).dev.Query())(t)
	cap := provider.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: a.MaxSGE, MaxRecvSGE: a.MaxSGE, MaxInlineData: a.MaxInline}
	x, y := pair(t, memnet.New(nil), "192.0.2.1:1", Options{}, sideOptions{cap: cap}, params(true))
	sink, src := x.reg(a.MaxSGERd, provider.AccessLocalWrite), y.reg(a.MaxInline, provider.AccessLocalWrite|provider.AccessRemoteRead)
	pattern(src.b, 1)
	read := provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
		RemoteAddr: src.to(0), RKey: src.m.STag()}
	for i := range a.MaxSGERd {
		read.SGList = append(read.SGList, sink.sge(i, 1))
	}
	x.send(read)
	x.wantWC("a Read of MaxSGERd entries", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: uint32(a.MaxSGERd)})
	testkit.Equal(t, "what the Read brought", string(sink.b), string(src.b[:a.MaxSGERd]))
	read.SGList = append(read.SGList, sink.sge(0, 1))
	wantErr(t, errOf(x.qp.PostSend([]provider.SendWR{read})), syscall.EINVAL)

	y.recv(provider.RecvWR{WRID: 9, SGList: []provider.SGE{src.sge(0, a.MaxInline)}})
	long := make([]byte, a.MaxInline+1)
	pattern(long, 2)
	x.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: long[:a.MaxInline]})
	y.wantWC("a Send of MaxInline bytes", provider.WC{WRID: 9, Opcode: provider.WCRecv, ByteLen: uint32(a.MaxInline)})
	testkit.Equal(t, "what the Send brought", string(src.b), string(long[:a.MaxInline]))
	wantErr(t, errOf(x.qp.PostSend([]provider.SendWR{
		{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: long},
	})), syscall.EINVAL)
}

// TestTables: the tables have the lengths that the port's attributes have.
func TestTables(t *testing.T) {
	d := unwired(t)
	port := testkit.Must(d.QueryPort(1))(t)
	table := testkit.Must(d.QueryGIDTable())(t)
	testkit.Equal(t, "GIDs", len(table), port.GIDTblLen)
	for _, e := range table {
		if gid := testkit.Must(d.QueryGID(uint8(e.Port),
			e.Index))(t); gid != e.GID || e.Type != provider.GIDTypeIB || e.Ifindex != 0 {
			t.Errorf("entry %+v, alone % x", e, gid)
		}
	}
	testkit.Equal(t, "P_Keys", port.PkeyTblLen, 0)
	_, err := d.QueryPkey(1, 0)
	wantErr(t, err, errors.ErrUnsupported)
	wantErr(t, err, syscall.ENOENT)
	var why *provider.UnsupportedError
	if !errors.As(err, &why) || why.Feature != "P_Key table" {
		t.Errorf("the reason is %v", why)
	}
	wantErr(t, errOf(d.QueryPkey(2, 0)), syscall.ENOENT)
}

func TestDeviceCapNames(t *testing.T) {
	for c, want := range map[provider.DeviceCap]string{
		0:                              "0",
		provider.DeviceMemWindowType2B: "IBV_DEVICE_MEM_WINDOW_TYPE_2B",
		provider.DeviceCurrQPStateMod | provider.DeviceSysImageGUID | 1<<40: "IBV_DEVICE_CURR_QP_STATE_MOD|IBV_DEVICE_SYS_IMAGE_GUID|0x10000000000",
	} {
		testkit.Equal(t, "the name", c.String(), want)
	}
	testkit.Equal(t, "the names", provider.AtomicGlob.String()+provider.AtomicCap(7).String(),
		"IBV_ATOMIC_GLOBibv_atomic_cap 7")
}
