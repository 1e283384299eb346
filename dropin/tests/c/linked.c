/*
 * Is linked with libibverbs and librdmacm. Prints the files that define the functions of both
 * libraries, and the number of devices.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static void tell(void *function)
{
	Dl_info where;

	if (dladdr(function, &where))
		printf("%s\n", where.dli_fname);
}

int main(void)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	tell((void *)(size_t)ibv_get_device_list);
	tell((void *)(size_t)rdma_create_event_channel);
	printf("%d %s\n", count, count ? ibv_get_device_name(devices[0]) : "none");
	if (devices)
		ibv_free_device_list(devices);
	return 0;
}
