package ibverbs_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

var (
	sinkKinds = flag.String("sink.kinds", "program,mapfile,object",
		"BenchmarkFileSink: which `kinds` of sinks, in a list")
	sinkDir = flag.String("sink.dir", "", "BenchmarkFileSink: the `directory` of the new file")
)

const (
	sinkSize  = 256 << 20 // of the new file
	sinkRead  = 1 << 20   // octets of a Read
	sinkDepth = 8         // Reads under way
	sinkFrom  = 16 << 20  // octets of the source, which are read again and again
)

func init() { processes["sink source"] = serveSink }

// BenchmarkFileSink is RDMA Reads of 1 MiB from another process over the loopback that end in a
// new file: in one that is mapped (mapfile), in one that is an object (object), and in memory
// from where the program writes each to the file (program). Each iteration does all of them, in
// another order each time, and the metrics are medians: octets per second in MB, and CPU time
// of this process in seconds for a GiB, both also relative to those of program in the same
// iteration.
//
//	go test -run '^$' -bench FileSink -benchtime 9x ./ibverbs -sink.dir /dev/shm
func BenchmarkFileSink(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	conn, from := dialSink(b, ctx)
	rate, cpu := make(map[string][]float64), make(map[string][]float64)
	kinds := strings.Split(*sinkKinds, ",")
	for i := range b.N {
		for j := range kinds {
			kind := kinds[(i+j)%len(kinds)]
			took, used := fillSink(b, ctx, conn, from, kind)
			rate[kind] = append(rate[kind], sinkSize/1e6/took.Seconds())
			cpu[kind] = append(cpu[kind], used.Seconds()*(1<<30)/sinkSize)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, kind := range kinds {
		b.ReportMetric(median(rate[kind]), kind+"-MB/s")
		b.ReportMetric(median(cpu[kind]), kind+"-CPU-s/GiB")
		if base := rate["program"]; base != nil && kind != "program" {
			b.ReportMetric(median(ratios(rate[kind], base)), kind+"-rate-ratio")
			b.ReportMetric(median(ratios(cpu[kind], cpu["program"])), kind+"-CPU-ratio")
		}
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func ratios(x, of []float64) (r []float64) {
	for i := range x {
		r = append(r, x[i]/of[i])
	}
	return r
}

// openSink opens a device for one of the two processes.
func openSink() (*ibverbs.Context, error) {
	var o engine.Options
	o.TCP.CongestionControl = "cubic"
	return ibverbs.Open(engine.New(&o), "")
}

// dialSink connects to a process that serves Reads, and returns what it offers.
func dialSink(b *testing.B, ctx context.Context) (*rdmacm.Conn, ibverbs.RemoteRegion) {
	b.Helper()
	source := exec.Command(testkit.Must(os.Executable())(b))
	source.Env = append(os.Environ(), "GOVS_TEST_PROCESS=sink source")
	source.Stderr = os.Stderr
	stdin := testkit.Must(source.StdinPipe())(b)
	stdout := testkit.Must(source.StdoutPipe())(b)
	testkit.OK(b, source.Start())
	b.Cleanup(func() {
		testkit.OK(b, stdin.Close())
		testkit.OK(b, source.Wait())
	})
	var addr string
	testkit.Must(fmt.Fscanln(stdout, &addr))(b)
	vctx := testkit.Must(openSink())(b)
	b.Cleanup(func() { testkit.OK(b, vctx.Close()) })
	conn := testkit.Must(rdmacm.Dial(ctx, vctx, netip.MustParseAddrPort(addr),
		&rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: sinkDepth}}))(b)
	b.Cleanup(func() { testkit.OK(b, conn.Close()) })
	var from ibverbs.RemoteRegion
	testkit.OK(b, from.UnmarshalBinary(conn.PrivateData()[:ibverbs.RemoteRegionSize]))
	return conn, from
}

// serveSink is the process that is read from, until its standard input ends.
func serveSink() error {
	ctx := context.Background()
	vctx, err := openSink()
	if err != nil {
		return err
	}
	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	_, err = req.Accept(ctx, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) error {
			mr, err := c.PD().AllocMR(sinkFrom, ibverbs.AccessRemoteRead)
			if err != nil {
				return err
			}
			copy(mr.Bytes(), pattern(sinkFrom, 1))
			r, err := mr.Remote(0, sinkFrom)
			if err != nil {
				return err
			}
			param.PrivateData, err = r.MarshalBinary()
			return err
		},
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// fillSink fills a new file. It returns the time, and the CPU time of this process, from the
// first Read to when all is in the file.
func fillSink(b *testing.B, ctx context.Context, conn *rdmacm.Conn, from ibverbs.RemoteRegion,
	kind string) (took, used time.Duration) {
	b.Helper()
	dir := *sinkDir
	if dir == "" {
		dir = b.TempDir()
	}
	f := testkit.Must(os.CreateTemp(dir, "govs-sink"))(b)
	defer func() { testkit.OK(b, f.Close()) }()
	testkit.OK(b, os.Remove(f.Name()))
	testkit.OK(b, f.Truncate(sinkSize))
	rights := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	var mr *ibverbs.MR
	var err error
	slots := sinkSize / sinkRead
	var arrived func(i int) error // the Read of piece i
	switch kind {
	case "mapfile":
		mr, err = conn.PD().MapFile(f, 0, sinkSize, rights)
	case "object":
		mr, err = conn.PD().RegObject(f, sinkSize, rights)
	case "program":
		slots = sinkDepth
		mr, err = conn.PD().AllocMR(sinkDepth*sinkRead, rights)
		arrived = func(i int) error {
			_, err := f.WriteAt(mr.Bytes()[i%slots*sinkRead:][:sinkRead], int64(i)*sinkRead)
			return err
		}
	default:
		b.Fatalf("-sink.kinds: %q is neither program, mapfile nor object", kind)
	}
	testkit.OK(b, err)
	defer func() { testkit.OK(b, mr.Close()) }()
	begin, before := time.Now(), cpuTime(b)
	testkit.OK(b, readAll(ctx, conn, mr, from, slots, arrived))
	took, used = time.Since(begin), cpuTime(b)-before
	got := make([]byte, sinkFrom)
	want := pattern(sinkFrom, 1)
	for off := int64(0); off < sinkSize; off += sinkFrom {
		testkit.Must(f.ReadAt(got, off))(b)
		if !bytes.Equal(got, want) {
			b.Fatalf("%s: other octets in the file after %d", kind, off)
		}
	}
	return took, used
}

// readAll reads all pieces of the file, piece i to slot i of mr, or one that is free again when
// arrived has returned.
func readAll(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, from ibverbs.RemoteRegion,
	slots int, arrived func(int) error) error {
	const pieces = sinkSize / sinkRead
	posted := 0
	post := func() error {
		if posted == pieces {
			return nil
		}
		to, err := mr.SGE(posted%slots*sinkRead, sinkRead)
		if err != nil {
			return err
		}
		part, err := from.Part(posted*sinkRead%sinkFrom, sinkRead)
		if err != nil {
			return err
		}
		posted++
		return conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
			Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{to},
			RemoteAddr: part.Addr, RKey: part.RKey})
	}
	for range sinkDepth {
		if err := post(); err != nil {
			return err
		}
	}
	var wc [sinkDepth]ibverbs.WC
	for done := 0; done < pieces; {
		n, err := conn.SendCQ().PollWait(ctx, wc[:])
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			if err := wc[i].Err(); err != nil {
				return err
			}
			if arrived != nil {
				if err := arrived(done); err != nil {
					return err
				}
			}
			done++
			if err := post(); err != nil {
				return err
			}
		}
	}
	return nil
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	testkit.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
