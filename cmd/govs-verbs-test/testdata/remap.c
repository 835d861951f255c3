// A program that unmaps or replaces its registered memory as its argument says, while its peer, in the same process,
// writes and reads the memory. The peer must not reach what the program has mapped there since. A second argument is an
// address of siw: siw pins the pages, so the addresses are not reserved.
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { size = 1 << 20, later = 8 };

static char *map(void *at, size_t n, int flags)
{
	char *memory = mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	must("memory", memory != MAP_FAILED);
	return memory;
}

// access makes the peer write or read a whole region. If that fails, the connection ends.
static void access_all(struct rdma_cm_id *id, enum ibv_wr_opcode op, struct ibv_mr *own, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)own->addr, size, own->lkey};
	struct ibv_send_wr wr = {.opcode = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	if (ibv_post_send(id->qp, &wr, &bad) == 0)
		completion(id->send_cq);
}

static void all(const char *what, const char *memory, size_t n, char is)
{
	for (size_t i = 0; i < n; i++)
		if (memory[i] != is) {
			printf("%s: byte %zu is %d\n", what, i, memory[i]);
			exit(1);
		}
}

// neighbours maps and unmaps memory beside regions: the end of a region takes only its own pages.
static void neighbours(struct ibv_pd *pd)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *at = map(NULL, 4 * page, 0);
	struct ibv_mr *first = ibv_reg_mr(pd, at, page, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *second = ibv_reg_mr(pd, at + page + 100, 100, IBV_ACCESS_LOCAL_WRITE);
	must("regions", first && second);
	must("unmapping", munmap(at, page) == 0 && munmap(at + page, 50) == 0);
	must("a page of a region is free",
	     mmap(at + page, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
		     errno == EEXIST);
	must("unmapping", munmap(at, 4 * page) == 0);
	must("a page of no region is kept", map(at + 2 * page, page, MAP_FIXED_NOREPLACE) == at + 2 * page);
	memset(at + 2 * page, 5, page);
	must("deregistering", ibv_dereg_mr(first) == 0);
	must("the first page is kept", map(at, page, MAP_FIXED_NOREPLACE) == at);
	memset(at, 5, page);
	must("deregistering", ibv_dereg_mr(second) == 0);
	all("what the program has mapped", at, page, 5);
	all("what the program has mapped", at + 2 * page, page, 5);
	must("the second page is kept", map(at + page, page, MAP_FIXED_NOREPLACE) == at + page);
	must("unmapping", munmap(at, 3 * page) == 0);
}

// addresses returns how many bytes of addresses the process has.
static rlim_t addresses(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	must("statm", file && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
	return pages * (unsigned long)sysconf(_SC_PAGESIZE);
}

enum { much = 256 << 20, little = 64 << 20 };

// limit sets the limit of addresses to a little more than there are, and otherwise to none.
static void limit(int on)
{
	struct rlimit as;
	getrlimit(RLIMIT_AS, &as);
	as.rlim_cur = on ? addresses() + little : as.rlim_max;
	must("a limit of addresses", setrlimit(RLIMIT_AS, &as) == 0);
}

// failing makes calls that fail, and that would replace or move a region otherwise.
static void failing(char *target, size_t page)
{
	char *other = map(NULL, 3 * page, 0);
	must("a hole", munmap(other + page, page) == 0);
	must("no descriptor", mmap(target, page, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EBADF);
	must("no length", mmap(target, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
				  errno == EINVAL);
	must("in a page", mmap(target + 1, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
				  errno == EINVAL);
	must("not replacing", mmap(target, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_FIXED_NOREPLACE, -1,
				   0) == MAP_FAILED && errno == EEXIST);
	must("nothing unmapped", munmap(target, 0) < 0 && errno == EINVAL);
	must("unmapping in a page", munmap(target + 1, page) < 0 && errno == EINVAL);
	must("a hole moved there", mremap(other, 3 * page, 3 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED &&
					   errno == EFAULT);
	const size_t endless = (size_t)1 << 62;
	must("beyond all addresses", mmap(target, endless, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
					     errno == ENOMEM);
	must("unmapping beyond all addresses", munmap(target, endless) < 0 && errno == EINVAL);
	limit(1);
	must("moved to more than there is", mremap(target, size, much, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
	limit(0);
	must("not to move", mremap(other, page, page, MREMAP_FIXED, target) == MAP_FAILED && errno == EINVAL);
	must("into itself", mremap(target, 2 * page, 2 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target + page) == MAP_FAILED &&
				    errno == EINVAL);
	must("moved to nothing", mremap(target, page, 0, MREMAP_MAYMOVE | MREMAP_FIXED, other) == MAP_FAILED &&
					 errno == EINVAL);
	must("moved into a page", mremap(target, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, other + 1) == MAP_FAILED &&
					  errno == EINVAL);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	struct rdma_event_channel *at = rdma_create_event_channel(), *from = rdma_create_event_channel();
	struct rdma_cm_id *listener, *client, *server;
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	const char *way = argc > 1 ? argv[1] : "";

	addr.sin_addr.s_addr = inet_addr(argc < 3 ? "127.0.0.1" : argv[2]);
	must("channels", at && from);
	must("listening", rdma_create_id(at, &listener, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0 &&
				  rdma_listen(listener, 1) == 0);
	addr.sin_port = rdma_get_src_port(listener);
	must("resolving", rdma_create_id(from, &client, NULL, RDMA_PS_TCP) == 0 && rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 5000) == 0);
	next(from, RDMA_CM_EVENT_ADDR_RESOLVED);
	must("a route", rdma_resolve_route(client, 5000) == 0);
	next(from, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(client);
	must("connecting", rdma_connect(client, &param) == 0);
	server = next(at, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(server);
	if (argc < 3)
		neighbours(server->pd);
	size_t page = (size_t)sysconf(_SC_PAGESIZE), within = !strcmp(way, "a byte over") ? 100 : 0;
	size_t room = !strcmp(way, "over, without room elsewhere") ? much : size;
	char *target = map(NULL, room + within, 0) + within, *own = map(NULL, size, 0), *was = target, *mapped[later], *moved = NULL;
	FILE *file = tmpfile();
	if (!strcmp(way, "shrinking")) {
		must("a file", file && ftruncate(fileno(file), size) == 0);
		target = was = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
		must("its memory", target != MAP_FAILED);
	}
	struct ibv_mr *mr = ibv_reg_mr(server->pd, target, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *own_mr = ibv_reg_mr(client->pd, own, size, IBV_ACCESS_LOCAL_WRITE);
	must("regions", mr && own_mr);
	must("accepting", rdma_accept(server, &param) == 0);
	next(at, RDMA_CM_EVENT_ESTABLISHED);
	next(from, RDMA_CM_EVENT_ESTABLISHED);
	memset(own, 1, size);
	access_all(client, IBV_WR_RDMA_WRITE, own_mr, (uintptr_t)was, mr->rkey);
	access_all(client, IBV_WR_RDMA_READ, own_mr, (uintptr_t)was, mr->rkey); // completes after the Write has arrived
	all("what the peer has written", target, size, 1);

	size_t gone = size, first = 0; // the part that goes away
	int n = 0;
	if (!strcmp(way, "munmap"))
		must(way, munmap(target, size) == 0);
	else if (!strcmp(way, "half"))
		must(way, munmap(target + (first = size / 2), gone = size / 2) == 0);
	else if (!strcmp(way, "over"))
		mapped[n++] = map(target, size, MAP_FIXED);
	else if (!strcmp(way, "over, without room elsewhere")) {
		limit(1);
		mapped[n++] = map(target, much, MAP_FIXED);
		limit(0);
	} else if (!strcmp(way, "a byte over")) // with the rest of its page
		mapped[n++] = map(target - within, 1, MAP_FIXED), gone = page;
	else if (!strcmp(way, "failing")) {
		failing(target, page);
		gone = 0;
	} else if (!strcmp(way, "munmap, fixed")) {
		must(way, munmap(target, size) == 0);
		mapped[n++] = map(target, size, MAP_FIXED);
	} else if (!strcmp(way, "mremap, smaller"))
		must(way, mremap(target, size, first = size / 4, 0) == target && (gone = size - first));
	else if (!strcmp(way, "mremap, moved")) {
		void *to = map(NULL, 2 * size, 0);
		moved = mremap(target, size, 2 * size, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		must(way, moved == to);
	} else if (!strcmp(way, "madvise")) {
		must(way, madvise(target, size, MADV_DONTNEED) == 0);
		gone = 0;
	} else if (!strcmp(way, "fork")) {
		pid_t child = fork();
		if (child == 0) {
			must("unmapping", munmap(target, size) == 0);
			mapped[0] = map(target, size, MAP_FIXED);
			memset(mapped[0], 5, size);
			sleep(2);
			all("what the child has mapped", mapped[0], size, 5);
			_exit(0);
		}
		gone = 0;
	} else {
		must("shrinking", !strcmp(way, "shrinking"));
		gone = 0;
	}
	while (gone && n < later)
		mapped[n++] = map(NULL, gone, 0);
	for (int i = 0; i < n; i++)
		memset(mapped[i], 5, gone);
	if (!strcmp(way, "shrinking")) {
		must("shrinking", munmap(target, size) == 0 && ftruncate(fileno(file), 0) == 0);
		mapped[n++] = map(NULL, gone = size, 0);
		memset(mapped[0], 5, gone);
	}

	memset(own, 7, size);
	access_all(client, IBV_WR_RDMA_WRITE, own_mr, (uintptr_t)was, mr->rkey);
	memset(own, 0, size);
	access_all(client, IBV_WR_RDMA_READ, own_mr, (uintptr_t)was, mr->rkey);
	if (!strcmp(way, "failing"))
		all("what the peer has written since", target, size, 7);
	for (int i = 0; i < n; i++)
		all("what the program has mapped since", mapped[i], gone, 5);
	for (size_t i = 0; i < size; i++)
		must("the peer reads what was mapped since", own[i] != 5);
	if (moved)
		all("what was moved", moved, size, 1);
	int status = 0;
	must("the child", strcmp(way, "fork") || (wait(&status) > 0 && status == 0));
	must("deregistering", ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(own_mr) == 0);
	if (!strcmp(way, "munmap") && argc < 3) // the reserved pages are free
		must("mapping", map(was, size, MAP_FIXED_NOREPLACE) == was && munmap(was, size) == 0);
	puts("as it must be");
	return 0;
}
