package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/kernel/rdmalink"
)

type linkCmd struct {
	List   linkListCmd   `cmd:"" default:"1" help:"List the RDMA links."`
	Add    linkAddCmd    `cmd:"" help:"Add a link on a network interface (rdma link add)."`
	Delete linkDeleteCmd `cmd:"" aliases:"del" help:"Delete a link (rdma link delete)."`
}

type linkListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run lists.
func (c *linkListCmd) Run(out *output) error {
	links, err := rdmalink.List()
	if err != nil {
		return &environmentError{err}
	}
	if c.JSON {
		if links == nil {
			links = []rdmalink.Link{}
		}
		return printJSON(out, links)
	}
	if len(links) == 0 {
		fmt.Fprintln(out.errors, "no RDMA links; govs-verbs-test link add siw0 --netdev NETDEV adds one")
		return nil
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "LINK\tPROTOCOL\tNODE GUID\tPORT\tNETDEV\tSTATE")
	for _, l := range links {
		for _, p := range l.Ports {
			fmt.Fprintf(tw, "%s\t%s\t%016x\t%d\t%s\t%s\n", l.Name, l.Protocol, l.NodeGUID, p.Num, p.Netdev, p.State)
		}
	}
	return tw.Flush()
}

type linkAddCmd struct {
	Name   string `arg:"" help:"Name of the device to make, such as siw0."`
	Netdev string `required:"" help:"Network interface to put it on, such as eth0 (not lo: siw can't use 127.0.0.1)."`
	Type   string `default:"siw" help:"Type of the link: siw or rxe."`
}

// Run adds.
func (c *linkAddCmd) Run(*output) error { return environment(rdmalink.Add(c.Name, c.Type, c.Netdev)) }

type linkDeleteCmd struct {
	Name string `arg:"" help:"Name of the device."`
}

// Run deletes.
func (c *linkDeleteCmd) Run(*output) error { return environment(rdmalink.Delete(c.Name)) }

func environment(err error) error {
	if err == nil {
		return nil
	}
	return &environmentError{err}
}
