// Package kernel is the provider that drives the kernel's RDMA devices through libibverbs and
// librdmacm: siw (soft-iWARP), rxe (soft RoCE), or hardware. It adapts packages cgo/ibv and
// cgo/rdmacm to the contract of package provider. It adds what C leaves to the caller: locking,
// lifetimes, waits that do not block a thread, and pinned memory.
//
// # Memory
//
// The kernel reads and writes registered memory at any time until the MR is closed. RegMR pins Go
// memory with a runtime.Pinner until then; memory from mmap needs no pinning. A slice on the Go
// heap need not be page aligned. If the program drops a region without Close, the region and its
// memory remain until the process ends. Registered pages count against RLIMIT_MEMLOCK, with siw of
// Linux 6.1 even root's pages; the ENOMEM names the limit.
//
// The race detector does not see what the kernel does to memory. A program orders its own accesses
// with completions.
//
// # Waiting
//
// Completion channels, CM event channels and asynchronous events are file descriptors. Each is
// duplicated, made non-blocking and given to Go's network poller, so a waiting goroutine holds no
// thread and can be cancelled. The exception is [provider.ID.Connect] on iWARP, because the kernel
// does the TCP handshake inside the call. It occupies a thread for up to two minutes if the host
// does not answer. Closing the QP or the id ends the call after a second.
//
// # What is made equal to the contract
//
// Where libraries and drivers differ from their manuals, the provider follows the manual:
//
//   - The provider corrects two kinds of results of post calls: negative errnos, and the 0 with
//     bad_wr set that libsiw returns for a list with a bad request after good ones (see
//     ibv.QP.PostSend).
//   - Scatter/gather entries of length zero are left out. siw dereferences a null pointer in the
//     kernel (siw_tx_hdt, seen with 6.1.192) when one of them is in the list of a Send or Write
//     that has bytes.
//   - libsiw refuses a receive without entries, although verbs allow it. A Read without entries
//     would use whatever the queue slot held before. With siw the provider posts both with one
//     entry of length zero.
//   - A Read with more entries than the device takes (siw: one) is EINVAL; siw would use the first
//     and drop the others.
//   - Some arguments are EINVAL because the libraries would read beyond tables, cut off values, or
//     do something else: inline data that is too long for the QP or lacks the flag, opcodes and
//     flags that package provider does not define, and more than 255 bytes of private data.
//   - Posting sends to a QP that has not been connected is EINVAL. libsiw would queue them, and
//     never ring the doorbell of that queue again. The same applies to a Read on a connection with
//     ORD 0, an inline Read and an inline Send with Invalidate. A fence on a Read would have this
//     effect too, so the provider drops it: on iWARP it changes nothing that a program can see.
//     Once the program has received something, the QP counts as connected, even before the event
//     ESTABLISHED.
//   - When siw's connection has ended, its QP is moved to the error state before the program gets
//     the event, because siw does not flush all receives after a fault in a Read. What is posted
//     from then on (after Disconnect, DISCONNECTED, REJECTED or Modify) completes as flushed. The
//     provider makes these completions, because siw would leave the work in the queue forever. See
//     late.go.
//   - When a connection ends, siw loses completions of Reads and of work that is posted before the
//     program gets DISCONNECTED, and it duplicates others. So work requests on siw are numbered: a
//     second completion is dropped, and lost work completes as flushed before the program gets the
//     event. See sent.go.
//   - libsiw cannot create anything once the kernel gives a queue a certain mmap key, after about
//     twenty connections. See siwkeys.go.
//   - libsiw cannot create a QP without a receive queue, so the QP gets one with one place.
//   - libsiw takes the key of a Send with Invalidate from the field of a Write's rkey; the provider
//     sets both fields.
//   - A signal makes the kernel close the TCP connection that rdma_connect is making, and make
//     another. So Connect blocks all signals but one during the call (cgo/rdmacm.Interrupt).
//   - libsiw has no ibv_query_srq: SRQ.Query returns the provider's own records. The provider
//     enforces the SRQ's limit on the entries of a receive, which libsiw ignores. A limit given at
//     creation has no effect, as the manual says; siw would arm it. A receive posted to a QP with
//     an SRQ is EINVAL.
//   - siw swaps max_rd_atomic and max_dest_rd_atomic of ibv_query_qp.
//   - On InfiniBand and RoCE librdmacm leaves to its user what iWARP's drivers do. The provider
//     answers a peer's disconnect when its event is taken, and moves the QP to the error state, as
//     on iWARP. It also moves a QP of PD.CreateQP through the states of its connection. Messages
//     that find no receive are retransmitted forever, unless ConnParam limits this. See roce.go.
//   - Receives posted to a QP in the error state are flushed; librxe notifies the kernel of them
//     only with a later call (kernel-notes/rxe-no-flush.md).
//   - The flags of completions are the ones for reliable connections: rxe also reports a GRH for
//     receives, and immediate data for its own Sends.
//
// Where govs-verbs-test exec stands in for the kernel, siw's library runs over the engine. The
// device has siw's vendor id and its own part id. The provider then does what this list says about
// libsiw, but not what it says about siw. netlink and sysfs are still the kernel's, so this device
// has neither the name of an interface nor counters.
//
// # Limitations
//
//   - PostSend can return ENOTCONN with n == len(wrs): all requests are queued, but siw was about
//     to end the connection when the doorbell rang. They complete as flushed when the program gets
//     DISCONNECTED, or earlier, so a program has to take the events of the CM.
//   - rxe does not enforce the bounds of a memory window (kernel-notes/rxe-windows.md), and crashes
//     the kernel if an unbound window is invalidated. The provider refuses such a local
//     invalidation with EINVAL, but it cannot prevent a peer's (kernel-notes/rxe-crash-window.md).
//   - On InfiniBand and RoCE a QP that fails keeps its connection, and neither end gets an event of
//     the connection manager. So a program that gets a completion in error has to disconnect. A
//     program also has to read the event channel, because librdmacm answers the peer in that call:
//     it answers the peer's disconnect, and at the active end it completes the connection.
//   - siw before Linux 6.8 does not report a QP's state: QP.Query returns QPUnknown.
//   - A completion of siw never has WCWithInv, although siw does invalidate. rxe sets another bit
//     for it, which the provider translates.
//   - QP.Cause is always nil, because Terminate messages only go to the kernel's log.
//   - librdmacm opens all RDMA devices of the system when the process first uses it, and keeps them
//     open until the process ends, even if the program closes its device. Deleting a siw link (rdma
//     link delete) waits until then.
//   - AccessRemoteInvalidate has no effect. siw has no memory windows, and libibverbs has no
//     registration by work request. Closing a region with a window bound to it is EBUSY, where rxe
//     returns EINVAL. A bind that fails completes with rxe's IBV_WC_LOC_QP_OP_ERR, where InfiniBand
//     has IBV_WC_MW_BIND_ERR. Unbinding a window that was not bound is EINVAL, because librxe needs
//     a region for it.
//   - Between two ends of siw, work that waits for Reads, because it is fenced or because of the
//     ORD, keeps the peer's Reads from being answered. If both ends do this, they wait forever
//     (kernel-notes/siw-reads-both-ways.md).
//   - siw cannot resize an SRQ, and has no IBV_EVENT_QP_LAST_WQE_REACHED.
//   - A thread must share the credentials with which the device was opened (ib_safe_file_access).
//     Otherwise posting to siw and calls of the connection manager return EACCES. setuid and capset
//     give a thread its own credentials, so a program that drops privileges does so before it opens
//     a device.
//   - The package does not call ibv.ForkInit: os/exec copies no pages, and since Linux 5.12 fork
//     copies pinned pages.
//
// # Building
//
// The package needs cgo, libibverbs-dev and librdmacm-dev. Without them, or with the build tag
// nokernel, it still builds, but every call returns an *provider.UnsupportedError that names what
// is missing.
package kernel
