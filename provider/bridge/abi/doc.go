// Package abi has the messages between programs and the kernel's RDMA subsystem, as structs that
// are encoded and decoded byte for byte: commands of uverbs and rdma_cm, siw's additions to them,
// siw's queues, and addresses.
//
// Each struct corresponds to a struct of the kernel's headers (rdma/ib_user_verbs.h,
// rdma/rdma_user_cm.h, rdma/siw-abi.h). A field's tag is its name there. All numbers are in the
// machine's byte order, unless the field says otherwise. A blank field is padding, as the C
// compiler would insert it. Bytes that follow a struct, for example a driver's additions, are a
// separate struct.
//
// The package uses neither cgo nor I/O. A bridge decodes commands and encodes answers; a program
// that watches another one decodes both.
package abi
