// streamcalls ADDR PORT connect|listen CALL... is one end of an rsocket that makes calls, one after
// the other:
//   wN  write N bytes        rN  read N bytes
//   e   read, which has to return the end
//   s   shut down writing    b  shut down both directions    c  close
// Byte i of each direction is 7 * i, so that each end knows what it has to read.
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rsocket.h>

static unsigned char buf[1 << 20];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

// opened connects, or waits for one connection.
static int opened(const char *addr, const char *port, int listens)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *ai;
	if (getaddrinfo(addr, port, &hints, &ai))
		die("getaddrinfo");
	int s = rsocket(ai->ai_family, SOCK_STREAM, 0), one = 1;
	if (s < 0)
		die("rsocket");
	if (!listens) {
		if (rconnect(s, ai->ai_addr, ai->ai_addrlen))
			die("rconnect");
		return s;
	}
	rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (rbind(s, ai->ai_addr, ai->ai_addrlen) || rlisten(s, 1))
		die("rlisten");
	int c = raccept(s, NULL, NULL);
	if (c < 0)
		die("raccept");
	return c;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	int s = opened(argv[1], argv[2], !strcmp(argv[3], "listen"));
	unsigned char sent = 0, got = 0;
	for (int i = 4; i < argc; i++) {
		size_t n = strtoul(argv[i] + 1, NULL, 10);
		if (n > sizeof buf)
			return 2;
		switch (argv[i][0]) {
		case 'w':
			for (size_t j = 0; j < n; j++, sent += 7)
				buf[j] = sent;
			if (rsend(s, buf, n, 0) != (ssize_t) n)
				die(argv[i]);
			break;
		case 'r':
			for (size_t have = 0; have < n;) {
				ssize_t r = rrecv(s, buf + have, n - have, MSG_WAITALL);
				if (r <= 0)
					die(argv[i]);
				have += r;
			}
			for (size_t j = 0; j < n; j++, got += 7)
				if (buf[j] != got) {
					printf("%s: octet %zu is %d and not %d\n", argv[i], j, buf[j], got);
					return 1;
				}
			break;
		case 'e':
			if (rrecv(s, buf, 1, 0) != 0)
				die(argv[i]);
			break;
		case 's':
		case 'b':
			if (rshutdown(s, argv[i][0] == 's' ? SHUT_WR : SHUT_RDWR))
				die(argv[i]);
			break;
		case 'c':
			if (rclose(s))
				die(argv[i]);
			break;
		default:
			return 2;
		}
	}
	puts("all calls were made");
	return 0;
}
