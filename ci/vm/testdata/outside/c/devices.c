/* A program of another project that uses libibverbs: it lists the RDMA devices with their transports and the states of
 * their ports. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int n, i;
	struct ibv_device **devices = ibv_get_device_list(&n);

	if (!devices) {
		perror("ibv_get_device_list");
		return 1;
	}
	for (i = 0; i < n; i++) {
		struct ibv_context *context = ibv_open_device(devices[i]);
		struct ibv_port_attr port;

		if (!context || ibv_query_port(context, 1, &port)) {
			perror(ibv_get_device_name(devices[i]));
			return 1;
		}
		printf("%s: %s, %s\n", ibv_get_device_name(devices[i]),
		       devices[i]->transport_type == IBV_TRANSPORT_IWARP ? "iWARP" : "InfiniBand or RoCE",
		       ibv_port_state_str(port.state));
		ibv_close_device(context);
	}
	ibv_free_device_list(devices);
	return 0;
}
