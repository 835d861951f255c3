// Package rdmacm binds librdmacm's connection management, call by call. Like package ibv it adds no
// policy, and its only user is package provider/kernel. Programs use package ibverbs/rdmacm.
//
// A *[ID] or *[EventChannel] is the pointer that librdmacm returned.
//
// librdmacm opens each device itself, once per process, and an id's QP must be made on that open
// device. So protection domains and completion queues for such QPs come from the contexts of
// [GetDevices], not from ibv.OpenDevice.
//
// Three calls of librdmacm dereference a null pointer if the id is not bound to a device yet:
// [ID.ResolveRoute], [ID.Connect] and [ID.Accept]. The wrappers return EINVAL instead, the kernel's
// errno for a call in the wrong state.
//
// # Building
//
// The requirements are those of package ibv; the header is in Debian's librdmacm-dev.
//
// # Limitations
//
// The package binds the asynchronous interface of the RDMA_PS_TCP port space. It does not bind the
// synchronous endpoints (rdma_create_ep), multicast, name resolution (rdma_getaddrinfo) and
// rsockets.
package rdmacm
