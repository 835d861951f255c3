package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"
)

type pingCmd struct {
	Addr     string        `arg:"" optional:"" name:"addr:port" help:"The server to ping: an IP address or a name, and a port. rping's port is 7174."`
	Listen   string        `help:"Serve one client at this address, then end. Port 0: any free port, which is printed." placeholder:"ADDR:PORT"`
	Many     bool          `name:"persistent" short:"P" help:"With --listen: serve any number of clients, many at a time, until interrupted, as rping -s -P does."`
	Provider string        `enum:"auto,engine,kernel" default:"auto" help:"Provider: engine, kernel, or auto for the kernel where it has a usable device with the address. Default auto." placeholder:"PROVIDER"`
	Count    int           `short:"C" default:"10" help:"How many pings the client sends. Default 10." placeholder:"N"`
	Size     int           `short:"S" default:"64" help:"Bytes of each ping, 23 to 65535. Default 64. The C rping, as a server, needs the same number in its own -S." placeholder:"N"`
	Verbose  bool          `short:"v" help:"Print the data of each ping."`
	Timeout  time.Duration `default:"60s" help:"Fail if the peer does nothing for this long, such as 500ms. Default 60s. The wait for a client has no limit." placeholder:"TIME"`
	JSON     bool          `name:"json" help:"Print the result as JSON."`
}

// Help implements kong's HelpProvider.
func (*pingCmd) Help() string {
	return `The protocol is that of rping (rdmacm-utils). For each ping the client sends the server the address of its data, which the server reads ` +
		`with an RDMA Read. Then the client sends the address of its second buffer, to which the server writes that data with an RDMA Write.

This command as the server and the C program as the client, then the other way round:

    ` + name + ` ping --listen 192.0.2.1:7174
    rping -c -a 192.0.2.1 -C 10 -v

    rping -s -a 192.0.2.1 -v
    ` + name + ` ping 192.0.2.1:7174`
}

// Sizes that the C rping accepts. Its buffer is 64 KiB, of which it uses one byte less. The
// smallest size has room for the head of the text with any number.
const (
	minPing = 23
	maxPing = 64<<10 - 1
)

// Validate implements kong's check.
func (c *pingCmd) Validate(k *kong.Context) error {
	switch {
	case (c.Addr == "") == (c.Listen == ""):
		return errors.New("give either ADDR:PORT to ping, or --listen ADDR:PORT to be pinged")
	case c.Listen != "" && (given(k, "count") || given(k, "size")):
		return errors.New("--count and --size: the client decides them: leave them out at the server")
	case c.Many && c.Listen == "":
		return errors.New("--persistent is for --listen: add that, or leave the option out")
	case c.Many && c.JSON:
		return errors.New("--persistent has no single result to print as JSON: leave --json out")
	case c.Size < minPing || c.Size > maxPing:
		return fmt.Errorf("--size %d: rping takes %d to %d bytes", c.Size, minPing, maxPing)
	case c.Count < 1:
		return fmt.Errorf("--count %d: has to be at least 1", c.Count)
	case c.Timeout <= 0:
		return fmt.Errorf("--timeout %v: has to be above 0", c.Timeout)
	}
	return checkAddress(c.Addr+c.Listen, c.Listen != "")
}

// Run pings, or serves.
func (c *pingCmd) Run(ctx context.Context, out *output) (err error) {
	addr, err := resolve(ctx, c.Addr+c.Listen, c.Listen != "")
	if err != nil {
		return unable(err)
	}
	vctx, why, err := openProvider(c.Provider, addr.Addr(), nil)
	if err != nil {
		return unable(err)
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	fmt.Fprintln(out.errors, why)
	if c.Many {
		return c.serveAll(ctx, out, vctx, addr)
	}
	p, err := newPinger(vctx, c.Timeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()

	f := figures{Provider: vctx.Provider(), Device: vctx.Name()}
	if c.Listen != "" {
		err = c.serve(ctx, out, p, addr, &f)
	} else {
		err = c.ping(ctx, out, p, addr, &f)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil && f.Count == 0 {
		return err
	}
	return errors.Join(err, f.print(out, c.JSON)) // also with an error, for the pings before it
}

// figures are the results of a ping. The times are the client's.
type figures struct {
	Role     string  `json:"role"` // client or server
	Peer     string  `json:"peer"`
	Provider string  `json:"provider"`
	Device   string  `json:"device"`
	Count    int     `json:"count"`
	Size     int     `json:"size"` // bytes; of the last ping
	MinUs    float64 `json:"min_us,omitempty"`
	MeanUs   float64 `json:"mean_us,omitempty"`
	MaxUs    float64 `json:"max_us,omitempty"`
}

// took counts one more ping.
func (f *figures) took(d time.Duration) {
	us := float64(d.Nanoseconds()) / 1000
	if f.Count == 0 || us < f.MinUs {
		f.MinUs = us
	}
	f.MaxUs = max(f.MaxUs, us)
	f.MeanUs += (us - f.MeanUs) / float64(f.Count+1)
	f.Count++
}

func (f *figures) print(out *output, json bool) error {
	if json {
		return out.json(f)
	}
	if f.Role == "server" {
		fmt.Fprintf(out, "served %d pings of %d bytes for %s over %s %s\n", f.Count, f.Size, f.Peer, f.Provider, f.Device)
		return nil
	}
	fmt.Fprintf(out, "%d pings of %d bytes to %s over %s %s: round trip min/mean/max %.1f/%.1f/%.1f us\n",
		f.Count, f.Size, f.Peer, f.Provider, f.Device, f.MinUs, f.MeanUs, f.MaxUs)
	return nil
}
