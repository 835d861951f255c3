// A library whose constructor opens the device before those of libgovs-preload.so have run, because the program is linked
// with it. What is specific to its thread stays. With LIBRARY this is that library, otherwise the program.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#ifdef LIBRARY
int device;
pthread_key_t key;

__attribute__((constructor)) static void begin(void)
{
	pthread_key_create(&key, NULL);
	pthread_setspecific(key, &key);
	device = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
}
#else
#include "want.h"

extern int device;
extern pthread_key_t key;

static void *uses(void *unused)
{
	want("a command of no meaning in another thread", write(device, "", 1), -1);
	return unused;
}

int main(void)
{
	pthread_t thread;
	want("a command of no meaning", write(device, "", 1), -1);
	want("what is specific to the thread", pthread_getspecific(key) == &key, 1);
	pthread_create(&thread, NULL, uses, NULL);
	pthread_join(thread, NULL);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
#endif
