package outside

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

var programs = map[string]program{
	UCXPutBW:    ucx("ucp_put_bw", ucxBandwidth),
	UCXTagBW:    ucx("tag_bw", ucxBandwidth),
	UCXTagLat:   ucx("tag_lat", ucxLatency),
	FabricPing:  pingpong(),
	VerbsWrite:  perftest("ib_write_bw", verbsBandwidth),
	VerbsSendPP: perftest("ib_send_lat", verbsLatency),
	ExecWrite:   bridged(perftest("ib_write_bw", verbsBandwidth)),
	ExecSendPP:  bridged(perftest("ib_send_lat", verbsLatency)),
}

// ucx runs one of ucx_perftest's tests over its TCP transport. The client names the test to the
// server.
func ucx(test string, parse func(ucxRow) Result) program {
	return program{
		binary: "ucx_perftest", version: []string{"ucx_info", "-v"}, pkg: "ucx-utils",
		env: func(p Pair) []string {
			env := []string{"UCX_TLS=tcp"}
			if p.Netdev != "" {
				env = append(env, "UCX_NET_DEVICES="+p.Netdev)
			}
			return env
		},
		server: func(_ Pair, _ Test, port int) []string { return []string{"-p", strconv.Itoa(port)} },
		client: func(p Pair, t Test, port int) []string {
			return []string{
				p.Addr.String(), "-p", strconv.Itoa(port), "-t", test,
				"-s", strconv.Itoa(t.Size), "-n", strconv.Itoa(t.Iters), "-w", strconv.Itoa(t.Warmup), "-f", "-v",
			}
		},
		parse: func(_ Test, stdout string) (Result, error) {
			row, err := parseUCX(stdout)
			if err != nil {
				return Result{}, err
			}
			return parse(row), nil
		},
	}
}

// ucxRow reads a row of ucx_perftest -v by its headings. Latencies are in microseconds, of a
// message in one direction; bandwidths are in 2^20 bytes per second.
type ucxRow map[string]float64

// The headings that are used. In bandwidth tests, "lat" is what ucx_perftest calls overhead.
const (
	ucxMedian  = "50.0_percentile_lat"
	ucxOverall = "overall_bw"
)

func parseUCX(stdout string) (ucxRow, error) {
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for i, l := range lines {
		if !strings.HasPrefix(l, "iterations,") || i+1 == len(lines) {
			continue
		}
		headings, fields := strings.Split(l, ","), strings.Split(lines[i+1], ",")
		if len(headings) != len(fields) {
			return nil, fmt.Errorf("%d headings over %d fields", len(headings), len(fields))
		}
		row := make(ucxRow)
		for k, h := range headings {
			n, err := number(strings.TrimSpace(fields[k]))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", h, err)
			}
			row[h] = n
		}
		for _, h := range []string{ucxMedian, ucxOverall} {
			if _, ok := row[h]; !ok {
				return nil, fmt.Errorf("no column %s", h)
			}
		}
		return row, nil
	}
	return nil, errNoResult
}

func ucxBandwidth(r ucxRow) Result { return Result{GBps: r[ucxOverall] * (1 << 20) / 1e9} }

func ucxLatency(r ucxRow) Result { return Result{RTT: 2 * micros(r[ucxMedian])} }

// pingpong runs fi_pingpong over the provider tcp with connected endpoints. It does not check data,
// and prints only means.
func pingpong() program {
	args := func(t Test) []string {
		return []string{"-p", "tcp", "-e", "msg", "-S", strconv.Itoa(t.Size), "-I", strconv.Itoa(t.Iters)}
	}
	return program{
		binary: "fi_pingpong", version: []string{"fi_info", "--version"}, pkg: "libfabric-bin",
		server: func(_ Pair, t Test, port int) []string { return append(args(t), "-B", strconv.Itoa(port)) },
		client: func(p Pair, t Test, port int) []string {
			return append(args(t), "-P", strconv.Itoa(port), p.Addr.String())
		},
		parse: parsePingpong,
	}
}

