package main

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/auto"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

type devicesCmd struct {
	JSON     bool   `name:"json" xor:"how" help:"Print JSON, with all attributes."`
	Verbose  bool   `short:"v" xor:"how" help:"Print all attributes, with the names and in the form of ibv_devinfo -v."`
	Provider string `enum:"auto,engine,kernel" default:"auto" help:"Whose devices: engine, kernel, or auto for both; auto also prints which one a program with auto gets. Default auto." placeholder:"PROVIDER"`
}

// deviceRow is a device as devices --json prints it.
type deviceRow struct {
	Name      string      `json:"device"`
	Provider  string      `json:"provider"`
	Transport string      `json:"transport"`
	NodeGUID  string      `json:"node_guid"`
	ImageGUID string      `json:"sys_image_guid,omitempty"`
	Netdev    string      `json:"netdev,omitempty"`
	State     string      `json:"port_state,omitempty"`
	Attr      *deviceAttr `json:"attributes,omitempty"`
	Error     string      `json:"error,omitempty"` // why it cannot be used
}

// deviceAttr is a provider.DeviceAttr in JSON, with the names of struct ibv_device_attr.
type deviceAttr struct {
	FWVer           string             `json:"fw_ver"`
	NodeGUID        uint64             `json:"-"` // the row has both, in hexadecimal
	SysImageGUID    uint64             `json:"-"`
	MaxMRSize       uint64             `json:"max_mr_size"`
	PageSizeCap     uint64             `json:"page_size_cap"`
	VendorID        uint32             `json:"vendor_id"`
	VendorPartID    uint32             `json:"vendor_part_id"`
	HWVer           uint32             `json:"hw_ver"`
	MaxQP           int                `json:"max_qp"`
	MaxQPWR         int                `json:"max_qp_wr"`
	DeviceCapFlags  provider.DeviceCap `json:"device_cap_flags"`
	MaxSGE          int                `json:"max_sge"`
	MaxSGERd        int                `json:"max_sge_rd"`
	MaxCQ           int                `json:"max_cq"`
	MaxCQE          int                `json:"max_cqe"`
	MaxMR           int                `json:"max_mr"`
	MaxPD           int                `json:"max_pd"`
	MaxQPRdAtom     int                `json:"max_qp_rd_atom"`
	MaxResRdAtom    int                `json:"max_res_rd_atom"`
	MaxQPInitRdAtom int                `json:"max_qp_init_rd_atom"`
	AtomicCap       provider.AtomicCap `json:"atomic_cap"`
	MaxMW           int                `json:"max_mw"`
	MaxSRQ          int                `json:"max_srq"`
	MaxSRQWR        int                `json:"max_srq_wr"`
	MaxSRQSGE       int                `json:"max_srq_sge"`
	PhysPortCnt     uint8              `json:"phys_port_cnt"`
	MaxInline       int                `json:"max_inline_data"`
	LocalCAAckDelay uint8              `json:"local_ca_ack_delay"`
	MaxPkeys        uint16             `json:"max_pkeys"`
	NumCompVectors  int                `json:"num_comp_vectors"`
}

// Run lists the devices. The engine always exists, so a kernel without devices is only a note on
// stderr; with --provider kernel it is an error.
func (c *devicesCmd) Run(out *output) error {
	rows := []deviceRow{}
	for _, p := range []provider.Provider{engine.New(nil), kernel.New()} {
		if c.Provider != "auto" && c.Provider != p.Name() {
			continue
		}
		devices, err := p.Devices()
		if err != nil {
			if c.Provider != "auto" {
				return unable(err)
			}
			fmt.Fprintf(out.errors, "%s: %v\n", p.Name(), err)
		}
		for _, d := range devices {
			if c.Verbose {
				if err := printVerbose(out, p, d); err != nil {
					fmt.Fprintf(out.errors, "%s: %v\n", d.Name, err)
				}
				continue
			}
			rows = append(rows, describeDevice(p, d))
		}
	}
	if c.Provider == "auto" {
		// Not in the list, because auto is not a device.
		fmt.Fprintln(out.errors, "auto takes", auto.New(nil).Why())
	}
	if c.JSON {
		return out.json(rows)
	}
	if c.Verbose {
		return nil
	}
	var cells [][]string
	for _, r := range rows {
		state := r.State
		if r.Error != "" {
			state = r.Error
		}
		cells = append(cells, []string{r.Name, r.Provider, r.Transport, r.NodeGUID, r.Netdev, state})
	}
	return out.table([]string{"DEVICE", "PROVIDER", "TRANSPORT", "NODE GUID", "NETDEV", "PORT 1"}, cells)
}

// describeDevice opens a device and queries it. The row's Error reports what failed.
func describeDevice(p provider.Provider, d provider.DeviceInfo) deviceRow {
	r := deviceRow{Name: d.Name, Provider: p.Name(), Transport: d.Transport.String(), NodeGUID: guid(d.NodeGUID), Netdev: d.Netdev}
	vctx, err := ibverbs.Open(p, d.Name)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer vctx.Close()
	attr, err := vctx.Query()
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.ImageGUID, r.Attr = guid(attr.SysImageGUID), (*deviceAttr)(&attr)
	port, err := vctx.QueryPort(1)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.State = port.State.String()
	return r
}
