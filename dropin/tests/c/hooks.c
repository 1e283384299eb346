/*
 * Counts the functions that the library registers to run at exit. The functions of this file
 * replace those of the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

static int hooks;

int __cxa_atexit(void (*run)(void *), void *given, void *library)
{
	static int (*original)(void (*)(void *), void *, void *);
	Dl_info of, verbs;

	if (!original)
		original = (int (*)(void (*)(void *), void *, void *))dlsym(RTLD_NEXT, "__cxa_atexit");
	if (dladdr((void *)run, &of) && dladdr(dlsym(RTLD_DEFAULT, "ibv_open_device"), &verbs))
		hooks += of.dli_fbase == verbs.dli_fbase;
	return original(run, given, library);
}

static struct ibv_context *opened(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;

	if (!context) {
		perror("ibv_open_device");
		exit(1);
	}
	ibv_free_device_list(devices);
	return context;
}

int main(void)
{
	int status = 1, before = hooks;
	struct ibv_context *first = opened(), *second = opened();
	pid_t child;

	printf("hooks: %d\n", hooks - before);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* It has the hook of its parent. */
		before = hooks;
		opened();
		printf("hooks of the child: %d\n", hooks - before);
		exit(0);
	}
	waitpid(child, &status, 0);
	ibv_close_device(second);
	ibv_close_device(first);
	return status;
}
