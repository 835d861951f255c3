//go:build linux

package rdmalink

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"github.com/mdlayher/netlink/nltest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// kernel answers requests as a kernel with these links does. If refuse is not 0, it is the answer
// to commands that change something.
type kernel struct {
	links  map[uint32][]byte // replies to GET
	ports  map[uint32][]byte // replies to PORT_GET; a link without one has been deleted
	refuse syscall.Errno
	asked  []netlink.Message
}

func (k *kernel) answer(requests []netlink.Message) ([]netlink.Message, error) {
	request := requests[0]
	k.asked = append(k.asked, request)
	switch request.Header.Type {
	case cmdGet:
		var replies [][]byte
		for index := range uint32(8) {
			if b, ok := k.links[index]; ok {
				replies = append(replies, b)
			}
		}
		return dump(request.Header, 0, replies...), nil
	case cmdPortGet:
		b, ok := k.ports[uint32(request.Data[4])]
		if !ok {
			return dump(request.Header, syscall.EINVAL), nil
		}
		return dump(request.Header, 0, b), nil
	default:
		return nltest.Error(int(k.refuse), requests)
	}
}

// dump returns the answer to a request with NLM_F_DUMP; its last message holds the overall result.
func dump(request netlink.Header, errno syscall.Errno, replies ...[]byte) []netlink.Message {
	header := request
	header.Type, header.Flags = cmdGet, netlink.Multi // the type is GET for ports too
	var messages []netlink.Message
	for _, b := range replies {
		messages = append(messages, netlink.Message{Header: header, Data: b})
	}
	header.Type = netlink.Done
	return append(messages, netlink.Message{Header: header, Data: nlenc.Int32Bytes(-int32(errno))})
}

func (k *kernel) dial(t *testing.T) *netlink.Conn {
	t.Helper()
	conn := nltest.Dial(k.answer)
	t.Cleanup(func() { hangUp(conn) })
	return conn
}

// oneLink is a kernel with siw0 on d0, as captured.
func oneLink(t *testing.T) *kernel {
	t.Helper()
	return &kernel{
		links: map[uint32][]byte{0: testkit.Unhex(t, wireGetReply)},
		ports: map[uint32][]byte{0: testkit.Unhex(t, wirePortGetReply)},
	}
}

