package capture

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A Part is one of the captures that Merge puts into one file.
type Part struct {
	File      string // pcapng, as Stop writes it: one interface
	Interface string // what its interface is to be called
	Comment   string // what its interface is to say; may be empty
}

// Merge writes the packets of all parts to one pcapng file, each part as an interface
// of its own, in order of time. The packets of one part stay in the order in which they
// arrived, even where their times, taken on several CPUs, say otherwise. The parts'
// files stay. The file called name is either written completely or not at all.
func Merge(name, comment string, parts ...Part) error {
	if len(parts) == 0 {
		return errors.New("no captures to merge")
	}
	var interfaces []pcapgo.NgInterface
	var packets []packet
	for i, part := range parts {
		link, found, err := readPart(part.File)
		if err != nil {
			return fmt.Errorf("%s: %w", part.File, err)
		}
		interfaces = append(interfaces, pcapgo.NgInterface{
			Name: part.Interface, Comment: part.Comment, LinkType: link, TimestampResolution: nanoseconds,
		})
		var latest int64
		for _, p := range found {
			latest = max(latest, p.time.UnixNano())
			p.ifc, p.order = i, latest
			packets = append(packets, p)
		}
	}
	slices.SortStableFunc(packets, func(a, b packet) int { return cmp.Compare(a.order, b.order) })
	return writeFile(name, comment, interfaces, packets)
}

// readPart reads a file of one interface. A file without packets may lack it;
// then its link type does not matter.
func readPart(name string) (layers.LinkType, []packet, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	opts := pcapgo.DefaultNgReaderOptions
	opts.ErrorOnMismatchingLinkType = true
	r, err := pcapgo.NewNgReader(bufio.NewReader(f), opts)
	if err != nil {
		return 0, nil, err
	}
	var packets []packet
	for {
		data, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return r.LinkType(), packets, nil
		}
		if err != nil {
			return 0, nil, fmt.Errorf("packet %d: %w", len(packets)+1, err)
		}
		packets = append(packets, packet{time: ci.Timestamp, data: data, length: ci.Length})
	}
}

// nanoseconds is the resolution of times in the files written here.
const nanoseconds = 9

// writeFile writes packets as a pcapng file.
func writeFile(name, comment string, interfaces []pcapgo.NgInterface, packets []packet) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*.pcapng")
	if err != nil {
		return fmt.Errorf("capture file %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("capture file %s: %w", name, err)
		}
	}()
	if err := encode(f, comment, interfaces, packets); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func encode(f io.Writer, comment string, interfaces []pcapgo.NgInterface, packets []packet) error {
	buf := bufio.NewWriter(f)
	opts := pcapgo.DefaultNgWriterOptions
	opts.SectionInfo.Application = "govs-verbs-test"
	opts.SectionInfo.Comment = comment
	w, err := pcapgo.NewNgWriterInterface(buf, interfaces[0], opts)
	if err != nil {
		return err
	}
	for _, ifc := range interfaces[1:] {
		if _, err := w.AddInterface(ifc); err != nil {
			return err
		}
	}
	for _, p := range packets {
		ci := gopacket.CaptureInfo{
			Timestamp: p.time, CaptureLength: len(p.data), Length: max(p.length, len(p.data)), InterfaceIndex: p.ifc,
		}
		if err := w.WritePacket(ci, p.data); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return buf.Flush()
}
