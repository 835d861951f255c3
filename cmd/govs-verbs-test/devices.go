package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

type devicesCmd struct {
	JSON     bool   `name:"json" help:"Print JSON, with all attributes."`
	Provider string `enum:"auto,engine,kernel" default:"auto" help:"Whose: engine, kernel, or auto for both and which one auto takes."`
}

// deviceRow is a device as devices --json prints it.
type deviceRow struct {
	Name      string               `json:"name"`
	Provider  string               `json:"provider"`
	Transport string               `json:"transport"`
	NodeGUID  string               `json:"node_guid"`
	Netdev    string               `json:"netdev,omitempty"`
	State     string               `json:"port_state"`
	Attr      *provider.DeviceAttr `json:"attributes,omitempty"`
	Error     string               `json:"error,omitempty"`
}

// Run lists.
func (c *devicesCmd) Run(out *output) error {
	var rows []deviceRow
	for _, p := range []provider.Provider{engine.New(nil), kernel.New()} {
		if c.Provider != "auto" && c.Provider != p.Name() {
			continue
		}
		devices, err := p.Devices()
		switch {
		case errors.Is(err, errors.ErrUnsupported) && c.Provider == "auto":
			fmt.Fprintf(out.errors, "%s: %v\n", p.Name(), err)
		case err != nil:
			return &environmentError{err}
		}
		for _, d := range devices {
			rows = append(rows, describeDevice(p, d))
		}
	}
	if c.JSON {
		return printJSON(out, rows)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tPROVIDER\tTRANSPORT\tNODE GUID\tNETDEV\tPORT 1")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Provider, r.Transport, r.NodeGUID, r.Netdev, r.State+r.Error)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if c.Provider == "auto" {
		vctx, why, err := openProvider("auto")
		if err != nil {
			return &environmentError{err}
		}
		fmt.Fprintln(out, why)
		return vctx.Close()
	}
	return nil
}

func describeDevice(p provider.Provider, d provider.DeviceInfo) deviceRow {
	r := deviceRow{
		Name: d.Name, Provider: p.Name(), Transport: d.Transport.String(), NodeGUID: fmt.Sprintf("%016x", d.NodeGUID), Netdev: d.Netdev,
	}
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
	r.Attr = &attr
	port, err := vctx.QueryPort(1)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.State = port.State.String()
	return r
}
