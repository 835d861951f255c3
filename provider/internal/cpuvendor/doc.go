// Package cpuvendor says who made the CPU, for choices that were measured on CPUs of one vendor
// and that no feature flag stands for: [docs/benchmarks] has the measurements. With the build tag
// purego, and on architectures other than amd64, the vendor is unknown.
//
// [docs/benchmarks]: https://github.com/govs-rdma/govs/blob/main/docs/benchmarks/limits.md
package cpuvendor
