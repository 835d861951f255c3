// Of what a program downloads, modules below others are left out. This one has no packages; it keeps
// what only the project's own tests read out of the download.
module github.com/govs-rdma/govs/provider/bridge/abi/testdata

go 1.26
