/*
 * Opens the first device, runs the shell command in argv[1] if there is one, and prints the GID
 * table: index, GID, type by the public and by the private function, and interface. Checks that all
 * functions agree about the table.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define MOST 128

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void differ(const char *what, int index)
{
	fprintf(stderr, "%s differs at index %d\n", what, index);
	exit(1);
}

int main(int argc, char **argv)
{
	static struct ibv_gid_entry table[MOST];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	/* ibv_devinfo uses this function of libibverbs, which no header declares. */
	int (*private_type)(struct ibv_context *, uint8_t, unsigned int, int *) =
		dlvsym(RTLD_DEFAULT, "ibv_query_gid_type", "IBVERBS_PRIVATE_34");
	struct ibv_port_attr port;
	ssize_t count;

	if (!context || !private_type)
		fail("no device");
	if (argc > 1 && system(argv[1]))
		fail(argv[1]);
	if (ibv_query_port(context, 1, &port))
		fail("ibv_query_port");
	count = ibv_query_gid_table(context, table, MOST, 0);
	if (count != port.gid_tbl_len)
		differ("gid_tbl_len", (int)count);
	for (int i = 0; i < count; i++) {
		struct ibv_gid_entry entry;
		union ibv_gid gid;
		char text[INET6_ADDRSTRLEN], name[IF_NAMESIZE] = "none";
		int type;

		if (ibv_query_gid(context, 1, i, &gid) || memcmp(&gid, &table[i].gid, sizeof gid))
			differ("ibv_query_gid", i);
		if (ibv_query_gid_ex(context, 1, i, &entry, 0) ||
		    memcmp(&entry, &table[i], sizeof entry))
			differ("ibv_query_gid_ex", i);
		if (private_type(context, 1, i, &type))
			fail("ibv_query_gid_type");
		inet_ntop(AF_INET6, &gid, text, sizeof text);
		if (entry.ndev_ifindex)
			if_indextoname(entry.ndev_ifindex, name);
		printf("%u %s %u %d %s\n", entry.gid_index, text, entry.gid_type, type, name);
	}
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
