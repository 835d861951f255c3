package tshark

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
)

// Witness asks tshark about captures. It is a conformance.Judge's Witness.
//
// Starting tshark takes longer than decoding, so captures are put into one file per CPU.
// A connection belongs to the exhibit with its port; exhibits with the same port, or with
// none, are never in one file.
func Witness(ctx context.Context, exhibits []conformance.Exhibit) []conformance.Witness {
	out := make([]conformance.Witness, len(exhibits))
	var workers sync.WaitGroup
	for _, batch := range batches(exhibits, runtime.GOMAXPROCS(0)) {
		workers.Go(func() { hear(ctx, exhibits, batch, out) })
	}
	workers.Wait()
	return out
}

// batches divides exhibits, named by their indices, into at least n batches of about the
// same size, or into one for each exhibit if there are fewer. No port comes twice in a batch.
func batches(exhibits []conformance.Exhibit, n int) [][]int {
	n = min(n, len(exhibits))
	out := make([][]int, n)
	bytes := make([]int64, n)
	ports := make([]map[uint16]bool, n)
	for i := range exhibits {
		best := -1
		for k := range out {
			free := len(out[k]) == 0 || exhibits[i].Port != 0 && !ports[k][exhibits[i].Port] && !ports[k][0]
			if free && (best < 0 || bytes[k] < bytes[best]) {
				best = k
			}
		}
		if best < 0 {
			best = len(out)
			out, bytes, ports = append(out, nil), append(bytes, 0), append(ports, nil)
		}
		if ports[best] == nil {
			ports[best] = make(map[uint16]bool)
		}
		out[best] = append(out[best], i)
		ports[best][exhibits[i].Port] = true
		if info, err := os.Stat(exhibits[i].File); err == nil {
			bytes[best] += info.Size()
		}
	}
	return out
}

// hear makes tshark decode one batch and writes the results to out. If tshark fails on the batch,
// hear asks for its captures one by one, so that a bad capture does not affect the others.
func hear(ctx context.Context, exhibits []conformance.Exhibit, batch []int, out []conformance.Witness) {
	text, err := ask(ctx, exhibits, batch)
	var conns []*conn
	if err == nil {
		conns, err = parse(text)
	}
	if err != nil && len(batch) > 1 && ctx.Err() == nil {
		for k := range batch {
			hear(ctx, exhibits, batch[k:k+1], out)
		}
		return
	}
	for _, i := range batch {
		out[i] = conformance.Witness{Asked: true}
		if err != nil {
			out[i].Why = err.Error()
			continue
		}
		theirs := connsOf(conns, exhibits[i].Port)
		for _, c := range theirs {
			out[i].Frames += len(c.frames[0]) + len(c.frames[1])
		}
		out[i].Why = compare(exhibits[i].Ours, theirs)
		out[i].Agrees = out[i].Why == ""
	}
}

// ask runs tshark on one capture, or on several as one.
func ask(ctx context.Context, exhibits []conformance.Exhibit, batch []int) (string, error) {
	if len(batch) == 1 {
		return run(ctx, exhibits[batch[0]].File)
	}
	dir, err := os.MkdirTemp("", "govs-tshark-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	parts := make([]capture.Part, 0, len(batch))
	for _, i := range batch {
		parts = append(parts, capture.Part{File: exhibits[i].File, Interface: filepath.Base(exhibits[i].File)})
	}
	file := filepath.Join(dir, "all.pcapng")
	if err := capture.Merge(file, "", parts...); err != nil {
		return "", err
	}
	return run(ctx, file)
}

// connsOf returns the connections to or from a port, in order, or all.
func connsOf(conns []*conn, port uint16) []*conn {
	if port == 0 {
		return conns
	}
	var out []*conn
	for _, c := range conns {
		if c.responder.Port() == port || c.initiator.Port() == port {
			out = append(out, c)
		}
	}
	return out
}
