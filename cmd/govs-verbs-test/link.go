package main

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/kernel/rdmalink"
)

type linkCmd struct {
	List   linkListCmd   `cmd:"" default:"withargs" help:"List the RDMA links."`
	Add    linkAddCmd    `cmd:"" help:"Add a link on a network interface (rdma link add)."`
	Delete linkDeleteCmd `cmd:"" aliases:"del" help:"Delete a link (rdma link delete)."`
}

type linkListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// linkRow is a port of a link as link list --json prints it.
type linkRow struct {
	Name     string `json:"link"`
	Protocol string `json:"protocol"`
	NodeGUID string `json:"node_guid"`
	Port     uint32 `json:"port"`
	Netdev   string `json:"netdev,omitempty"`
	State    string `json:"port_state"`
}

// Run lists.
func (c *linkListCmd) Run(out *output) error {
	links, err := rdmalink.List()
	if err != nil {
		return unable(err)
	}
	rows := []linkRow{}
	for _, l := range links {
		for _, p := range l.Ports {
			rows = append(rows, linkRow{l.Name, l.Protocol, guid(l.NodeGUID), p.Num, p.Netdev, p.State.String()})
		}
	}
	if c.JSON {
		return out.json(rows)
	}
	if len(rows) == 0 {
		fmt.Fprintf(out.errors, "no RDMA links; %s link add siw0 --netdev NETDEV adds one\n", name)
		return nil
	}
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{r.Name, r.Protocol, r.NodeGUID, fmt.Sprint(r.Port), r.Netdev, r.State})
	}
	return out.table([]string{"LINK", "PROTOCOL", "NODE GUID", "PORT", "NETDEV", "STATE"}, cells)
}

// guid is a GUID as ibv_devices prints it.
func guid(v uint64) string { return fmt.Sprintf("%016x", v) }

type linkAddCmd struct {
	Name   string `arg:"" help:"Name of the device to make, such as siw0."`
	Netdev string `required:"" help:"Network interface to put it on, such as eth0 (not lo: siw can't use 127.0.0.1)." placeholder:"NETDEV"`
	Type   string `default:"siw" help:"Type of the link: siw (soft iWARP) or rxe (soft RoCE). Default siw." placeholder:"TYPE"`
}

// Run adds.
func (c *linkAddCmd) Run() error { return unable(rdmalink.Add(c.Name, c.Type, c.Netdev)) }

type linkDeleteCmd struct {
	Name string `arg:"" help:"Name of the device."`
}

// Run deletes.
func (c *linkDeleteCmd) Run() error { return unable(rdmalink.Delete(c.Name)) }
