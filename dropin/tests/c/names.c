/*
 * Prints the devices of ibv_get_device_list, those of rdma_get_devices, and the device of an id of
 * librdmacm. Opens each device and checks that its context belongs to it.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void list(void)
{
	int count = -1;
	struct ibv_device **devices = ibv_get_device_list(&count);
	struct ibv_device *kept[16] = { NULL };

	if (!devices || count > 16 || devices[count])
		fail("ibv_get_device_list");
	memcpy(kept, devices, (size_t)count * sizeof *devices);
	/* Devices stay valid without their list. */
	ibv_free_device_list(devices);
	for (int i = 0; i < count; i++) {
		struct ibv_context *context = ibv_open_device(kept[i]);
		struct ibv_device_attr attr;
		uint64_t guid = ibv_get_device_guid(kept[i]);

		if (!context || ibv_query_device(context, &attr))
			fail("ibv_open_device");
		if (context->device != kept[i] || attr.node_guid != guid)
			fail("the context belongs to another device");
		printf("%s %s %s %s %d %016" PRIx64 " %016" PRIx64 "\n",
		       ibv_get_device_name(kept[i]), kept[i]->dev_name, kept[i]->dev_path,
		       kept[i]->ibdev_path, ibv_get_device_index(kept[i]), be64toh(guid),
		       be64toh(attr.sys_image_guid));
		ibv_close_device(context);
	}
}

static void rdmacm(void)
{
	int count = -1;
	struct ibv_context **contexts = rdma_get_devices(&count);
	struct sockaddr_in near = { .sin_family = AF_INET };
	struct rdma_cm_id *id;

	if (!contexts || contexts[count])
		fail("rdma_get_devices");
	printf("rdmacm:");
	for (int i = 0; i < count; i++)
		printf(" %s", ibv_get_device_name(contexts[i]->device));
	near.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	near.sin_port = htons(1);
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&near, 2000))
		fail("rdma_resolve_addr");
	printf(", id: %s\n", id->verbs == contexts[0] ? "the first" : "another");
	rdma_destroy_id(id);
	rdma_free_devices(contexts);
}

int main(void)
{
	list();
	rdmacm();
	return 0;
}
