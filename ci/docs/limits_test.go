package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// limitation is an item of a section "Limitations": the words that it begins with, and the
// scenarios and tests that show it. A test has its folder if several packages have a test of the
// name.
type limitation struct{ begins, shown string }

// limitations has the limitations of each package whose documentation has such a section. A package
// does not write down a limitation that no test shows.
var limitations = map[string][]limitation{
	"ibverbs/doc.go": {
		{"QPs are reliable connected ones", "ibverbs.TestWrongUses TestNotBound"},
		{"What else there is depends on the device", "TestBadErrnos TestBadWindows TestImmediateRefusedAtPost protection/read-no-right"},
	},
	"ibverbs/rdmacm/doc.go": {
		{"Connections are of the port space", "TestNotBound"},
	},
	"ibverbs/examples/9p/p9/doc.go": {
		{"A path below the root has at most 4,095 bytes", "TestLongPaths"},
		{"Locks are refused", "p9.TestUnsupported"},
		{"Extended attributes and device files", "p9.TestUnsupported"},
		{"Versions 9P2000 and 9P2000.u", "p9.TestUnsupported"},
	},
	"ibverbs/rsocket/doc.go": {
		{"iWARP only", "TestNotOnRoCE"},
		{"No memory of the peer can be mapped", "TestConnNoIOMap"},
		{"Two ends of different byte order", "proto.TestStreams"},
		{"The end that accepted may send only after", "TestConnAcceptorIsSilent"},
		{"A server in C on siw sends too early", "TestExecServerSpeaksTooSoon mpa/reply-data-after"},
		{"On siw, Close while the peer writes", "TestConnClosesUnderFlood"},
		{"The peer's Close ends both directions", "rsocket.TestConnPeerCloses"},
		{"A peer in C may end the connection", "TestConnCreditsKept"},
	},
	"provider/engine/doc.go": {
		{"RC only, over TCP only", "TestCreateQPArguments"},
		{"Immediate data has the 32 bits", "TestImmediateOnTheWire TestImmediateStaysWithItsWrite"},
		{"Rights of a region are for all QPs", "TestPeersAccess window/other-connection"},
		{"Atomic operations are the CPU's", "TestAtomicAlignmentIsOfMemory TestBadAtomicRequests"},
		{"AccessRemoteAtomic without Options.Extensions", "TestAtomicRightAndCap"},
		{"A CQ that overflows loses", "TestE2ECQOverflow"},
		{"One completion vector", "TestCreateCQArguments"},
		{"TCP segments consist of whole FPDUs", "TestSegmentsAreWholeFPDUs TestEthernetToSiw"},
		{"Device.AsyncEvent keeps 256 events", "TestAsyncQueue"},
	},
	"provider/engine/memnet/memnet.go": {
		{"Nothing is lost and sent again", "memnet.TestContract memnet.TestReach"},
	},
	"provider/kernel/doc.go": {
		{"PostSend can return ENOTCONN", "kernel.testPostsBeforeConnection TestDrainThatIsTakenWithAnError"},
		{"rxe does not enforce the bounds of a memory window", "kernel.TestReference kernel.testRxeUnbound"},
		{"On InfiniBand and RoCE a QP that fails", "kernel.testRxeFailure"},
		{"siw before Linux 6.8 does not report", "kernel.testExternalQP"},
		{"A completion of siw never has WCWithInv", "kernel.testSendWithInvalidate send/with-invalidate"},
		{"QP.Cause is always nil", "ibverbs.TestWrongUses"},
		{"librdmacm opens all RDMA devices", "TestSiwRemoval"},
		{"AccessRemoteInvalidate has no effect", "kernel.testRxeWindows"},
		{"Between two ends of siw, work that waits for Reads", "TestConnDrainUnderReadsBothWays"},
		{"siw cannot resize an SRQ", "TestBadSRQ kernel.testNoLastWQE"},
		{"A thread must share the credentials", "kernel.testCredentials"},
		{"The package does not call ibv.ForkInit", "TestMemoryForkExec"},
	},
	"provider/iwarp/ddp/doc.go": {
		{"There is one DDP stream per LLP stream", "TestUntaggedQueueStory ddp.TestCheckUntagged"},
		{"On streams of the RDMA Consortium's version", "TestRDMACStream"},
		{"The RsvdULP field is opaque", "TestOneWrongField"},
	},
	"provider/iwarp/mpa/doc.go": {
		{"Revision 0, the RDMA Consortium's", "TestRDMACFrames TestRDMACMatrix"},
		{"FPDUs are found in stream order only", "TestReceiverWrongMarker"},
		{"With Markers, the ULPDU is copied", "TestReceiverOwnership"},
		{"An FPDU with a corrupted ULPDU_Length", "TestReceiverBitFlips"},
		{"A receiver accepts ULPDU_Length up to 65535", "TestReceiverLargest"},
		{"A ULPDU of any length is passed on", "mpa/ulpdu-length-1"},
	},
	"provider/iwarp/rdmap/doc.go": {
		{"Streams of the RDMA Consortium's version", "TestRDMACStream"},
		{"A Read Response must fill its sink", "TestReadResponsesAnswerReads"},
		{"The Terminate layouts of siw", "TestBothLayouts TestDefinedErrorsSurviveEitherLayout"},
	},
	"provider/conformance/replay/replay.go": {
		{"The connection has to be in the capture", "replay.TestRefused"},
		{"The provider's messages follow one another", "replay.TestCorpus"},
		{"Octets of the provider's memory", "TestEmptyReadAnywhere"},
		{"Rejected connections", "replay.TestRefused"},
	},
	"provider/conformance/wire/wire.go": {
		{"A connection is decoded from its MPA Request on", "TestCaptureBeginsLate"},
		{"Decoding of a direction ends", "TestLostPackets"},
		{"Fragments of IP packets", "TestUnusualPackets"},
	},
	"cgo/ibv/doc.go":    {{"The package binds what RC queue pairs need", "TestNotBound"}},
	"cgo/rdmacm/doc.go": {{"The package binds the asynchronous interface", "TestNotBound"}},
}

