package crc32c

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
)

type implementation struct {
	name   string
	update func(crc uint32, p []byte) uint32
	copy   func(crc uint32, dst, src []byte) uint32
}

var fallback = implementation{stdlib.name(), updateStdlib, copyStdlib}

// each runs test for every implementation that the CPU supports, and for the exported functions.
func each(t *testing.T, test func(t *testing.T, f implementation)) {
	for _, f := range append(implementations(), implementation{"exported", Update, Copy}) {
		t.Run(f.name, func(t *testing.T) { test(t, f) })
	}
}

const fill = 0xa5

// octets returns n random octets.
func octets(r *rand.ChaCha8, n int) []byte {
	p := make([]byte, n)
	r.Read(p)
	return p
}

// alignedTo64 returns the index of the first octet of p at an address that is a
// multiple of 64.
func alignedTo64(p []byte) int { return int(-uintptr(unsafe.Pointer(&p[0])) & 63) }

// source returns a generator with its own seed, which it prints.
func source(t testing.TB) *rand.ChaCha8 {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var s [32]byte
	for i := range 8 {
		s[i] = byte(seed >> (8 * i))
	}
	return rand.NewChaCha8(s)
}

func reference(crc uint32, p []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), p)
}

// The examples of RFC 3720 appendix B.4, which prints the CRC in wire order, lowest octet first.
//
//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
func TestVectors(t *testing.T) {
	ascending, descending := make([]byte, 32), make([]byte, 32)
	for i := range ascending {
		ascending[i], descending[31-i] = byte(i), byte(i)
	}
	readCommand, err := hex.DecodeString(strings.ReplaceAll(
		"01c00000 00000000 00000000 00000000 14000000 00000400"+
			"00000014 00000018 28000000 00000000 02000000 00000000", " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, f implementation) {
		for _, v := range []struct {
			name string
			p    []byte
			want uint32
		}{
			{"nothing", nil, 0},
			{"32 octets of zeroes", make([]byte, 32), 0x8a9136aa},
			{"32 octets of ones", bytes.Repeat([]byte{0xff}, 32), 0x62a8ab43},
			{"32 octets of ascending values", ascending, 0x46dd794e},
			{"32 octets of descending values", descending, 0x113fdb5c},
			{"an iSCSI SCSI Read (10) Command PDU", readCommand, 0xd9963a56},
			{"the check value of the catalogues", []byte("123456789"), 0xe3069283},
		} {
			if got := f.update(0, v.p); got != v.want {
				t.Errorf("%s: %#08x, want %#08x", v.name, got, v.want)
			}
			dst := make([]byte, len(v.p))
			if got := f.copy(0, dst, v.p); got != v.want || !bytes.Equal(dst, v.p) {
				t.Errorf("%s copied: %#08x, want %#08x", v.name, got, v.want)
			}
		}
	})
}

// maxLen makes each kernel run its loop several times and have every possible tail.
const maxLen = 4096

func TestEveryLengthAtEveryAlignment(t *testing.T) {
	r := source(t)
	buf := octets(r, 64+maxLen+64)
	start := alignedTo64(buf)
	each(t, func(t *testing.T, f implementation) {
		begin := uint32(r.Uint64())
		for align := range 64 {
			p := buf[start+align:][:maxLen]
			want := begin
			for n := range maxLen + 1 {
				if got := f.update(begin, p[:n]); got != want {
					t.Fatalf("%d octets at alignment %d after %#x: %#08x, want %#08x", n, align, begin, got, want)
				}
				if n < maxLen {
					want = reference(want, p[n:n+1])
				}
			}
		}
	})
}

