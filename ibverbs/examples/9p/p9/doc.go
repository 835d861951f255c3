// Package p9 serves files by 9P2000.L, the protocol of Linux's 9p file system (mount -t 9p).
//
//	server := p9.NewServer(p9.NewFS(os.DirFS("/srv/files")), p9.Limits{})
//	err := server.Serve(ctx, p9.NewStream(conn, 1<<20, 16, time.Minute)) // for each client
//
// A [Server] serves an [FS]. [NewFS] makes one of any fs.FS, read-only. [NewDir] makes one of a
// directory on Linux, which clients can change. Programs may implement FS or [WritableFS].
//
// A [Transport] carries the messages of one client. [NewStream] makes one of a TCP connection. The
// program ibverbs/examples/9p has one over RDMA, and shows how to accept clients and how to limit
// their number. The structs of messages, [Encode] and [Decode] are for clients; p9test has one, for
// tests.
//
// # Requests
//
// Serve reads the requests of its client, and serves up to Limits.Requests of them at a time, each
// on a goroutine. Replies leave in the order in which they are done. A Tflush cancels nothing: its
// reply follows the reply to the request that it names.
//
// An error of the FS reaches the client as an errno of Linux. A client that breaks the protocol
// ends its own Serve.
//
// # What a client can make the server hold
//
// [Limits] bounds fids and open files (EMFILE above the limit), entries of directories that are
// being read (ENOMEM), and requests, which wait in the transport. Transport.MaxMessage bounds a
// message. The transport bounds the time in which a client takes replies. A client that sends
// nothing is served until ctx ends.
//
// # Security
//
// There is no authentication: whoever reaches the server may do all that the FS permits. With
// NewDir that is all that the process's user may do below the directory, which no symbolic link
// leaves. No file gets the set-user-ID or set-group-ID bit.
//
// # Limitations
//
//   - Locks are refused (ENOLCK), because they would not hold between clients.
//   - Extended attributes and device files are refused (EOPNOTSUPP).
//   - A path below the root has at most 4,095 bytes, as on Linux (ENAMETOOLONG).
//   - Versions 9P2000 and 9P2000.u are not spoken: the reply to Tversion says "unknown".
package p9
