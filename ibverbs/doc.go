// Package ibverbs is the verbs API: devices, protection domains, memory regions, completion queues,
// queue pairs and work requests. They have the meaning that libibverbs gives them, for iWARP. The
// subpackage rdmacm makes connections.
//
// A program names its provider only in the line that opens the device. The rest of the program is
// the same for every provider:
//
//	vctx, err := ibverbs.Open(engine.New(nil), "")       // iWARP in Go over TCP
//	vctx, err := ibverbs.Open(kernel.New(), "siw0")      // the kernel's devices
//
// From there (errors left out):
//
//	conn, err := rdmacm.Dial(ctx, vctx, addr, nil)       // makes PD, CQs and QP
//	defer conn.Close()
//	mr, err := conn.PD().AllocMR(4096, 0)
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
// A [Context] is an open device. It makes [PD], [CompChannel] and [CQ]; a PD makes [MR], [MW],
// [SRQ] and [QP]. A parent cannot close before its children: its Close then returns EBUSY, names
// what is open, and changes nothing. Close of a closed object returns nil, and its other methods
// return os.ErrClosed. The garbage collector closes nothing. A call with a nil object, or with an
// object of another context, returns EINVAL. The device decides everything else, and its errors are
// the errnos of the C calls.
//
// # Concurrency
//
// All methods of all objects may be called concurrently, even during Close. Methods that wait take
// a context and occupy no thread while they wait. Concurrent posts to one queue take effect in some
// order; to fix the order, post from one goroutine.
//
// # Errors
//
// There are four kinds of errors:
//   - A failed call returns an [*Error] that unwraps to an errno, the same from every provider, or
//     to os.ErrClosed. A post returns a [*PostError], which also says how many work requests were
//     accepted.
//   - A feature that the provider does not offer is an [*UnsupportedError]; errors.Is finds
//     errors.ErrUnsupported in it.
//   - The outcome of a work request is data: [WC] has a Status, from which WC.Err makes a
//     [*WCError]. If the connection ends first, the error is [ErrFlushed].
//   - A protocol failure is a [*TerminateError], which [QP.Cause] returns.
//
// # Limitations
//
// QPs are reliable connected ones (IBV_QPT_RC); other types are EINVAL. The ibv_wr_* and
// ibv_start_poll families are not bound.
//
// What else there is depends on the device. A call that the device does not support returns an
// error in which errors.Is finds errors.ErrUnsupported. The engine has memory windows and
// registration by work request (MW, PD.AllocFastRegMR). With its option Extensions (RFC 7306) it
// also has atomics and immediate data: with a Write as in libibverbs, with a Send only if the Send
// has no payload. siw has none of these. siw also does not report which key a Send with Invalidate
// ended, and does not enforce AccessRemoteRead.
package ibverbs
