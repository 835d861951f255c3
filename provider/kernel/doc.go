// Package kernel is the provider that drives the kernel's RDMA devices through
// libibverbs and librdmacm: siw (soft-iWARP), rxe (soft RoCE), or hardware. It adapts
// packages cgo/ibv and cgo/rdmacm to the contract of package provider, and adds
// what C leaves to the caller: locking, lifetimes, waiting without holding a
// thread, and memory that stays where the kernel knows it.
//
// # Memory
//
// The kernel reads and writes registered memory at any time until the MR is
// closed. RegMR pins Go memory with a runtime.Pinner until then; memory from
// mmap needs no pinning. A slice on the Go heap is not page aligned, which is
// fine. A region that is dropped without Close stays registered, and its memory
// stays as well, until the process ends. Registered pages count against
// RLIMIT_MEMLOCK, with siw of Linux 6.1 even those of root; the ENOMEM names the limit.
//
// The race detector does not see what the kernel does to memory. A program
// orders its own accesses with completions.
//
// # Waiting
//
// Completion channels, CM event channels and asynchronous events are file
// descriptors. Each is duplicated, made non-blocking and given to Go's network
// poller, so that a waiting goroutine holds no thread and can be cancelled.
// The exception is [provider.ID.Connect] on iWARP: the kernel does the TCP
// handshake inside the call, on its thread, which may take two minutes with a
// host that does not answer. Closing the QP or the id ends it after a second.
//
// # What is made equal to the contract
//
// Where libraries and drivers differ from their manuals, the provider follows
// the manual:
//
//   - Negative errnos from post calls, and the 0 with bad_wr set that libsiw
//     returns for a list with a bad request after good ones (see ibv.QP.PostSend).
//   - Scatter/gather entries of length zero are left out. siw dereferences a null
//     pointer in the kernel (siw_tx_hdt, seen with 6.1.192) when one of them is
//     in the list of a Send or Write that has bytes.
//   - A receive without entries is legal in verbs and refused by libsiw, and a
//     Read without entries reads into whatever the queue slot held before. With
//     siw both are posted with one entry of length zero.
//   - A Read with more entries than the device takes (siw: one) is EINVAL; siw
//     would use the first and drop the others.
//   - Inline data longer than the QP was made for or without the flag, opcodes
//     and flags beyond those of package provider, and more than 255 bytes of
//     private data are EINVAL; libraries would read beyond tables, cut values
//     off, or do something else.
//   - Posting sends to a QP that has not been connected is EINVAL. libsiw would
//     queue them, and never ring the doorbell of that queue again. The same is
//     true of a Read on a connection with ORD 0, an inline Read and an inline
//     Send with Invalidate. A Read's fence, which would do it as well, is dropped:
//     on iWARP it has no effect that could be seen. What the program has received shows
//     that there is a connection, also before it has the event ESTABLISHED.
//   - When siw's connection has ended, its QP is moved to the error state before
//     the program gets the event: siw does not flush all receives after a fault
//     in a Read. What is posted from then on (after Disconnect, DISCONNECTED, REJECTED
//     or Modify) completes as flushed, which the provider does by itself; siw
//     would leave it in the queue for good. See late.go.
//   - siw loses completions when a connection ends, of Reads and of what is posted before the
//     program gets DISCONNECTED, and makes some twice. Work requests on siw are numbered:
//     a second completion is dropped, and what siw has lost completes as flushed before the
//     program gets the event. See sent.go.
//   - libsiw fails to create anything once the kernel gives a queue a certain mmap
//     key, after about twenty connections. See siwkeys.go.
//   - libsiw fails to create a QP without a receive queue; it gets one of one
//     place.
//   - libsiw takes the key of a Send with Invalidate from the field of a Write's
//     rkey; both fields are set.
//   - A signal has the kernel close the TCP connection that rdma_connect is about to
//     make, and make another. All but one wait meanwhile (cgo/rdmacm.Interrupt).
//   - libsiw has no ibv_query_srq: SRQ.Query returns the provider's own records. The
//     provider enforces the SRQ's limit on the entries of a receive, which libsiw
//     ignores. A limit given at creation has no effect, as the manual says; siw would
//     arm it. A receive posted to a QP with an SRQ is EINVAL.
//   - siw swaps max_rd_atomic and max_dest_rd_atomic of ibv_query_qp.
//   - On InfiniBand and RoCE librdmacm leaves to its user what iWARP's drivers do. A
//     peer's disconnect is answered when its event is taken; the QP is in the error
//     state then, as on iWARP. A QP that PD.CreateQP made is taken through the states
//     of its connection. Messages that find no receive are sent again without end,
//     if ConnParam does not say otherwise. See roce.go.
//   - Receives posted to a QP in the error state are flushed; librxe notifies the
//     kernel of them only with a later call (kernel-notes/rxe-no-flush.md).
//   - The flags of completions are those of reliable connections: rxe says that
//     receives have a GRH, and of its own Sends that they have immediate data.
//
// Where govs-verbs-test exec stands in for the kernel, siw's library is over the engine. The device
// has siw's vendor id and a part id of its own; then what is said of libsiw is done, and what is
// said of siw is not. netlink and sysfs are the kernel's there, so that the device has neither the
// name of an interface nor counters.
//
// # Limitations
//
//   - PostSend can return ENOTCONN with n == len(wrs): all requests are queued, but siw
//     was about to end the connection when the doorbell rang. They complete as flushed, at the
//     latest when the program gets DISCONNECTED, so a program has to take the events of the CM.
//   - rxe does not enforce the bounds of a memory window (kernel-notes/rxe-windows.md), and
//     crashes the kernel if a window that is not bound is invalidated. The provider
//     refuses a local invalidation of that kind with EINVAL; it can't prevent a peer's
//     (kernel-notes/rxe-crash-window.md).
//   - On InfiniBand and RoCE a QP that fails keeps its connection, and neither end gets an
//     event of the connection manager: a program that gets a completion in error has to
//     disconnect. A program has to read the event channel, because librdmacm answers the
//     peer in that call: it answers the peer's disconnect, and at the active end it makes
//     the connection.
//   - siw before Linux 6.8 does not report a QP's state: QP.Query returns QPUnknown.
//   - A completion of siw never has WCWithInv, although siw does invalidate. rxe sets
//     another bit for it, which the provider translates.
//   - QP.Cause is always nil: Terminate messages go to the kernel's log only.
//   - librdmacm opens all RDMA devices of the system when the process first uses it, and
//     keeps them open until the process ends, whether the program closes its device or
//     not. Deleting a siw link (rdma link delete) waits until then.
//   - AccessRemoteInvalidate has no effect. siw has no memory windows, and libibverbs no
//     registration by work request. Closing a region with a window bound to it is EBUSY,
//     where rxe returns EINVAL. A bind that fails completes with rxe's
//     IBV_WC_LOC_QP_OP_ERR, where InfiniBand has IBV_WC_MW_BIND_ERR. Unbinding a window
//     that was not bound is EINVAL, because librxe needs a region for it.
//   - Between two ends of siw, work that waits for Reads, because it is fenced or because of the
//     ORD, keeps the peer's Reads from being answered. If both ends do this, they wait for ever
//     (kernel-notes/siw-reads-both-ways.md).
//   - siw can't resize an SRQ, and has no IBV_EVENT_QP_LAST_WQE_REACHED.
//   - A thread must share the credentials with which the device was opened
//     (ib_safe_file_access): otherwise posting to siw and calls of the connection manager
//     return EACCES. setuid and capset give a thread credentials of its own, so a program
//     that drops privileges does so before it opens a device.
//   - The package does not call ibv.ForkInit: os/exec copies no pages, and since Linux
//     5.12 fork copies pinned pages.
//
// # Building
//
// Needs cgo, libibverbs-dev and librdmacm-dev. Otherwise, or with the build tag
// nokernel, the package still builds; every call returns an
// *provider.UnsupportedError that names what is missing.
package kernel
