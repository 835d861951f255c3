// A constructor that opens the device: before main, or in a library that the program loads.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static struct ibv_context *device;

__attribute__((constructor)) static void begin(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	device = list && *list ? ibv_open_device(*list) : NULL;
}

__attribute__((destructor)) static void end(void)
{
	puts(device && ibv_alloc_pd(device) && ibv_alloc_pd(device) ? "as it must be" : "wrong");
}

int main(int argc, char **argv)
{
	if (argc > 1 && !dlopen(argv[1], RTLD_NOW))
		puts(dlerror());
	return device == NULL;
}
