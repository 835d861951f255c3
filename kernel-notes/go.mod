// Of what a program downloads, modules below others are left out. This one has no packages; it keeps
// the documents, which are read in the repository, out of the download.
module github.com/govs-rdma/govs/kernel-notes

go 1.26