// Copy writes the octets of src and no others, at every alignment of both.
func TestCopyEveryLengthAtEveryAlignment(t *testing.T) {
	r := source(t)
	const guard = 128
	src := octets(r, 64+maxLen+64)
	untouched := bytes.Repeat([]byte{fill}, guard+64+maxLen+guard)
	room := bytes.Clone(untouched)
	from, to := alignedTo64(src), guard-guard%64+alignedTo64(room)
	each(t, func(t *testing.T, f implementation) {
		begin := uint32(r.Uint64())
		for align := range 64 {
			p := src[from+align:][:maxLen]
			want := begin
			for n := range maxLen + 1 {
				at := to + (align*29+n)%64
				dst := room[at : at+n+guard/2]
				if got := f.copy(begin, dst, p[:n]); got != want {
					t.Fatalf("%d octets at alignment %d after %#x: %#08x, want %#08x", n, align, begin, got, want)
				}
				if !bytes.Equal(dst[:n], p[:n]) {
					t.Fatalf("%d octets from alignment %d to %d: the copy differs", n, align, at%64)
				}
				copy(dst[:n], untouched)
				if n%61 == 0 || n == maxLen || testing.Short() {
					if !bytes.Equal(room, untouched) {
						t.Fatalf("lengths up to %d from alignment %d: octets outside were written", n, align)
					}
				}
				if n < maxLen {
					want = reference(want, p[n:n+1])
				}
			}
		}
	})
}

func TestLongMessages(t *testing.T) {
	r := source(t)
	rnd := rand.New(r)
	each(t, func(t *testing.T, f implementation) {
		for range 60 {
			buf := octets(r, rnd.IntN(3<<20))
			p := buf[min(len(buf), rnd.IntN(64)):]
			begin := rnd.Uint32()
			want := reference(begin, p)
			if got := f.update(begin, p); got != want {
				t.Errorf("%d octets after %#x: %#08x, want %#08x", len(p), begin, got, want)
			}
			dst := bytes.Repeat([]byte{fill}, len(p)+64)
			if got := f.copy(begin, dst, p); got != want || !bytes.Equal(dst[:len(p)], p) {
				t.Errorf("%d octets copied after %#x: %#08x, want %#08x", len(p), begin, got, want)
			}
			if i := slices.IndexFunc(dst[len(p):], func(b byte) bool { return b != fill }); i >= 0 {
				t.Errorf("copying %d octets wrote octet %d after them", len(p), i)
			}
		}
	})
}

// TestLengthsOfFPDUs: lengths up to the longest FPDUs, for kernels that divide a message into
// parts.
func TestLengthsOfFPDUs(t *testing.T) {
	buf := octets(source(t), 68<<10)
	each(t, func(t *testing.T, f implementation) {
		dst := make([]byte, len(buf))
		for n := 4 << 10; n < len(buf)-64; n += 61 {
			p := buf[n%64:][:n]
			want := reference(1, p)
			if got := f.update(1, p); got != want {
				t.Fatalf("%d octets: %#08x, want %#08x", n, got, want)
			}
			if got := f.copy(1, dst, p); got != want || !bytes.Equal(dst[:n], p) {
				t.Fatalf("%d octets copied: %#08x, want %#08x", n, got, want)
			}
		}
	})
}

// A message may be processed in pieces, by either function.
func TestPieces(t *testing.T) {
	r := source(t)
	rnd := rand.New(r)
	each(t, func(t *testing.T, f implementation) {
		for range 2000 {
			p := octets(r, rnd.IntN(6000))
			dst := make([]byte, len(p))
			want := reference(0, p)
			var crc uint32
			var cuts []int
			for at := 0; at < len(p); {
				n := min(len(p)-at, 1+rnd.IntN(1<<rnd.IntN(12)))
				if piece := p[at : at+n]; rnd.IntN(2) == 0 {
					crc = f.update(crc, piece)
					copy(dst[at:], piece)
				} else {
					crc = f.copy(crc, dst[at:], piece)
				}
				at += n
				cuts = append(cuts, at)
			}
			if crc != want || !bytes.Equal(dst, p) {
				t.Fatalf("cut at %v: %#08x, want %#08x", cuts, crc, want)
			}
		}
	})
}

func TestCopyIntoTooLittle(t *testing.T) {
	dst := bytes.Repeat([]byte{fill}, 99)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if !bytes.Equal(dst, bytes.Repeat([]byte{fill}, 99)) {
			t.Error("dst was written")
		}
	}()
	Copy(0, dst[:40], make([]byte, 41)) // the capacity would suffice
}

