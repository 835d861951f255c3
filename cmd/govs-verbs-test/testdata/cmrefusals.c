// Writes each command of rdma_cm about an id in each state that one end alone can bring it to, with values that are
// right and values that are not, so that the answers are recorded (exec_record_test.go). The address of the device is
// the argument. It prints nothing, and fails only if it can't make an id, or bring it to a state.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <linux/types.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// As in refusals.c, the memory that commands name is at a fixed address.
static unsigned char *const memory = (unsigned char *)0x10000000;
enum { ANSWER = 0, VALUE = 2048, SIZE = 4096 };

static int cm;
static struct in_addr device;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t answer(void) { return (uint64_t)(uintptr_t)(memory + ANSWER); }

static int send_command(uint32_t number, const void *body, size_t n, unsigned out)
{
	unsigned char buf[1024];
	struct rdma_ucm_cmd_hdr h = {.cmd = number, .in = (__u16)n, .out = (__u16)out};
	memcpy(buf, &h, sizeof h);
	memcpy(buf + sizeof h, body, n);
	return write(cm, buf, sizeof h + n) >= 0;
}

#define COMMAND(number, body, out) send_command(RDMA_USER_CM_CMD_##number, &(body), sizeof(body), out)

// event takes the next event, and returns its type.
static uint32_t event(void)
{
	struct pollfd p = {.fd = cm, .events = POLLIN};
	struct rdma_ucm_get_event get = {.response = answer()};
	if (poll(&p, 1, 20000) != 1 || !COMMAND(GET_EVENT, get, sizeof(struct rdma_ucm_event_resp)))
		die("event");
	return ((struct rdma_ucm_event_resp *)(memory + ANSWER))->event;
}

static struct sockaddr_in at(in_addr_t addr, uint16_t port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = addr, .sin_port = htons(port)};
}

static uint32_t create(uint16_t ps, uint8_t type)
{
	struct rdma_ucm_create_id c = {.uid = 0x77, .response = answer(), .ps = ps, .qp_type = type};
	if (!COMMAND(CREATE_ID, c, 4))
		return UINT32_MAX;
	return *(uint32_t *)(memory + ANSWER);
}

static void destroy(uint32_t id)
{
	struct rdma_ucm_destroy_id d = {.response = answer(), .id = id};
	COMMAND(DESTROY_ID, d, 4);
}

static int bind_to(uint32_t id, in_addr_t addr, uint16_t port, uint16_t size)
{
	struct rdma_ucm_bind b = {.id = id, .addr_size = size};
	struct sockaddr_in sin = at(addr, port);
	memcpy(&b.addr, &sin, sizeof sin);
	return COMMAND(BIND, b, 0);
}

static int resolve(uint32_t id, in_addr_t addr, uint16_t family, uint16_t size)
{
	struct rdma_ucm_resolve_addr r = {.id = id, .timeout_ms = 2000, .dst_size = size};
	struct sockaddr_in sin = at(addr, 9);
	if (family != AF_INET)
		sin = (struct sockaddr_in){.sin_family = family};
	memcpy(&r.dst_addr, &sin, sizeof sin);
	return COMMAND(RESOLVE_ADDR, r, 0);
}

static int route(uint32_t id)
{
	struct rdma_ucm_resolve_route r = {.id = id, .timeout_ms = 2000};
	return COMMAND(RESOLVE_ROUTE, r, 0);
}

static int listen_on(uint32_t id)
{
	struct rdma_ucm_listen l = {.id = id, .backlog = 3};
	return COMMAND(LISTEN, l, 0);
}

enum state { NEW, BOUND, LISTENING, RESOLVED, ROUTED, STATES };

// in returns an id that it has brought to a state.
static uint32_t in(enum state s)
{
	uint32_t id = create(RDMA_PS_TCP, 2);
	int ok = id != UINT32_MAX;
	if (s == BOUND || s == LISTENING)
		ok = ok && bind_to(id, device.s_addr, 0, sizeof(struct sockaddr_in));
	if (s == LISTENING)
		ok = ok && listen_on(id);
	if (s == RESOLVED || s == ROUTED)
		ok = ok && resolve(id, device.s_addr, AF_INET, sizeof(struct sockaddr_in)) && event() == 0;
	if (s == ROUTED)
		ok = ok && route(id) && event() == 2;
	if (!ok)
		die("state");
	return id;
}

static void set(uint32_t id, uint32_t level, uint32_t name, uint32_t length)
{
	struct rdma_ucm_set_option o = {.optval = (uintptr_t)(memory + VALUE), .id = id, .level = level, .optname = name,
		.optlen = length};
	memset(memory + VALUE, 0, 1024);
	memory[VALUE] = 1;
	COMMAND(SET_OPTION, o, 0);
}