func TestList(t *testing.T) {
	want := []Link{{
		Name: "siw0", NodeGUID: 0xfcfc10fffe7b90f2, NodeType: provider.NodeRNIC, Protocol: "iw",
		Ports: []Port{{Num: 1, State: provider.PortActive, PhysState: 5, Netdev: "d0", NetdevIndex: 2}},
	}}
	t.Run("one", func(t *testing.T) {
		links, err := list(oneLink(t).dial(t))
		if diff := cmp.Diff(want, links); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if links[0].Netdev() != "d0" {
			t.Errorf("Netdev() = %q", links[0].Netdev())
		}
	})
	t.Run("none", func(t *testing.T) {
		links, err := list((&kernel{}).dial(t))
		if err != nil || links == nil || len(links) != 0 {
			t.Errorf("%#v, %v; want an empty list", links, err)
		}
	})
	t.Run("one of two deleted meanwhile", func(t *testing.T) {
		k := oneLink(t)
		k.links[1] = marshal(t, attr32(attrDevIndex, 1), attrString(attrDevName, "gone"))
		links, err := list(k.dial(t))
		if diff := cmp.Diff(want, links); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
	t.Run("interface in another namespace", func(t *testing.T) {
		k := oneLink(t)
		k.ports[0] = marshal(t, attr32(attrDevIndex, 0), attr32(attrPortIndex, 1))
		links, err := list(k.dial(t))
		if err != nil || len(links) != 1 || links[0].Netdev() != "" {
			t.Errorf("%+v, %v; want a link without an interface", links, err)
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		k := oneLink(t)
		k.links[0] = marshal(t, attrString(attrDevName, "siw0"))
		if links, err := list(k.dial(t)); err == nil {
			t.Errorf("a device without an index gave %+v", links)
		}
	})
}

func TestDeleteAsksForTheIndex(t *testing.T) {
	k := oneLink(t)
	k.links[5] = marshal(t, attr32(attrDevIndex, 5), attrString(attrDevName, "siw5"))
	k.ports[5] = marshal(t, attr32(attrPortIndex, 1))
	if err := del(k.dial(t), "siw5"); err != nil {
		t.Fatal(err)
	}
	last := k.asked[len(k.asked)-1]
	if diff := cmp.Diff(testkit.Unhex(t, "0800010005000000"), last.Data); last.Header.Type != cmdDelLink || diff != "" {
		t.Errorf("command %#x (-want +got):\n%s", last.Header.Type, diff)
	}
}

// Errors keep the kernel's errno and explain it.
func TestErrors(t *testing.T) {
	addOne := func(conn *netlink.Conn) error { return add(conn, "siw1", "siw", "d0") }
	delOne := func(conn *netlink.Conn) error { return del(conn, "siw0") }
	for _, c := range []struct {
		name  string
		call  func(*netlink.Conn) error
		errno syscall.Errno
		says  string
	}{
		{"add", addOne, syscall.EPERM, "CAP_NET_ADMIN"},
		{"add", addOne, syscall.EEXIST, "d0 has a link already"},
		{"add", addOne, syscall.ENFILE, "called siw1 already"},
		{"add", addOne, syscall.ENODEV, "no network interface d0"},
		{"add", addOne, syscall.EINVAL, "modprobe siw"},
		{"add", addOne, syscall.EOPNOTSUPP, "does not know this command"},
		{"add", addOne, syscall.ENOMEM, "cannot allocate memory"},
		{"delete", delOne, syscall.EPERM, "CAP_NET_ADMIN"},
		{"delete", delOne, syscall.EINVAL, "not a link that was added"},
	} {
		k := oneLink(t)
		k.refuse = c.errno
		err := c.call(k.dial(t))
		wantError(t, c.name, err, c.errno, c.says)
	}

	err := del(oneLink(t).dial(t), "siw7")
	wantError(t, "delete of a link that is not there", err, syscall.ENODEV, "no RDMA link of this name")
	err = add((&kernel{refuse: syscall.EINVAL}).dial(t), "rxe0", "rxe", "lo")
	wantError(t, "add rxe", err, syscall.EINVAL, "modprobe rdma_rxe")
	err = callError("socket(NETLINK_RDMA)", "", syscall.EPROTONOSUPPORT, dialHint(syscall.EPROTONOSUPPORT))
	wantError(t, "dial", err, syscall.EPROTONOSUPPORT, "modprobe ib_core")
}

func wantError(t *testing.T, name string, err error, errno syscall.Errno, says string) {
	t.Helper()
	var call *provider.Error
	if !errors.As(err, &call) || !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want %v and %q", name, err, errno, says)
	}
}

// Names that the kernel would cut off, or complete, never reach it.
func TestNamesThatWouldBeMisread(t *testing.T) {
	long := strings.Repeat("n", 64)
	for _, c := range []struct{ name, linkType, netdev, says string }{
		{"", "siw", "d0", "link's name is empty"},
		{"siw0", "", "d0", "link's type is empty"},
		{"siw0", "siw", "", "interface's name is empty"},
		{"siw%d", "siw", "d0", "may not contain"},
		{"siw\x00", "siw", "d0", "may not contain"},
		{"a/b", "siw", "d0", "may not contain"},
		{long, "siw", "d0", "longer than 63"},
		{"siw0", long[:16], "d0", "longer than 15"},
		{"siw0", "siw", long[:16], "longer than 15"},
	} {
		k := &kernel{}
		err := add(k.dial(t), c.name, c.linkType, c.netdev)
		wantError(t, c.says, err, syscall.EINVAL, c.says)
		if len(k.asked) != 0 {
			t.Errorf("%s: the kernel was asked all the same", c.says)
		}
	}
	k := &kernel{}
	if err := add(k.dial(t), long[:63], long[:15], long[:15]); err != nil || len(k.asked) != 1 {
		t.Errorf("the longest names: %v, the kernel asked %d times", err, len(k.asked))
	}
}