func TestNoAllocation(t *testing.T) {
	src, dst := make([]byte, 1500), make([]byte, 1500)
	wantAllocs(t, 0, testing.AllocsPerRun(100, func() {
		crc := Update(0, src)
		Copy(crc, dst, src[:80])
	}))
	if assembly {
		wantAllocs(t, 0, testing.AllocsPerRun(100, func() {
			var src, dst [300]byte // on the stack, unless they escape
			crc := Update(0, src[:])
			Copy(crc, dst[:], src[:20])
		}))
	}
}

func wantAllocs(t *testing.T, want, got float64) {
	t.Helper()
	if got != want {
		t.Errorf("%v allocations, want %v", got, want)
	}
}

// The chosen kernel is the best of those that work on this CPU.
func TestKernel(t *testing.T) {
	list := implementations()
	best := stdlib.name()
	if last := list[len(list)-1]; last.name != "stdlib, by jump" {
		best = last.name
	}
	if Kernel() != best {
		t.Errorf("kernel %s, and %s would work", Kernel(), best)
	}
	t.Logf("kernel %s", Kernel())
}

// The build without assembly, and the build for another architecture.
func TestOtherBuilds(t *testing.T) {
	for _, c := range []struct {
		env  string
		args []string
	}{
		{"GOARCH=arm64", []string{"vet", "."}},
		{"CGO_ENABLED=0", []string{"test", "-count=1", "-tags=purego", "-run=^(TestVectors|TestPieces|TestCopyIntoTooLittle|TestNoAllocation|TestKernel)$", "."}},
	} {
		if !assembly && c.args[0] == "test" {
			continue // this is that test
		}
		cmd := exec.Command("go", c.args...)
		cmd.Env = append(os.Environ(), c.env)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s go %s: %v\n%s", c.env, strings.Join(c.args, " "), err, out)
		}
	}
}

func FuzzAgainstStdlib(f *testing.F) {
	f.Add(uint32(0), []byte(nil), uint16(0))
	for _, n := range []int{1, 7, 8, 9, 63, 64, 127, 128, 129, 255, 256, 511, 512, 513, 1460, 4000} {
		f.Add(uint32(n)*0x9e3779b1, bytes.Repeat([]byte{byte(n), 0x80, 0}, n), uint16(n/2))
	}
	list := implementations()
	f.Fuzz(func(t *testing.T, begin uint32, p []byte, cut uint16) {
		want := reference(begin, p)
		at := min(int(cut), len(p))
		for _, f := range list {
			if got := f.update(f.update(begin, p[:at]), p[at:]); got != want {
				t.Errorf("%s: %d octets after %#x, cut at %d: %#08x, want %#08x", f.name, len(p), begin, at, got, want)
			}
			dst := make([]byte, len(p))
			if got := f.copy(f.copy(begin, dst, p[:at]), dst[at:], p[at:]); got != want || !bytes.Equal(dst, p) {
				t.Errorf("%s: %d octets copied after %#x, cut at %d: %#08x, want %#08x", f.name, len(p), begin, at, got, want)
			}
		}
	})
}

func ExampleCopy() {
	header, payload := []byte{0x00, 0x10}, []byte("sixteen octets..")
	stream := make([]byte, 18)
	crc := Copy(0, stream, header)
	crc = Copy(crc, stream[2:], payload)
	fmt.Println(crc == Update(0, stream))
	// Output: true
}

// TestCopyOfWhatChanges copies a source that is being written, as may happen with an RDMA Read. The
// CRC must be that of the copied octets. This is a race, so the test runs only without the race
// detector.
func TestCopyOfWhatChanges(t *testing.T) {
	if testkit.Race {
		t.Skip("it is a race; ci/test runs this without the race detector")
	}
	src := make([]byte, 64<<10)
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() {
		for x := uint64(1); ; {
			select {
			case <-done:
				return
			default:
			}
			for range 1 << 10 {
				x = x*6364136223846793005 + 1442695040888963407
				src[x>>33%uint64(len(src))]++
			}
		}
	})
	dst := make([]byte, len(src))
	for i := range 1_000_000 {
		n := []int{1, 63, 64, 127, 128, 192, 1458, 4096, 4100, 12032, 32544, 65458}[i%12]
		at := i * 7919 % (len(src) - n + 1)
		if got, want := Copy(0, dst[:n], src[at:at+n]), Update(0, dst[:n]); got != want {
			t.Fatalf("%d octets at %d: CRC %#08x of a copy whose CRC is %#08x", n, at, got, want)
		}
	}
}

