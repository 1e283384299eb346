/*
 * Prints whether an id has a device after it is bound to an address. As in the kernel, an id
 * that is bound to a loopback address or to the wildcard has no device.
 */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

static struct sockaddr *of(const char *text)
{
	static struct sockaddr_in addr;

	memset(&addr, 0, sizeof addr);
	addr.sin_family = AF_INET;
	inet_pton(AF_INET, text, &addr.sin_addr);
	return (struct sockaddr *)&addr;
}

static void tell(const char *text, int to)
{
	struct rdma_cm_id *id;
	int failed = rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);

	if (!failed)
		failed = to ? rdma_resolve_addr(id, NULL, of(text), 1000) : rdma_bind_addr(id, of(text));
	printf("%s %s: %s\n", to ? "to" : "at", text, failed ? "failed" : id->verbs ? "a device" : "none");
	if (!failed)
		rdma_destroy_id(id);
}

int main(int argc, char **argv)
{
	(void)argc;
	tell("0.0.0.0", 0);
	tell("127.0.0.1", 0);
	tell(argv[1], 0);
	tell("127.0.0.1", 1);
	return 0;
}
