package engine

// progressState is what a device needs to move data in the background.
type progressState struct{}

// startProgress starts the device's progress goroutine, stopProgress ends it
// and waits until it has ended.
func (d *device) startProgress() {}

func (d *device) stopProgress() {}

// progress moves data on behalf of a poller that found c empty. It never
// waits and does not allocate.
func (d *device) progress(c *cq) {}