var benchSizes = []int{16, 64, 80, 256, 1460, 4096, 64 << 10, 1 << 20}

// keep holds the results, so that the compiler does not remove calls.
var keep uint32

// Every implementation that the CPU supports, besides the exported function. Messages are
// independent, like FPDUs, and begin 16 octets after a 64-octet boundary, like payload after a
// header.
func BenchmarkUpdate(b *testing.B) {
	benchmark(b, func(f implementation, _, src []byte) { keep = f.update(0, src) })
}

// The same with a copy to another buffer; stdlib copies and then calls hash/crc32, piece by piece.
func BenchmarkCopy(b *testing.B) {
	benchmark(b, func(f implementation, dst, src []byte) { keep = f.copy(0, dst, src) })
}

func benchmark(b *testing.B, one func(f implementation, dst, src []byte)) {
	for _, n := range benchSizes {
		for _, f := range append(implementations(), implementation{"exported", Update, Copy}) {
			b.Run(fmt.Sprintf("%d/%s", n, f.name), func(b *testing.B) {
				buf, dst := make([]byte, n+128), make([]byte, n)
				src := buf[alignedTo64(buf)+16:][:n]
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					one(f, dst, src)
				}
			})
		}
	}
}

// The cost of one FPDU of a small RDMA Write whose header and payload are separate: 16 octets, and
// then the payload.
func BenchmarkFPDU(b *testing.B) {
	header, payload := make([]byte, 16), make([]byte, 64)
	for _, f := range append(implementations(), implementation{"exported", Update, Copy}) {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keep = f.update(f.update(0, header), payload)
			}
		})
	}
}

// For any number of blocks, any length and any gap between them, each block has the same CRC as
// alone, and octets of a gap have no influence.
func TestEachIsUpdateOfEach(t *testing.T) {
	r := source(t)
	for _, gap := range []int{0, 1, 4, 61} {
		for n := range 700 {
			count := 1 + int(r.Uint64()%19)
			p := octets(r, count*(n+gap))
			p = p[:len(p)-gap] // there is no gap after the last block
			got := make([]uint32, count)
			Each(got, p, n, n+gap)
			for i := range got {
				if want := reference(0, p[i*(n+gap):][:n]); got[i] != want {
					t.Fatalf("block %d of %d, %d octets, gap %d: %#08x, want %#08x", i, count, n, gap, got[i], want)
				}
			}
		}
	}
	Each(nil, nil, 80, 84)
}

// A wrong argument of the caller must not cause a read beyond p.
func TestEachOutsideOfItsOctets(t *testing.T) {
	for _, c := range []struct{ count, octets, n, stride int }{
		{4, 4*84 - 5, 80, 84}, {8, 7*84 + 79, 80, 84}, {5, 4*84 + 79, 80, 84}, {1, 3, 4, 4},
		{4, 400, 80, 79}, {4, 400, -1, 84}, {4, 0, 80, 84},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			Each(make([]uint32, c.count), make([]byte, c.octets, 2*c.octets+1000), c.n, c.stride)
		})
	}
}

// Consecutive FPDUs of short messages: together, and one at a time.
func BenchmarkEach(b *testing.B) {
	for _, n := range []int{16, 80, 144, 272} {
		crcs := make([]uint32, 8)
		p := make([]byte, len(crcs)*(n+4))
		b.Run(fmt.Sprintf("%d/each", n), func(b *testing.B) {
			for range b.N {
				Each(crcs, p, n, n+4)
			}
		})
		b.Run(fmt.Sprintf("%d/alone", n), func(b *testing.B) {
			for range b.N {
				eachAlone(crcs, p, n, n+4)
			}
		})
	}
}