// TestLimitations checks that each item of each section "Limitations" names a test, in the list
// above, and that the list has nothing else.
func TestLimitations(t *testing.T) {
	found := 0
	for path := range goFiles(t) {
		items := limitationsOf(document(t, path))
		found += len(items)
		for _, l := range limitations[path] {
			if !slices.ContainsFunc(items, func(item string) bool { return strings.HasPrefix(item, l.begins) }) {
				t.Errorf("%s has no limitation %q", path, l.begins)
			}
		}
		for _, item := range items {
			if !slices.ContainsFunc(limitations[path], func(l limitation) bool { return strings.HasPrefix(item, l.begins) }) {
				t.Errorf("%s: no test shows %q", path, item)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d limitations were found", found)
	}
	suite, have := suiteSlugs(), testFuncs(t)
	for path, list := range limitations {
		for _, l := range list {
			for _, name := range strings.Fields(l.shown) {
				if why := unresolved(name, suite, have); why != "" {
					t.Errorf("%s: %q: %s", path, l.begins, why)
				}
			}
		}
	}
}

var bullet = regexp.MustCompile(`(?m)^//   - `)

// limitationsOf returns the items of the section in the documentation of a package: its bullets, or
// its paragraphs if it has no bullets.
func limitationsOf(source string) (items []string) {
	_, section, ok := strings.Cut(source, "// # Limitations\n//\n")
	if !ok {
		return nil
	}
	section, _, _ = strings.Cut(section, "\npackage ")
	section, _, _ = strings.Cut(section, "\n// # ")
	cut := "\n//\n"
	if bullet.MatchString(section) {
		cut = "//   - "
	}
	for _, item := range strings.Split(section, cut) {
		words := strings.Fields(strings.ReplaceAll(item, "//", ""))
		if len(words) > 0 {
			items = append(items, strings.Join(words, " "))
		}
	}
	return items
}

// goFiles yields the paths below root of all Go files that are not tests.
func goFiles(t *testing.T) map[string]bool {
	t.Helper()
	files := make(map[string]bool)
	walkGo(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			files[path] = true
		}
	})
	return files
}

var function = regexp.MustCompile(`(?m)^func ((?:Test|test)[A-Z]\w*)\(`)

// testFuncs returns the folders of all tests, by name. Functions called testX, which are parts of
// tests, count too.
func testFuncs(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	walkGo(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, m := range function.FindAllStringSubmatch(document(t, path), -1) {
			found[m[1]] = append(found[m[1]], filepath.Dir(path))
		}
	})
	return found
}

// walkGo calls f with the path below root of each Go file.
func walkGo(t *testing.T, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "out" || d.Name() == "testdata" || d.Name() == ".git"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go"):
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			f(rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
