// After it has opened the device, this program writes beyond the end of memory that it has allocated.
#include <infiniband/verbs.h>
#include <stdlib.h>

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	volatile char *memory = malloc(16);
	if (!device)
		return 2;
	memory[16] = 1;
	return 0;
}
