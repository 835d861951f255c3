// Before it opens the device, this program overwrites and clears its environment, as servers do to show in ps what they
// are doing.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void)
{
	for (char **e = environ; *e; e++)
		memset(*e, ' ', strlen(*e));
	clearenv();
	if (access("/sys/class/infiniband/siw0/node_type", R_OK) < 0) {
		perror("access");
		return 1;
	}
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	puts(device && ibv_alloc_pd(device) ? "as it must be" : "wrong");
	return 0;
}