// parsePingpong reads the row of the test's size. MB are 10^6 bytes, and a transfer is a message in
// one direction.
func parsePingpong(t Test, stdout string) (Result, error) {
	headings := strings.Fields("bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec")
	for line := range strings.Lines(stdout) {
		fields := strings.Fields(line)
		if len(fields) != len(headings) {
			continue
		}
		if fields[0] == headings[0] {
			for i, h := range headings {
				if fields[i] != h {
					return Result{}, fmt.Errorf("column %q where %q was", fields[i], h)
				}
			}
			continue
		}
		size, err := number(fields[0])
		if err != nil || int(size) != t.Size {
			continue
		}
		mb, err := number(fields[5])
		if err != nil {
			return Result{}, err
		}
		us, err := number(fields[6])
		if err != nil {
			return Result{}, err
		}
		return Result{GBps: mb / 1000, RTT: 2 * micros(us)}, nil
	}
	return Result{}, errNoResult
}

// perftest runs one of perftest's programs, connected by librdmacm (-R), which iWARP needs.
func perftest(binary string, parse func(map[string]string) (Result, error)) program {
	args := func(p Pair, t Test, port int) []string {
		return []string{"-R", "-F", "-d", p.Device, "-p", strconv.Itoa(port), "-s", strconv.Itoa(t.Size), "-n", strconv.Itoa(t.Iters)}
	}
	return program{
		binary: binary, version: []string{binary, "--version"}, pkg: "perftest",
		server: args,
		client: func(p Pair, t Test, port int) []string { return append(args(p, t, port), p.Addr.String()) },
		parse: func(t Test, stdout string) (Result, error) {
			row, err := parsePerftest(t.Size, stdout)
			if err != nil {
				return Result{}, err
			}
			return parse(row)
		},
		early: perftestEarly,
	}
}

// bridged runs a program of perftest over the engine, by govs-verbs-test exec. Its device is siw0.
func bridged(p program) program {
	p.bridged = true
	plain, asked := p.server, p.client
	p.server = func(at Pair, t Test, port int) []string {
		at.Device = "siw0"
		return plain(at, t, port)
	}
	p.client = func(at Pair, t Test, port int) []string {
		at.Device = "siw0"
		return asked(at, t, port)
	}
	return p
}

// perftestEarly reports whether a client of perftest was rejected because the server did not listen
// yet. The ends first exchange data over a TCP connection, for whose listener we wait. That
// exchange ends before the server's rdma_listen at the same port, and nothing outside the two
// programs can delay the client in between. The client then prints that a call of the CM has
// failed, or crashes when it tries again, because 4.5 uses memory that it has freed.
func perftestEarly(client *process) bool {
	if status, ok := client.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() != syscall.SIGKILL {
		return true
	}
	said := client.stderr.String() + client.stdout.String()
	return strings.Contains(said, "RDMA CM") || strings.Contains(said, "RDMA_CM_EVENT_REJECTED")
}

// parsePerftest returns the row of a size by its headings. Words of a heading are one space apart,
// headings one or more; a unit in brackets ends a heading.
func parsePerftest(size int, stdout string) (map[string]string, error) {
	var headings []string
	for line := range strings.Lines(stdout) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#bytes") {
			headings = perftestHeadings(line)
			continue
		}
		fields := strings.Fields(line)
		if headings == nil || len(fields) == 0 || fields[0] != strconv.Itoa(size) {
			continue
		}
		if len(fields) != len(headings) {
			return nil, fmt.Errorf("%d headings over %d fields", len(headings), len(fields))
		}
		row := make(map[string]string)
		for i, h := range headings {
			row[h] = fields[i]
		}
		return row, nil
	}
	return nil, errNoResult
}

func perftestHeadings(line string) []string {
	var list []string
	fields := strings.Fields(line)
	for i := 0; i < len(fields); i++ {
		h := fields[i]
		for !strings.HasPrefix(h, "#") && !strings.HasSuffix(h, "]") && i+1 < len(fields) {
			i++
			h += " " + fields[i]
		}
		list = append(list, h)
	}
	return list
}

// verbsBandwidth reads the average, because the peak is between only two completions. perftest's MB
// are 2^20 bytes, its Gb 10^9 bits.
func verbsBandwidth(row map[string]string) (Result, error) {
	for heading, unit := range map[string]float64{"BW average[MB/sec]": (1 << 20) / 1e9, "BW average[Gb/sec]": 1.0 / 8} {
		if text, ok := row[heading]; ok {
			n, err := number(text)
			return Result{GBps: n * unit}, err
		}
	}
	return Result{}, errNoResult
}

// verbsLatency reads the median, which perftest halves.
func verbsLatency(row map[string]string) (Result, error) {
	text, ok := row["t_typical[usec]"]
	if !ok {
		return Result{}, errNoResult
	}
	n, err := number(text)
	return Result{RTT: 2 * micros(n)}, err
}
