// Package abi has the messages between programs and the kernel's RDMA subsystem, as structs that
// are encoded and decoded byte for byte: commands of uverbs and rdma_cm, what siw adds to them,
// its queues, and addresses.
//
// Every struct is a struct of the kernel's headers (rdma/ib_user_verbs.h, rdma/rdma_user_cm.h,
// rdma/siw-abi.h). A field's tag is its name there. All numbers are in the byte order of the
// machine, unless the field says otherwise. What the compiler of C would leave empty is a blank
// field. Octets that follow a struct, such as what a driver adds, are a struct of their own.
//
// The package has neither cgo nor I/O. A bridge decodes commands and encodes answers; a program
// that watches another one decodes both.
package abi
