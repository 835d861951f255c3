package rdmacm

import (
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
)

// given is a work request's identification in errors.
type given struct {
	wrid   uint64
	opcode ibverbs.WROpcode
}

// failure returns the error of the call's first failure. It names the work request as the caller
// knows it: by its WRID, or by its opcode if the caller set no WRID, with its position among
// others. The caller holds router.mu.
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

// workError is the failure of a work request whose WRID the program does not know.
type workError struct {
	text string
	err  error // from WC.Err
}

func (e *workError) Error() string { return e.text }

// Unwrap returns the [*ibverbs.WCError].
func (e *workError) Unwrap() error { return e.err }

// failedWork returns wc.Err with a text that calls the work request name.
func failedWork(name string, wc *ibverbs.WC) error {
	return &workError{fmt.Sprintf("%s of qp %d completed with %s", name, wc.QPN, wc.Status), wc.Err()}
}

// refusedAt returns the error of a post that began with work request number first of a call. It
// converts positions in the post to positions in the call.
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
