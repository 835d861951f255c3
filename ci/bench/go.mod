// The project's own figures: what make bench, make bench-vm and make bench-victim measure with.
module github.com/govs-rdma/govs/ci/bench

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/govs-rdma/govs v0.0.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
)

replace github.com/govs-rdma/govs => ../..
