package rdmacm

import (
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
)

// given is what errors say of a work request.
type given struct {
	wrid   uint64
	opcode ibverbs.WROpcode
}

// failure returns the error of the call's first failure, by the name that the caller knows: the
// WRID, which nobody has to set, or else the opcode, after its position among others. The caller
// has router.mu.
func (x *call) failure() error {
	wc, i := x.first, int(x.first.WRID&fieldMask)
	g := x.given[i]
	wc.WRID = g.wrid
	name := g.opcode.String()
	switch {
	case g.wrid != 0:
		name = fmt.Sprintf("work request %#x (%s)", g.wrid, g.opcode)
	case len(x.given) > 1:
		name = fmt.Sprintf("work request %d of %d (%s)", i+1, len(x.given), g.opcode)
	}
	return failedWork(name, &wc)
}

// workError is the failure of a work request that the program knows by another name than the WRID.
type workError struct {
	text string
	err  error // of WC.Err
}

func (e *workError) Error() string { return e.text }

// Unwrap returns the [*ibverbs.WCError].
func (e *workError) Unwrap() error { return e.err }

// failedWork is wc.Err for a work request that the program knows as name.
func failedWork(name string, wc *ibverbs.WC) error {
	return &workError{fmt.Sprintf("%s of qp %d completed with %s", name, wc.QPN, wc.Status), wc.Err()}
}

// refusedAt returns the error of a post that began with the work request in place first of a call,
// with the places that the caller knows.
func refusedAt(first int, refused *ibverbs.PostError) error {
	at := &ibverbs.PostError{Posted: first + refused.Posted, Err: refused.Err}
	if e, ok := refused.Err.(*ibverbs.Error); ok && first > 0 {
		const place = ", work request %d" // the engine's
		if of, ok := strings.CutSuffix(e.Object, fmt.Sprintf(place, refused.Posted)); ok {
			named := *e
			named.Object = of + fmt.Sprintf(place, at.Posted)
			at.Err = &named
		}
	}
	return at
}
