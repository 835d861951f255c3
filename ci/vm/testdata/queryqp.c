// Prints the bytes of the kernel's answer to the command QUERY_QP of siw0. libibverbs asks for it in the same way.
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	while (list && *list && strcmp(ibv_get_device_name(*list), "siw0"))
		list++;
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
	struct ibv_cq *cq = device ? ibv_create_cq(device, 1, NULL, NULL, 0) : NULL;
	if (!pd || !cq)
		return 2;
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return 3;
	struct ib_uverbs_query_qp_resp answer;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_query_qp query;
	} command = {{IB_USER_VERBS_CMD_QUERY_QP, sizeof command / 4, sizeof answer / 4},
		     {.response = (uintptr_t)&answer, .qp_handle = qp->handle, .attr_mask = IBV_QP_STATE}};
	memset(&answer, 0, sizeof answer);
	if (write(device->cmd_fd, &command, sizeof command) != sizeof command)
		return 4;
	printf("answer=");
	for (size_t i = 0; i < sizeof answer; i++)
		printf("%02x", ((unsigned char *)&answer)[i]);
	puts("");
	return 0;
}
