package figures

import (
	"bytes"
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
type profile struct {
	file *os.File // nil: none is under way
	text bytes.Buffer
}

func (p *profile) do(r profileRequest) error {
	switch {
	case r.Stop:
		return p.stop()
	case r.Allocs != "":
		return writeAllocs(r.Allocs)
	case p.file != nil:
		return errors.New("a profile is under way")
	}
	f, err := os.Create(r.CPU)
	if err != nil {
		return err
	}
	p.text.Reset()
	if err := pprof.StartCPUProfile(&p.text); err != nil {
		return errors.Join(err, f.Close())
	}
	p.file = f
	return nil
}

func (p *profile) stop() error {
	if p.file == nil {
		return errors.New("no profile is under way")
	}
	pprof.StopCPUProfile()
	f := p.file
	p.file = nil
	return writeProfile(f, p.text.Bytes())
}

func writeAllocs(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	runtime.GC() // the profile is as of the last one
	var text bytes.Buffer
	if err := pprof.Lookup("allocs").WriteTo(&text, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	return writeProfile(f, text.Bytes())
}

// writeProfile writes a profile to a file and closes that. The program's own folder is
// removed, because profiles are published, and readers need no paths of the machine.
func writeProfile(f *os.File, text []byte) error {
	self, err := os.Executable()
	if err == nil {
		text, err = withoutFolderOf(self, text)
	}
	if err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}
