package engine

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// slow is an object in memory that takes its time for each answer, like an object behind a network.
type slow struct {
	b     []byte
	takes time.Duration
}

func (o *slow) ReadAt(b []byte, off int64) (int, error) {
	time.Sleep(o.takes)
	return copy(b, o.b[off:]), nil
}

// BenchmarkObjectRead is RDMA Reads of an object, one after the other: of one that
// takes 1 or 5 ms for each answer, and of a file that is in the page cache.
func BenchmarkObjectRead(b *testing.B) {
	const most = 8 << 20
	octets := make([]byte, most)
	pattern(octets, 1)
	file := testkit.Must(os.Create(b.TempDir() + "/file"))(b)
	defer file.Close()
	testkit.Must(file.Write(octets))(b)
	for _, o := range []struct {
		name   string
		object io.ReaderAt
	}{{"1ms", &slow{octets, time.Millisecond}}, {"5ms", &slow{octets, 5 * time.Millisecond}}, {"file", file}} {
		for _, size := range []int{64 << 10, 1 << 20, most} {
			b.Run(fmt.Sprintf("%s/size=%d", o.name, size), func(b *testing.B) {
				x, y := tcpPair(b, Options{}, true, sideOptions{})
				dst := x.reg(size, provider.AccessLocalWrite)
				src := testkit.Must(y.pd.RegObject(o.object, most, provider.AccessRemoteRead))(b)
				defer func() { testkit.OK(b, src.Close()) }()
				wr := []provider.SendWR{{Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
					SGList: []provider.SGE{dst.sge(0, size)}, RemoteAddr: src.Addr(), RKey: src.RKey()}}
				b.SetBytes(int64(size))
				b.ResetTimer()
				for range b.N {
					x.send(wr...)
					x.spin(1)
				}
			})
		}
	}
}
