package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
)

// printVerbose prints a device as ibv_devinfo -v does, with its names and in its order. It leaves
// out lines without meaning for iWARP (datagrams, multicast, the subnet manager, on-demand paging,
// offloads). Lines that ibv_devinfo does not have come last. It prints all GIDs; ibv_devinfo leaves
// out iWARP's, because their lower half is zero.
func printVerbose(w io.Writer, p provider.Provider, d provider.DeviceInfo) error {
	vctx, err := ibverbs.Open(p, d.Name)
	if err != nil {
		return err
	}
	defer vctx.Close()
	attr, err := vctx.Query()
	if err != nil {
		return err
	}
	gids, err := vctx.QueryGIDTable()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "hca_id:\t%s\n", d.Name)
	field(w, 1, "transport", transportText(d.Transport))
	printAttr(w, &attr)
	for n := range attr.PhysPortCnt {
		port, err := vctx.QueryPort(n + 1)
		if err != nil {
			return err
		}
		field(w, 2, "port", n+1)
		printPort(w, &port)
		for _, g := range gids {
			if g.Port == uint32(n+1) {
				field(w, 3, fmt.Sprintf("GID[%3d]", g.Index), groups(g.GID[:]))
			}
		}
		for i := range int(port.PkeyTblLen) {
			key, err := vctx.QueryPkey(n+1, i)
			if err != nil {
				return err
			}
			field(w, 3, fmt.Sprintf("PKEY[%3d]", i), fmt.Sprintf("%#04x", key))
		}
	}
	field(w, 1, "provider", p.Name())
	field(w, 1, "max_inline_data", attr.MaxInline)
	_, err = fmt.Fprintln(w)
	return err
}

func printAttr(w io.Writer, a *ibverbs.DeviceAttr) {
	put := func(name string, value any) { field(w, 1, name, value) }
	put("fw_ver", a.FWVer)
	put("node_guid", guidText(a.NodeGUID))
	put("sys_image_guid", guidText(a.SysImageGUID))
	put("vendor_id", fmt.Sprintf("0x%04x", a.VendorID))
	put("vendor_part_id", a.VendorPartID)
	put("hw_ver", fmt.Sprintf("0x%X", a.HWVer))
	put("phys_port_cnt", a.PhysPortCnt)
	put("max_mr_size", hex(a.MaxMRSize))
	put("page_size_cap", hex(a.PageSizeCap))
	put("max_qp", a.MaxQP)
	put("max_qp_wr", a.MaxQPWR)
	put("device_cap_flags", fmt.Sprintf("0x%08x", uint64(a.DeviceCapFlags)))
	for _, name := range a.DeviceCapFlags.Names() {
		fmt.Fprintf(w, "\t\t\t\t\t%s\n", name)
	}
	put("max_sge", a.MaxSGE)
	put("max_sge_rd", a.MaxSGERd)
	put("max_cq", a.MaxCQ)
	put("max_cqe", a.MaxCQE)
	put("max_mr", a.MaxMR)
	put("max_pd", a.MaxPD)
	put("max_qp_rd_atom", a.MaxQPRdAtom)
	put("max_res_rd_atom", a.MaxResRdAtom)
	put("max_qp_init_rd_atom", a.MaxQPInitRdAtom)
	put("atomic_cap", enumText(a.AtomicCap, "IBV_", int(a.AtomicCap)))
	put("max_mw", a.MaxMW)
	put("max_srq", a.MaxSRQ)
	put("max_srq_wr", a.MaxSRQWR)
	put("max_srq_sge", a.MaxSRQSGE)
	put("max_pkeys", a.MaxPkeys)
	put("local_ca_ack_delay", a.LocalCAAckDelay)
	put("num_comp_vectors", a.NumCompVectors)
}

func printPort(w io.Writer, a *ibverbs.PortAttr) {
	put := func(name string, value any) { field(w, 3, name, value) }
	put("state", enumText(a.State, "IBV_", int(a.State)))
	put("max_mtu", mtuText(a.MaxMTU))
	put("active_mtu", mtuText(a.ActiveMTU))
	put("link_layer", linkLayerText(a.LinkLayer))
	put("max_msg_sz", hex(uint64(a.MaxMsgSz)))
	put("port_cap_flags", fmt.Sprintf("0x%08x", a.PortCapFlags))
	put("pkey_tbl_len", a.PkeyTblLen)
	put("gid_tbl_len", a.GIDTblLen)
	put("active_width", widthText(a.ActiveWidth))
	put("active_speed", speedText(a.ActiveSpeed))
}

// field prints "name: value" with the tabs of ibv_devinfo: indent tabs before the name, and the
// value four tab stops later.
func field(w io.Writer, indent int, name string, value any) {
	stops := 4
	if indent > 1 {
		stops = 3
	}
	tabs := max(stops-(len(name)+1)/8, 1)
	if indent == 2 {
		tabs = 1
	}
	fmt.Fprintf(w, "%s%s:%s%v\n", strings.Repeat("\t", indent), name, strings.Repeat("\t", tabs), value)
}

func hex(n uint64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%#x", n)
}

// enumText returns text like "PORT_ACTIVE (4)".
func enumText(v fmt.Stringer, prefix string, n int) string {
	return fmt.Sprintf("%s (%d)", strings.TrimPrefix(v.String(), prefix), n)
}

func transportText(t ibverbs.TransportType) string {
	names := map[ibverbs.TransportType]string{ibverbs.TransportIB: "InfiniBand", ibverbs.TransportIWARP: "iWARP"}
	if name, ok := names[t]; ok {
		return fmt.Sprintf("%s (%d)", name, t)
	}
	return fmt.Sprintf("invalid transport (%d)", t)
}

func linkLayerText(l uint8) string {
	switch l {
	case 1:
		return "InfiniBand"
	case 2:
		return "Ethernet"
	}
	return "Unknown"
}

// mtuText returns text like "1024 (3)", with the number in enum ibv_mtu.
func mtuText(octets int) string {
	for n := 1; n <= 5; n++ {
		if octets == 128<<n {
			return fmt.Sprintf("%d (%d)", octets, n)
		}
	}
	return fmt.Sprintf("invalid MTU (%d)", octets)
}

func widthText(w uint8) string {
	lanes := map[uint8]string{1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
	if text, ok := lanes[w]; ok {
		return fmt.Sprintf("%s (%d)", text, w)
	}
	return fmt.Sprintf("invalid width (%d)", w)
}

func speedText(s uint8) string {
	speeds := map[uint8]string{1: "2.5 Gbps", 2: "5.0 Gbps", 4: "5.0 Gbps", 8: "10.0 Gbps", 16: "14.0 Gbps", 32: "25.0 Gbps", 64: "50.0 Gbps", 128: "100.0 Gbps"}
	if text, ok := speeds[s]; ok {
		return fmt.Sprintf("%s (%d)", text, s)
	}
	return fmt.Sprintf("invalid speed (%d)", s)
}

// guidText formats a GUID in four groups.
func guidText(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

// groups formats a GID in groups of two bytes.
func groups(b []byte) string {
	var text []string
	for i := 0; i+1 < len(b); i += 2 {
		text = append(text, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	return strings.Join(text, ":")
}
