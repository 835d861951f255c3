// A child that is forked while its parent listens must not keep the port: when the parent has destroyed the
// listener, the port is free.
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int must(const char *what, int failed)
{
	if (failed)
		printf("%s: %s\n", what, strerror(errno));
	return failed;
}

int main(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	int ready[2];

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (must("event channel", !channel) || must("id", rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) ||
	    must("bind", rdma_bind_addr(id, (struct sockaddr *)&addr)) || must("listen", rdma_listen(id, 1)) || must("pipe", pipe(ready)))
		return 1;
	addr.sin_port = rdma_get_src_port(id);
	pid_t child = fork();
	if (child == 0) {
		(void)!write(ready[1], "", 1);
		pause();
		_exit(0);
	}
	char octet;
	int wrong = must("the child", read(ready[0], &octet, 1) != 1) || must("destroy", rdma_destroy_id(id));
	int tcp = socket(AF_INET, SOCK_STREAM, 0);
	wrong |= must("binding the port again", bind(tcp, (struct sockaddr *)&addr, sizeof addr));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	rdma_destroy_event_channel(channel);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
