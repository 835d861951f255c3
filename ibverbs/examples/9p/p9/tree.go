package p9

import (
	"strings"
	"sync"
	"syscall"
)

// tree has the names of all files that a client has a fid for. So a fid keeps to its file when
// somebody renames the file or a directory above it, and names nothing when the file is removed.
// The tree does not notice names that something other than the server changes.
type tree struct {
	// changing is held by requests that rename or remove, and for reading by requests that use the
	// path of a node, because it must name the same file while they do. It is taken before mu.
	changing sync.RWMutex

	mu   sync.Mutex // guards all nodes' children, uses and gone
	root *node
}

// node is a name in its directory.
type node struct {
	parent   *node // nil: the root. Changes with changing and mu held
	name     string
	children map[string]*node
	uses     int  // fids, and children
	gone     bool // removed, or replaced by another file
}

func newTree() *tree { return &tree{root: &node{uses: 1}} }

// pathMax limits a path, as PATH_MAX of Linux does: in bytes, with a byte for its end. An FS opens
// each directory of a path, so a client could make its requests as slow as it makes its directories
// deep, and the renames of all others wait for them.
const pathMax = 4096

// path returns the name of a node for an FS. The caller holds changing.
func (t *tree) path(n *node) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for length := 0; n.parent != nil; n = n.parent {
		if n.gone {
			return "", syscall.ENOENT
		}
		if length += len(n.name) + 1; length > pathMax {
			return "", syscall.ENAMETOOLONG
		}
		names = append(names, n.name)
	}
	for i, k := 0, len(names)-1; i < k; i, k = i+1, k-1 {
		names[i], names[k] = names[k], names[i]
	}
	if len(names) == 0 {
		return ".", nil
	}
	return strings.Join(names, "/"), nil
}

// pathIn returns the path of a name in directory n.
func (t *tree) pathIn(n *node, name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	dir, err := t.path(n)
	if err != nil {
		return "", err
	}
	p := join(dir, name)
	if len(p) >= pathMax {
		return "", syscall.ENAMETOOLONG
	}
	return p, nil
}

// checkName refuses anything but the name of a directory's entry.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case len(name) > 255:
		return syscall.ENAMETOOLONG
	}
	return nil
}

// use counts one more fid of a node, which somebody holds already.
func (t *tree) use(n *node) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.uses++
	return n
}

// child takes the node of a name in a directory. The caller holds changing.
func (t *tree) child(dir *node, name string) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := dir.children[name]
	if n == nil {
		n = &node{parent: dir, name: name}
		dir.add(n)
	}
	n.uses++
	return n
}

// parent takes the directory of n. The root's directory is the root.
func (t *tree) parent(n *node) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.parent != nil {
		n = n.parent
	}
	n.uses++
	return n
}

func (n *node) add(child *node) {
	if n.children == nil {
		n.children = make(map[string]*node)
	}
	n.children[child.name] = child
	n.uses++
}

// drop gives back what use, child or parent took.
func (t *tree) drop(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(n)
}

func (t *tree) dropLocked(n *node) {
	for ; n != nil; n = n.parent {
		n.uses--
		if n.uses > 0 {
			return
		}
		if n.parent != nil && n.parent.children[n.name] == n {
			delete(n.parent.children, n.name)
		}
		n.gone = true // a request that still holds it finds nothing
	}
}

// remove notes that a name was removed. The caller holds changing for writing.
func (t *tree) remove(dir *node, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := dir.children[name]; n != nil {
		n.gone = true
		delete(dir.children, name)
	}
}

// rename notes that a file has a new name. The caller holds changing for writing.
func (t *tree) rename(dir *node, name string, newDir *node, newName string) {
	if dir == newDir && name == newName {
		return
	}
	t.remove(newDir, newName)
	t.mu.Lock()
	defer t.mu.Unlock()
	n := dir.children[name]
	if n == nil {
		return
	}
	delete(dir.children, name)
	n.parent, n.name = newDir, newName
	newDir.add(n)
	t.dropLocked(dir)
}

// join returns the name of an entry of a directory.
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}
