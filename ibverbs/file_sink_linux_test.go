package ibverbs_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
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
	sinkDir   = flag.String("sink.dir", "", "BenchmarkFileSink: the `directory` of the new file")
	sinkPeers = flag.Int("sink.peers", 1,
		"BenchmarkFileSink: how many connections each fill a part of the file at the same time")
	sinkBeside = flag.Bool("sink.beside", false, "BenchmarkFileSink: measure Reads of 64 bytes on "+
		"another connection, too")
	sinkOwn = flag.Bool("sink.own", false,
		"BenchmarkFileSink: each connection's part is a file of its own")
)

const (
	sinkSize  = 256 << 20 // total
	sinkRead  = 1 << 20   // bytes of a Read
	sinkDepth = 8         // Reads under way
	sinkFrom  = 16 << 20  // length of the source, which is read repeatedly
)

func init() { processes["sink source"] = serveSink }

// BenchmarkFileSink measures RDMA Reads of 1 MiB from another process over the loopback into a new
// file: a mapped file (mapfile), a file as an object (object), and memory from which the program
// writes to the file (program). With -sink.peers several connections fill parts of the file at the
// same time, or with -sink.own their own files. Each iteration does all of these, in a different
// order. The metrics are medians of bandwidth in MB per second, and of CPU time of this process in
// seconds per GiB, both also relative to program in the same iteration. -sink.beside adds the 50th
// and 99th percentile of the time of concurrent Reads of 64 bytes on another connection of the
// device.
//
//	go test -run '^$' -bench FileSink -benchtime 9x ./ibverbs -sink.dir /dev/shm
func BenchmarkFileSink(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	vctx := testkit.Must(openSink())(b)
	b.Cleanup(func() { testkit.OK(b, vctx.Close()) })
	peers := dialSinks(b, ctx, vctx, *sinkPeers)
	if *sinkBeside {
		peers = append(peers, dialSinks(b, ctx, vctx, 1)...)
	}
	rate, cpu := make(map[string][]float64), make(map[string][]float64)
	rtts := make(map[string][]time.Duration)
	kinds := strings.Split(*sinkKinds, ",")
	for i := range b.N {
		for j := range kinds {
			kind := kinds[(i+j)%len(kinds)]
			stop := func() []time.Duration { return nil }
			if *sinkBeside {
				stop = readBeside(b, &peers[*sinkPeers])
			}
			took, used := fillSink(b, peers[:*sinkPeers], kind)
			rtts[kind] = append(rtts[kind], stop()...)
			rate[kind] = append(rate[kind], sinkSize/1e6/took.Seconds())
			cpu[kind] = append(cpu[kind], used.Seconds()*(1<<30)/sinkSize)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, kind := range kinds {
		b.ReportMetric(median(rate[kind]), kind+"-MB/s")
		b.ReportMetric(median(cpu[kind]), kind+"-CPU-s/GiB")
		if all := rtts[kind]; len(all) > 0 {
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), kind+"-p50-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), kind+"-p99-us")
		}
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

// sinkPeer is a connection to a process that serves Reads, and the region that it offers.
type sinkPeer struct {
	conn *rdmacm.Conn
	from ibverbs.RemoteRegion
}

// dialSinks starts a process that serves Reads, and connects to it n times.
func dialSinks(b *testing.B, ctx context.Context, vctx *ibverbs.Context, n int) (peers []sinkPeer) {
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
	for range n {
		var p sinkPeer
		p.conn = testkit.Must(rdmacm.Dial(ctx, vctx, netip.MustParseAddrPort(addr),
			&rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: sinkDepth}}))(b)
		b.Cleanup(func() { testkit.OK(b, p.conn.Close()) })
		testkit.OK(b, p.from.UnmarshalBinary(p.conn.PrivateData()[:ibverbs.RemoteRegionSize]))
		peers = append(peers, p)
	}
	return peers
}

// serveSink is the process that serves Reads, until its standard input ends.
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
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	fmt.Println(l.Addr())
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return nil // the standard input has ended
		}
		if err := serveReads(ctx, req); err != nil {
			return err
		}
	}
}

