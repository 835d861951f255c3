package memory

// The results of these functions may be outdated at once, because other goroutines change the
// state. Tests of package engine compare them with what they have done.

// Uses returns how many uses of m are in progress by work requests of ours, and by peers.
func (m *Region) Uses() (local, remote int64) { return m.local.Uses(), m.remote.Uses() }

// Shut reports whether m refuses uses by work requests of ours, and by peers.
func (m *Region) Shut() (local, remote bool) { return m.local.IsShut(), m.remote.IsShut() }

// HasWindows reports whether windows are bound to m.
func (m *Region) HasWindows() bool { return m.windows.Held() }

// Uses returns how many uses of the window by peers are in progress.
func (w *Window) Uses() int64 { return w.view.remote.Uses() }

// Bound reports whether the window is bound, and its STag.
func (w *Window) Bound() (stag uint32, bound bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view.stag, w.region != nil
}

// Registered reports whether the region is registered, and its STag.
func (f *FastRegion) Registered() (stag uint32, registered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stag, f.valid
}

// Len returns how many regions and windows have an STag.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live + t.byIndex.live
}
