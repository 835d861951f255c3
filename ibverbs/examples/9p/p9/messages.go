package p9

// Kinds of requests that the server knows. The reply to each has the next number, or is
// KindError.
const (
	KindError    = 7 // Rlerror
	KindStatfs   = 8
	KindOpen     = 12
	KindCreate   = 14
	KindSymlink  = 16
	KindRename   = 20
	KindReadlink = 22
	KindGetattr  = 24
	KindSetattr  = 26
	KindReaddir  = 40
	KindFsync    = 50
	KindLock     = 52 // refused, as is KindGetLock
	KindGetLock  = 54
	KindLink     = 70
	KindMkdir    = 72
	KindRenameAt = 74
	KindUnlinkAt = 76
	KindVersion  = 100
	KindAttach   = 104
	KindFlush    = 108
	KindWalk     = 110
	KindRead     = 116
	KindWrite    = 118
	KindClunk    = 120
	KindRemove   = 122
)

// The messages of 9P2000.L: T is a request, R its reply. A reply that is not here has no fields.
type (
	// Qid identifies a file: two files with the same path are one.
	Qid struct {
		Type    uint8 // QTDir and so on
		Version uint32
		Path    uint64
	}

	// Rlerror is the reply to a request that failed, with an errno of Linux.
	Rlerror struct{ Errno uint32 }

	// Tversion begins a session.
	Tversion struct {
		Msize   uint32
		Version string
	}
	// Rversion answers with the version that the server speaks.
	Rversion = Tversion

	// Tattach makes Fid the root. AFid, for authentication, is NoFid.
	Tattach struct {
		Fid, AFid    uint32
		Uname, Aname string
		UID          uint32
	}
	// Rattach has the root's qid.
	Rattach struct{ Qid Qid }

	// Tflush says that the client does not need the reply to OldTag. No reply to OldTag follows
	// Rflush.
	Tflush struct{ OldTag uint16 }

	// Twalk makes NewFid name the file that Names lead to from Fid.
	Twalk struct {
		Fid, NewFid uint32
		Names       []string
	}
	// Rwalk has the qids of the names that are there.
	Rwalk struct{ Qids []Qid }

	// Tread reads a file.
	Tread struct {
		Fid    uint32
		Offset uint64
		Count  uint32
	}
	// Rread has the data that was read.
	Rread struct{ Data []byte }

	// Twrite writes a file.
	Twrite struct {
		Fid    uint32
		Offset uint64
		Data   []byte
	}
	// Rwrite says how much was written.
	Rwrite struct{ Count uint32 }

	// Tfid is a request with only a fid: clunk, remove, statfs or readlink.
	Tfid struct{ Fid uint32 }

	// Rstatfs is the state of the file system, as in statfs(2).
	Rstatfs struct {
		Type, BlockSize                           uint32
		Blocks, Free, Avail, Files, FilesFree, ID uint64
		NameLen                                   uint32
	}

	// Topen opens a file (Tlopen).
	Topen struct{ Fid, Flags uint32 }
	// Ropen describes the open file. It is the reply to Topen and Tcreate.
	Ropen struct {
		Qid    Qid
		IOUnit uint32
	}

	// Tcreate creates a file in the directory Fid and opens it (Tlcreate). Afterwards Fid is
	// the file.
	Tcreate struct {
		Fid              uint32
		Name             string
		Flags, Mode, GID uint32
	}

	// Tsymlink makes a symbolic link.
	Tsymlink struct {
		Dir          uint32
		Name, Target string
		GID          uint32
	}
	// Rqid is the reply to Tsymlink and Tmkdir.
	Rqid struct{ Qid Qid }

	// Trename gives a file another name and directory.
	Trename struct {
		Fid, Dir uint32
		Name     string
	}

	// Rreadlink has the target of a symbolic link.
	Rreadlink struct{ Target string }

	// Tgetattr asks for attributes.
	Tgetattr struct {
		Fid  uint32
		Mask uint64
	}
	// Rgetattr has the attributes that Valid names.
	Rgetattr struct {
		Valid    uint64
		Attr     Attr
		Birth    Time
		Gen, Ver uint64 // generation, version of the data
	}

	// Tsetattr sets the attributes that Set.Valid names.
	Tsetattr struct {
		Fid uint32
		Set SetAttr
	}

	// Treaddir reads a directory.
	Treaddir = Tread
	// Rreaddir has entries: qid[13] offset[8] type[1] name[s].
	Rreaddir = Rread

	// Tfsync writes a file to stable storage.
	Tfsync struct{ Fid, DataSync uint32 }

	// Tlink makes another name for Fid.
	Tlink struct {
		Dir, Fid uint32
		Name     string
	}

	// Tmkdir makes a directory.
	Tmkdir struct {
		Dir       uint32
		Name      string
		Mode, GID uint32
	}

	// TrenameAt renames by the names of the file's directories.
	TrenameAt struct {
		OldDir  uint32
		OldName string
		NewDir  uint32
		NewName string
	}

	// TunlinkAt removes a name; the flag RemoveDir removes a directory.
	TunlinkAt struct {
		Dir   uint32
		Name  string
		Flags uint32
	}
)

// requests has the struct of each kind of request.
var requests = map[uint8]func() any{
	KindStatfs:   func() any { return new(Tfid) },
	KindOpen:     func() any { return new(Topen) },
	KindCreate:   func() any { return new(Tcreate) },
	KindSymlink:  func() any { return new(Tsymlink) },
	KindRename:   func() any { return new(Trename) },
	KindReadlink: func() any { return new(Tfid) },
	KindGetattr:  func() any { return new(Tgetattr) },
	KindSetattr:  func() any { return new(Tsetattr) },
	KindReaddir:  func() any { return new(Treaddir) },
	KindFsync:    func() any { return new(Tfsync) },
	KindLink:     func() any { return new(Tlink) },
	KindMkdir:    func() any { return new(Tmkdir) },
	KindRenameAt: func() any { return new(TrenameAt) },
	KindUnlinkAt: func() any { return new(TunlinkAt) },
	KindVersion:  func() any { return new(Tversion) },
	KindAttach:   func() any { return new(Tattach) },
	KindFlush:    func() any { return new(Tflush) },
	KindWalk:     func() any { return new(Twalk) },
	KindRead:     func() any { return new(Tread) },
	KindWrite:    func() any { return new(Twrite) },
	KindClunk:    func() any { return new(Tfid) },
	KindRemove:   func() any { return new(Tfid) },
}

// NewRequest returns a pointer to an empty struct for a kind of request, or nil if the server does
// not know the kind.
func NewRequest(kind uint8) any {
	if f := requests[kind]; f != nil {
		return f()
	}
	return nil
}

// Values of fields.
const (
	NoTag = 0xffff     // of Tversion
	NoFid = 0xffffffff // no fid

	// Qid.Type of a directory, a symbolic link and any other file.
	QTDir     = 0x80
	QTSymlink = 0x02
	QTFile    = 0x00

	RemoveDir = 0x200      // TunlinkAt.Flags
	Version   = "9P2000.L" // Tversion.Version

	maxWalk  = 16    // names in a Twalk
	getBasic = 0x7ff // Rgetattr.Valid: all fields of Attr
	minMsize = 4096  // less is of no use: Linux does not go below
)