// serveReads accepts a connection, and names the readable region in the private data.
func serveReads(ctx context.Context, req *rdmacm.Request) error {
	_, err := req.Accept(ctx, &rdmacm.ConnConfig{
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
	return err
}

// fillSink fills new files: one, or one for each peer. It returns the time, and the CPU time of
// this process, from the first Read until all data is in the files.
func fillSink(b *testing.B, peers []sinkPeer, kind string) (took, used time.Duration) {
	b.Helper()
	n := sinkSize / len(peers)
	var files []*os.File
	for i := range peers {
		if i == 0 || *sinkOwn {
			f := testkit.Must(os.CreateTemp(cmp.Or(*sinkDir, b.TempDir()), "govs-sink"))(b)
			defer func() { testkit.OK(b, f.Close()) }()
			testkit.OK(b, os.Remove(f.Name()))
			testkit.OK(b, f.Truncate(sinkSize))
			files = append(files, f)
		}
	}
	var fills []func() error
	var parts []filePart
	for i, p := range peers {
		part := filePart{files[i%len(files)], int64(i * n)}
		mr, fill := p.fill(b, part, n, kind)
		defer func() { testkit.OK(b, mr.Close()) }()
		parts, fills = append(parts, part), append(fills, fill)
	}
	done := make(chan error)
	begin, before := time.Now(), cpuTime(b)
	for _, fill := range fills {
		go func() { done <- fill() }()
	}
	var err error
	for range fills {
		err = errors.Join(err, <-done)
	}
	took, used = time.Since(begin), cpuTime(b)-before
	testkit.OK(b, err)
	got, want := make([]byte, sinkRead), pattern(sinkFrom, 1)
	for _, part := range parts {
		for off := 0; off < n; off += sinkRead {
			testkit.Must(part.ReadAt(got, int64(off)))(b)
			if !bytes.Equal(got, want[off%sinkFrom:][:sinkRead]) {
				b.Fatalf("%s: other bytes in the file after %d", kind, part.off+int64(off))
			}
		}
	}
	return took, used
}

// filePart is the part of a file from off on.
type filePart struct {
	f   *os.File
	off int64
}

func (p filePart) ReadAt(b []byte, off int64) (int, error)  { return p.f.ReadAt(b, p.off+off) }
func (p filePart) WriteAt(b []byte, off int64) (int, error) { return p.f.WriteAt(b, p.off+off) }

// fill returns a function that fills n bytes of a part of a file, and the region that it uses.
func (p *sinkPeer) fill(b *testing.B, part filePart, n int, kind string) (mr *ibverbs.MR,
	fill func() error) {
	b.Helper()
	rights := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	slots := n / sinkRead
	var arrived func(i int) error // the Read of piece i
	var err error
	switch kind {
	case "mapfile":
		mr, err = p.conn.PD().MapFile(part.f, part.off, n, rights)
	case "object":
		mr, err = p.conn.PD().RegObject(part, int64(n), rights)
	case "program":
		slots = sinkDepth
		mr, err = p.conn.PD().AllocMR(sinkDepth*sinkRead, rights)
		arrived = func(i int) error {
			_, err := part.WriteAt(mr.Bytes()[i%slots*sinkRead:][:sinkRead], int64(i)*sinkRead)
			return err
		}
	default:
		b.Fatalf("-sink.kinds: %q is neither program, mapfile nor object", kind)
	}
	testkit.OK(b, err)
	return mr, func() error {
		return readAll(b.Context(), p.conn, mr, p.from, n/sinkRead, slots, arrived)
	}
}

// readBeside repeatedly reads 64 bytes until stop is called, which returns how long each Read took.
func readBeside(b *testing.B, p *sinkPeer) (stop func() []time.Duration) {
	b.Helper()
	mr := testkit.Must(p.conn.PD().AllocMR(64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(b)
	to := testkit.Must(mr.SGE(0, 64))(b)
	var over atomic.Bool
	var rtts []time.Duration
	done := make(chan error)
	go func() {
		done <- func() error {
			var wc [1]ibverbs.WC
			for !over.Load() {
				begin := time.Now()
				if err := p.conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
					Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{to},
					RemoteAddr: p.from.Addr, RKey: p.from.RKey}); err != nil {
					return err
				}
				if _, err := p.conn.SendCQ().PollWait(b.Context(), wc[:]); err != nil {
					return err
				}
				if err := wc[0].Err(); err != nil {
					return err
				}
				rtts = append(rtts, time.Since(begin))
			}
			return nil
		}()
	}()
	return func() []time.Duration {
		over.Store(true)
		testkit.OK(b, errors.Join(<-done, mr.Close()))
		return rtts
	}
}

// readAll reads pieces of a file: piece i into slot i of mr, or into a slot that is free again
// because arrived has returned.
func readAll(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, from ibverbs.RemoteRegion,
	pieces, slots int, arrived func(int) error) error {
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

// cpuTime returns the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	testkit.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
