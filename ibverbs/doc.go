// Package ibverbs is the verbs API: devices, protection domains, memory
// regions, completion queues, queue pairs and work requests with the meaning
// that libibverbs gives them, for iWARP. Connections are made with its
// subpackage rdmacm.
//
// A program names the provider that does the work in the line that opens the
// device, and is otherwise the same for all of them:
//
//	vctx, err := ibverbs.Open(engine.New(nil), "")       // iWARP in Go over TCP
//	vctx, err := ibverbs.Open(kernel.New(), "siw0")      // the kernel's devices
//
// From there (errors left out):
//
//	conn, err := rdmacm.Dial(ctx, vctx, addr, nil)       // makes PD, CQs and QP
//	defer conn.Close()
//	mr, err := conn.PD().AllocMR(4096, ibverbs.AccessLocalWrite)
//	defer mr.Close()
//	n := copy(mr.Bytes(), "hello")
//	sge, err := mr.SGE(0, n)
//	err = conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend,
//		Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}})
//	var wc [1]ibverbs.WC
//	_, err = conn.SendCQ().PollWait(ctx, wc[:])          // then wc[0].Err()
//	err = conn.Shutdown(ctx)
//
// # Objects
//
// A [Context] is an open device; [PD], [CompChannel] and [CQ] are made from it,
// [MR], [MW], [SRQ] and [QP] from a PD. A parent does not close before its children: Close
// is then EBUSY, names what is open, and changes nothing. Close of an object
// that is closed returns nil, and other methods of it return os.ErrClosed.
// Nothing is closed by the garbage collector. A nil object, and one that
// belongs to another context, is EINVAL. Whatever is not said here the device
// decides, and returns the errno of the C call.
//
// # Concurrency
//
// All methods of all objects may be called concurrently, also with Close.
// Those that wait take a context and occupy no thread while they wait. Posts to
// one queue take effect in some order; a program that cares makes them from one
// goroutine.
//
// # Errors
//
// There are four kinds, and they don't mix:
//   - A failed call is an [*Error] that unwraps to an errno, the same from
//     every provider (or to os.ErrClosed). A post adds a [*PostError] that
//     says how many work requests were accepted.
//   - What the provider does not offer is an [*UnsupportedError], which is
//     errors.ErrUnsupported.
//   - How a work request ended is data: [WC] has a Status, and WC.Err makes a
//     [*WCError] of it. After the end of a connection the work that was still
//     posted is [ErrFlushed].
//   - A protocol failure is a [*TerminateError], from [QP.Cause].
//
// # Limitations
//
// QPs are reliable connected ones (IBV_QPT_RC); other types are EINVAL. The families ibv_wr_* and
// ibv_start_poll are not bound.
//
// What else there is depends on the device; the call for what it lacks returns an error in which
// errors.Is finds errors.ErrUnsupported. The engine has memory windows and registration by work
// request (MW, PD.AllocFastRegMR). With its option Extensions (RFC 7306) it has atomics and
// immediate data: in a Write as in libibverbs, in a Send without payload only. siw has none of
// these. It does not report which key a Send with Invalidate ended, either, and does not enforce
// AccessRemoteRead.
package ibverbs
