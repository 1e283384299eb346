/*
 * Calls every unsupported function by its prototype. Each call must set errno to EOPNOTSUPP and
 * return EOPNOTSUPP, -1 or NULL, as its prototype requires. Prints every other result, and the
 * number of calls of each kind. The library itself must print nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

static int counts[4];

/* Converts `due` to the type of the call, so that an int of -1 does not match a wider type. */
#define ANSWERS(kind, call, due)                                                        \
	do {                                                                            \
		errno = 0;                                                              \
		__typeof__(call) got = (call);                                          \
		int error = errno;                                                      \
		if (got != (__typeof__(got))(due) || error != EOPNOTSUPP)               \
			printf("%s: %lld, errno %d\n", #call, (long long)got, error);   \
		counts[kind]++;                                                         \
	} while (0)
#define NUMBER(call) ANSWERS(0, call, EOPNOTSUPP)
#define MINUS_ONE(call) ANSWERS(1, call, -1)
#define IS_NULL(call) ANSWERS(2, call, NULL)
#define NOTHING(call) ((call), counts[3]++)

static void verbs(struct ibv_context *context, struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_ah_attr attr = { .port_num = 1 };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	struct ibv_grh grh = { .hop_limit = 1 };
	struct ibv_ece ece = { .vendor_id = 1 };
	union ibv_gid gid = { .raw = { 0xff } };
	uint8_t mac[6] = { 0 };
	uint16_t vid = 0;

	NUMBER(ibv_attach_mcast(qp, &gid, 0));
	NUMBER(ibv_detach_mcast(qp, &gid, 0));
	NUMBER(ibv_destroy_ah(NULL));
	NUMBER(ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr));
	NUMBER(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid));
	NUMBER(ibv_query_ece(qp, &ece));
	NUMBER(ibv_set_ece(qp, &ece));
	IS_NULL(ibv_create_ah(pd, &attr));
	IS_NULL(ibv_create_ah_from_wc(pd, &wc, &grh, 1));
	IS_NULL(ibv_import_device(-1));
	IS_NULL(ibv_import_mr(pd, 1));
	IS_NULL(ibv_import_pd(context, 1));
	IS_NULL(ibv_import_dm(context, 1));
	IS_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0));
	NOTHING(ibv_unimport_mr(NULL));
	NOTHING(ibv_unimport_pd(NULL));
	NOTHING(ibv_unimport_dm(NULL));
}

static void rdmacm(struct rdma_cm_id *id)
{
	struct sockaddr_storage addr = { .ss_family = AF_INET };
	struct sockaddr *to = (struct sockaddr *)&addr;
	struct rdma_cm_join_mc_attr_ex join = { .addr = to };
	struct ibv_ece ece = { .vendor_id = 1 };

	MINUS_ONE(rdma_join_multicast(id, to, NULL));
	MINUS_ONE(rdma_join_multicast_ex(id, &join, NULL));
	MINUS_ONE(rdma_leave_multicast(id, to));
	MINUS_ONE(rdma_get_remote_ece(id, &ece));
	MINUS_ONE(rdma_set_local_ece(id, &ece));
	MINUS_ONE(rdma_reject_ece(id, NULL, 0));
}

static void rsockets(void)
{
	struct sockaddr_storage addr = { .ss_family = AF_INET };
	struct sockaddr *to = (struct sockaddr *)&addr;
	socklen_t len = sizeof(addr);
	char bytes[8] = { 0 };
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct pollfd fd = { .fd = -1 };
	int on = 1;

	MINUS_ONE(rsocket(AF_INET, SOCK_STREAM, 0));
	MINUS_ONE(rbind(-1, to, len));
	MINUS_ONE(rlisten(-1, 1));
	MINUS_ONE(raccept(-1, to, &len));
	MINUS_ONE(rconnect(-1, to, len));
	MINUS_ONE(rshutdown(-1, SHUT_RDWR));
	MINUS_ONE(rclose(-1));
	MINUS_ONE(rrecv(-1, bytes, sizeof(bytes), 0));
	MINUS_ONE(rrecvfrom(-1, bytes, sizeof(bytes), 0, to, &len));
	MINUS_ONE(rrecvmsg(-1, &message, 0));
	MINUS_ONE(rsend(-1, bytes, sizeof(bytes), 0));
	MINUS_ONE(rsendto(-1, bytes, sizeof(bytes), 0, to, len));
	MINUS_ONE(rsendmsg(-1, &message, 0));
	MINUS_ONE(rread(-1, bytes, sizeof(bytes)));
	MINUS_ONE(rreadv(-1, &iov, 1));
	MINUS_ONE(rwrite(-1, bytes, sizeof(bytes)));
	MINUS_ONE(rwritev(-1, &iov, 1));
	MINUS_ONE(rpoll(&fd, 1, 0));
	MINUS_ONE(rselect(0, NULL, NULL, NULL, NULL));
	MINUS_ONE(rgetpeername(-1, to, &len));
	MINUS_ONE(rgetsockname(-1, to, &len));
	MINUS_ONE(rsetsockopt(-1, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	MINUS_ONE(rgetsockopt(-1, SOL_SOCKET, SO_REUSEADDR, &on, &len));
	MINUS_ONE(rfcntl(-1, 1));
	MINUS_ONE(riomap(-1, bytes, sizeof(bytes), 0, 0, 0));
	MINUS_ONE(riounmap(-1, bytes, sizeof(bytes)));
	MINUS_ONE(riowrite(-1, bytes, sizeof(bytes), 0, 0));
}

/*
 * Names that a program finds only with their version: names of the ABI before 2007, and names for
 * providers.
 */
static void versions(void)
{
	void *(*pointer)(void *) = (void *(*)(void *))dlvsym(RTLD_DEFAULT, "ibv_open_device", "IBVERBS_1.0");
	int (*number)(void *, void *) = (int (*)(void *, void *))dlvsym(RTLD_DEFAULT, "ibv_query_device", "IBVERBS_1.0");
	int (*command)(void *) = (int (*)(void *))dlvsym(RTLD_DEFAULT, "ibv_cmd_dealloc_pd", "IBVERBS_PRIVATE_34");

	if (!pointer || !number || !command) {
		printf("%s\n", dlerror());
		return;
	}
	IS_NULL(pointer(NULL));
	NUMBER(number(NULL, NULL));
	NUMBER(command(NULL));
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = context ? ibv_create_cq(context, 4, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &attr) : NULL;
	struct rdma_cm_id *id = NULL;

	if (!qp || rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)) {
		perror("no queue pair or no id");
		return 1;
	}
	verbs(context, pd, qp);
	rdmacm(id);
	rsockets();
	versions();
	if (rdma_destroy_id(id) || ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context)) {
		perror("cleanup failed");
		return 1;
	}
	ibv_free_device_list(devices);
	printf("numbers %d, -1 %d, NULL %d, nothing %d\n", counts[0], counts[1], counts[2], counts[3]);
	return 0;
}
