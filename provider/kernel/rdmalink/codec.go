//go:build linux

package rdmalink

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"

	"github.com/govs-rdma/govs/provider"
)

// Values of include/uapi/rdma/rdma_netlink.h. A message's type is the client, shifted left by ten
// bits, plus the command.
const (
	clientNLDev = 5 // RDMA_NL_NLDEV

	cmdGet     netlink.HeaderType = clientNLDev<<10 | 1 // RDMA_NLDEV_CMD_GET
	cmdNewLink netlink.HeaderType = clientNLDev<<10 | 3 // RDMA_NLDEV_CMD_NEWLINK
	cmdDelLink netlink.HeaderType = clientNLDev<<10 | 4 // RDMA_NLDEV_CMD_DELLINK
	cmdPortGet netlink.HeaderType = clientNLDev<<10 | 5 // RDMA_NLDEV_CMD_PORT_GET
)

// Attributes, RDMA_NLDEV_ATTR_* of the same header.
const (
	attrDevIndex      = 1  // u32
	attrDevName       = 2  // string
	attrPortIndex     = 3  // u32; in a reply to GET the number of ports
	attrNodeGUID      = 6  // u64, host order
	attrPortState     = 12 // u8
	attrPortPhysState = 13 // u8
	attrDevNodeType   = 14 // u8
	attrNetdevIndex   = 50 // u32
	attrNetdevName    = 51 // string
	attrLinkType      = 65 // string
	attrDevProtocol   = 67 // string
)

// The payload of these messages consists of attributes only; the family has no header of its own.

func getRequest() netlink.Message {
	return message(cmdGet, netlink.Dump)
}

// portGetRequest asks for all ports of a device. It is a dump, because a request for one port gets
// an additional acknowledgement after its answer.
func portGetRequest(index uint32) netlink.Message {
	return message(cmdPortGet, netlink.Dump, attr32(attrDevIndex, index))
}

func newLinkRequest(name, linkType, netdev string) netlink.Message {
	return message(cmdNewLink, netlink.Acknowledge,
		attrString(attrDevName, name),
		attrString(attrLinkType, linkType),
		attrString(attrNetdevName, netdev))
}

func delLinkRequest(index uint32) netlink.Message {
	return message(cmdDelLink, netlink.Acknowledge, attr32(attrDevIndex, index))
}

func message(cmd netlink.HeaderType, flags netlink.HeaderFlags, attrs ...netlink.Attribute) netlink.Message {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		// Only an attribute of 64 KiB fails, and misread refuses those.
		panic("rdmalink: " + err.Error())
	}
	return netlink.Message{
		Header: netlink.Header{Type: cmd, Flags: netlink.Request | flags},
		Data:   data,
	}
}

func attr32(attr uint16, value uint32) netlink.Attribute {
	return netlink.Attribute{Type: attr, Data: nlenc.Uint32Bytes(value)}
}

// attrString makes a string with the NUL that NLA_NUL_STRING requires.
func attrString(attr uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: attr, Data: nlenc.Bytes(value)}
}

// parseLink reads the attributes of one device, without its ports.
func parseLink(b []byte) (Link, error) {
	var link Link
	var hasIndex bool
	err := eachAttribute(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case attrDevIndex:
			link.Index = ad.Uint32()
			hasIndex = true
		case attrDevName:
			link.Name = ad.String()
		case attrNodeGUID:
			link.NodeGUID = ad.Uint64()
		case attrDevNodeType:
			link.NodeType = provider.NodeType(ad.Uint8())
		case attrDevProtocol:
			link.Protocol = ad.String()
		}
	})
	if err == nil && (!hasIndex || link.Name == "") {
		err = fmt.Errorf("the kernel reported a device without index or name")
	}
	return link, err
}

// parsePort reads the attributes of one port.
func parsePort(b []byte) (Port, error) {
	var port Port
	err := eachAttribute(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case attrPortIndex:
			port.Num = ad.Uint32()
		case attrPortState:
			port.State = provider.PortState(ad.Uint8())
		case attrPortPhysState:
			port.PhysState = ad.Uint8()
		case attrNetdevIndex:
			port.NetdevIndex = ad.Uint32()
		case attrNetdevName:
			port.Netdev = ad.String()
		}
	})
	if err == nil && port.Num == 0 {
		err = fmt.Errorf("the kernel reported a port without a number")
	}
	return port, err
}

// eachAttribute calls f at each attribute of b. It fails if b is not a list of attributes, or if f
// read an attribute with a wrong size.
func eachAttribute(b []byte, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}