// look writes commands that leave the state as it is.
static void look(uint32_t id)
{
	struct rdma_ucm_query q = {.response = answer(), .id = id};
	for (q.option = 0; q.option < 4; q.option++) {
		COMMAND(QUERY, q, sizeof(struct rdma_ucm_query_addr_resp));
		COMMAND(QUERY, q, 4);
	}
	q.option = 0;
	COMMAND(QUERY_ROUTE, q, sizeof(struct rdma_ucm_query_route_resp));
	COMMAND(QUERY_ROUTE, q, 4);
	struct rdma_ucm_init_qp_attr a = {.response = answer(), .id = id};
	for (a.qp_state = 0; a.qp_state < 9; a.qp_state++)
		COMMAND(INIT_QP_ATTR, a, 144);
	a.qp_state = 1;
	COMMAND(INIT_QP_ATTR, a, 100);
	struct rdma_ucm_notify n = {.id = id};
	for (n.event = 0; n.event < 20; n.event++)
		COMMAND(NOTIFY, n, 0);
	for (uint32_t name = 0; name < 5; name++)
		for (uint32_t length = 0; length < 6; length++)
			set(id, 0, name, length);
	set(id, 1, 1, 0);
	set(id, 1, 1, 72);
	set(id, 1, 2, 72);
	set(id, 2, 0, 1);
	struct rdma_ucm_migrate_id m = {.response = answer(), .id = id};
	static const int fds[] = {-1, 0, 1000};
	for (int i = 0; i < 3; i++) {
		m.fd = (uint32_t)fds[i];
		COMMAND(MIGRATE_ID, m, 4);
	}
	struct rdma_ucm_connect c = {.id = id, .conn_param = {.qp_num = 0xabcdef}};
	COMMAND(CONNECT, c, 0);
	struct rdma_ucm_disconnect d = {.id = id};
	COMMAND(DISCONNECT, d, 0);
	struct rdma_ucm_reject r = {.id = id, .reason = 9};
	COMMAND(REJECT, r, 0);
	struct rdma_ucm_join_mcast j = {.response = answer(), .uid = 0x99, .id = id,
		.addr_size = sizeof(struct sockaddr_in)};
	struct sockaddr_in group = at(htonl(0xe0000009), 0);
	memcpy(&j.addr, &group, sizeof group);
	for (j.join_flags = 0; j.join_flags < 3; j.join_flags++)
		COMMAND(JOIN_MCAST, j, 4);
	struct rdma_ucm_destroy_id l = {.response = answer(), .id = id};
	COMMAND(LEAVE_MCAST, l, 4);
}

// move writes command number i of the commands that may change the state. It reports whether there is such a number.
static int move(uint32_t id, int i)
{
	struct rdma_ucm_accept accept = {.uid = 0x88, .id = id, .conn_param = {.qp_num = 0xabcdef}};
	struct rdma_ucm_connect connect = {.id = id, .conn_param = {.qp_num = 0xabcdef, .valid = 1}};
	switch (i) {
	case 0: return bind_to(id, device.s_addr, 0, sizeof(struct sockaddr_in)), 1;
	case 1: return bind_to(id, htonl(0xc6336463), 0, sizeof(struct sockaddr_in)), 1; // not an address of this host
	case 2: return bind_to(id, device.s_addr, 0, 8), 1;
	case 3: return bind_to(id, device.s_addr, 0, 0), 1;
	case 4: return listen_on(id), 1;
	case 5: return resolve(id, device.s_addr, AF_INET, 8), 1;
	case 6: return resolve(id, device.s_addr, AF_UNIX, sizeof(struct sockaddr_in)), 1;
	case 7:
		if (resolve(id, device.s_addr, AF_INET, sizeof(struct sockaddr_in)))
			event();
		return 1;
	case 8:
		if (route(id))
			event();
		return 1;
	case 9: return COMMAND(CONNECT, connect, 0), 1; // no such QP
	case 10: return COMMAND(ACCEPT, accept, 0), 1;
	case 11:
		accept.conn_param.valid = 1;
		return COMMAND(ACCEPT, accept, 0), 1;
	case 12: return destroy(id), 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 2 || !inet_aton(argv[1], &device))
		return 2;
	if (mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
		die("mmap");
	cm = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (cm < 0)
		die("rdma_cm");
	static const uint16_t spaces[] = {0, 2, 0x106, 0x111, 0x13f, 0x9999};
	for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
		for (uint8_t type = 0; type < 12; type++) {
			uint32_t id = create(spaces[i], type);
			if (id != UINT32_MAX)
				destroy(id);
		}
	for (enum state s = NEW; s < STATES; s++) {
		uint32_t id = in(s);
		look(id);
		destroy(id);
		for (int i = 0, more = 1; more; i++) {
			id = in(s);
			more = move(id, i);
			destroy(id);
		}
	}
	return 0;
}
