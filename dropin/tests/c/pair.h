/*
 * Two processes with a socket between them, over which they exchange the numbers of their queue
 * pairs, as programs without librdmacm do.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static int other = -1;
static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Starts the other process. Returns its number, or 0 in it. */
static inline pid_t split(void)
{
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair");
	child = fork();
	if (child < 0)
		die("fork");
	/* If one of the two dies, the other would wait for ever. */
	alarm(500);
	other = ends[child == 0];
	close(ends[child != 0]);
	return child;
}

/* Gives `size` bytes to the other process, and gets as many. */
static inline void swap(const void *ours, void *theirs, size_t size)
{
	size_t got = 0;

	if (write(other, ours, size) != (ssize_t)size)
		die("write");
	while (got < size) {
		ssize_t part = read(other, (char *)theirs + got, size - got);

		if (part <= 0)
			die("the other process has ended");
		got += part;
	}
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0] || !(context = ibv_open_device(list[0])))
		die("ibv_open_device");
	ibv_free_device_list(list);
	if (!(pd = ibv_alloc_pd(context)) || ibv_query_gid(context, 1, 0, &gid))
		die("ibv_alloc_pd");
}

static struct ibv_mr *registered(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, ALL_RIGHTS);

	if (!mr)
		die("ibv_reg_mr");
	return mr;
}

struct address {
	uint32_t number;
	union ibv_gid gid;
};

static struct address address_of(struct ibv_qp *qp)
{
	return (struct address){ .number = qp->qp_num, .gid = gid };
}

/* Connects the queue pair, with the attributes that NCCL and 3FS set. */
static void connect_to(struct ibv_qp *qp, struct address peer, int reads)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer.number,
		.max_dest_rd_atomic = reads,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = peer.gid, .hop_limit = 255 },
		},
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = reads,
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}
