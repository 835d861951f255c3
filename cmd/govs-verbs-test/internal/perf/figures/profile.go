package figures

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
)

// profileRequest begins or ends a profile of CPU time, or writes what has been
// allocated since the process began. For the latter to be all of it the process
// has to be started with GODEBUG=memprofilerate=1.
type profileRequest struct {
	CPU    string `json:",omitempty"` // the file; begin
	Stop   bool   `json:",omitempty"` // end
	Allocs string `json:",omitempty"` // the file
}

// profile is one of CPU time under way.
type profile struct{ cpu *os.File }

func (p *profile) do(r profileRequest) error {
	switch {
	case r.Stop:
		return p.stop()
	case r.Allocs != "":
		return writeAllocs(r.Allocs)
	case p.cpu != nil:
		return errors.New("a profile is under way")
	}
	f, err := os.Create(r.CPU)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	p.cpu = f
	return nil
}

func (p *profile) stop() error {
	if p.cpu == nil {
		return errors.New("no profile is under way")
	}
	pprof.StopCPUProfile()
	f := p.cpu
	p.cpu = nil
	return f.Close()
}

func writeAllocs(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	runtime.GC() // the profile is as of the last one
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
