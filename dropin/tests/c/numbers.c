/*
 * Connects queue pairs of one process by their numbers, and prints what a program can see of it.
 * A send to a peer that is not there fails after UWARP_OOB_TIMEOUT.
 *
 *     numbers
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define FOR_RTR (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define FOR_RTS (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | \
		 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

#define FOR_RTR_UC (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define FOR_RTS_UC (IBV_QP_STATE | IBV_QP_SQ_PSN)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[8192];

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0] || !(context = ibv_open_device(list[0])))
		die("open");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!pd || !cq || !mr || ibv_query_gid(context, 1, 0, &gid))
		die("objects");
}

static struct ibv_qp *create_of(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		die("ibv_create_qp");
	return qp;
}

static struct ibv_qp *create(void)
{
	return create_of(IBV_QPT_RC);
}

static int init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_ACCESS_FLAGS);
}

static int rtr_with(struct ibv_qp *qp, uint32_t peer, int mask)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 5,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
	};

	return ibv_modify_qp(qp, &attr, mask);
}

static int rtr(struct ibv_qp *qp, uint32_t peer)
{
	return rtr_with(qp, peer, FOR_RTR);
}

static int rts_with(struct ibv_qp *qp, int mask)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 8,
		.retry_cnt = 1,
		.rnr_retry = 7,
		.sq_psn = 6,
		.max_rd_atomic = 3,
	};

	return ibv_modify_qp(qp, &attr, mask);
}

static int rts(struct ibv_qp *qp)
{
	return rts_with(qp, FOR_RTS);
}

static int state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr unused;

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &unused))
		die("ibv_query_qp");
	return attr.qp_state;
}

static int post_receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + 4096, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* The Immediate Data counts where the opcode has some. */
static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.imm_data = htonl(0x01020304),
		.wr.rdma = { .remote_addr = (uintptr_t)memory + 2048, .rkey = mr->rkey },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int by_id(const void *a, const void *b)
{
	const struct ibv_wc *x = a, *y = b;

	return (x->wr_id > y->wr_id) - (x->wr_id < y->wr_id);
}

/* Prints the next completions in the order of their ids. */
static void reap(int count)
{
	struct ibv_wc wc[8];
	int got = 0;

	while (got < count) {
		int found = ibv_poll_cq(cq, count - got, wc + got);

		if (found < 0)
			die("ibv_poll_cq");
		got += found;
	}
	qsort(wc, count, sizeof wc[0], by_id);
	for (int i = 0; i < count; i++)
		if (!wc[i].status && wc[i].wc_flags & IBV_WC_WITH_IMM)
			printf("  %lu: %s, opcode %d, %u bytes, immediate data %#x\n",
			       (unsigned long)wc[i].wr_id, ibv_wc_status_str(wc[i].status),
			       wc[i].opcode, wc[i].byte_len, ntohl(wc[i].imm_data));
		else
			printf("  %lu: %s\n", (unsigned long)wc[i].wr_id,
			       ibv_wc_status_str(wc[i].status));
}

static void steps(void)
{
	struct ibv_qp *a = create(), *b = create();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr unused;

	puts("steps out of order, or without an attribute");
	printf("  RTR from RESET %d\n", rtr(a, b->qp_num) == EINVAL);
	printf("  receive in RESET %d\n", post_receive(a, 1) == EINVAL);
	printf("  INIT %d\n", init(a));
	printf("  RTS from INIT %d\n", rts(a) == EINVAL);
	for (int bit = IBV_QP_STATE << 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (FOR_RTR & bit)
			if (rtr_with(a, b->qp_num, FOR_RTR & ~bit) != EINVAL ||
			    rtr_with(a, b->qp_num, IBV_QP_STATE | bit) != EINVAL)
				printf("  RTR without %#x, or with it alone\n", bit);
	printf("  RTR with the state alone %d\n", rtr_with(a, b->qp_num, IBV_QP_STATE) == EINVAL);
	printf("  send in INIT %d\n", post(a, IBV_WR_SEND, 1) != 0);
	printf("  RTR %d\n", rtr(a, b->qp_num));
	printf("  state %d\n", state(a));
	printf("  RTR again %d\n", rtr(a, b->qp_num) == EINVAL);
	printf("  RTS %d\n", rts(a));
	printf("  INIT and RTR after RTS %d %d\n", init(a) == EINVAL, rtr(a, b->qp_num) == EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR, .cur_qp_state = IBV_QPS_INIT };
	printf("  from another state %d\n",
	       ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE) == EINVAL);
	if (ibv_query_qp(a, &attr, FOR_RTR | FOR_RTS, &unused))
		die("ibv_query_qp");
	printf("  state %d, peer %d, PSNs %u %u, MTU %d, Reads %d %d, timeout %d, retries %d %d\n",
	       attr.qp_state, attr.dest_qp_num == b->qp_num, attr.rq_psn, attr.sq_psn,
	       attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.timeout,
	       attr.retry_cnt, attr.rnr_retry);
	printf("  GID %d\n", !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
}

/* Sends with immediate data by ibv_wr_send_imm. */
static void with_calls(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr), *peer = create();
	struct ibv_qp_ex *ex = qp ? ibv_qp_to_qp_ex(qp) : NULL;

	puts("the same by calls");
	if (!ex || init(qp) || init(peer) || post_receive(peer, 40) || rtr(qp, peer->qp_num) ||
	    rtr(peer, qp->qp_num) || rts(qp))
		die("connect");
	ibv_wr_start(ex);
	ex->wr_id = 41;
	ex->wr_flags = 0;
	ibv_wr_send_imm(ex, htonl(0x05060708));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 24);
	if (ibv_wr_complete(ex))
		die("ibv_wr_complete");
	reap(2);
	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
}

static void pairs(void)
{
	struct ibv_qp *a = create(), *b = create(), *c = create();
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	puts("a send before the peer knows its number, and a peer in RTR");
	if (init(a) || init(b) || rtr(a, b->qp_num) || rts(a) || post_receive(b, 1) ||
	    post(a, IBV_WR_SEND, 2) || rtr(b, a->qp_num))
		die("connect");
	reap(2);
	puts("a Write and a Read");
	strcpy(memory, "by number");
	post(a, IBV_WR_RDMA_WRITE, 3);
	memset(memory, 0, 64);
	reap(1);
	post(a, IBV_WR_RDMA_READ, 4);
	reap(1);
	printf("  %s\n", memory);
	puts("a Send and a Write with immediate data");
	post_receive(b, 30);
	post_receive(b, 31);
	post(a, IBV_WR_SEND_WITH_IMM, 32);
	post(a, IBV_WR_RDMA_WRITE_WITH_IMM, 33);
	reap(4);
	with_calls();
	// What is outstanding at a reset makes no completion.
	puts("both are reset, and meet again");
	if (post_receive(a, 50) || post_receive(b, 51) ||
	    ibv_modify_qp(a, &reset, IBV_QP_STATE) || ibv_modify_qp(b, &reset, IBV_QP_STATE) ||
	    post_receive(a, 5) != EINVAL || init(a) || init(b) || post_receive(a, 5) ||
	    post_receive(b, 6) || rtr(b, a->qp_num) ||
	    rtr(a, b->qp_num) || rts(a) || rts(b) || post(a, IBV_WR_SEND, 7) ||
	    post(b, IBV_WR_SEND, 8))
		die("connect again");
	reap(4);
	puts("to itself");
	if (init(c) || rtr(c, c->qp_num) || rts(c) || post_receive(c, 9) ||
	    post(c, IBV_WR_SEND, 10))
		die("connect to itself");
	reap(2);
	puts("the peer is destroyed");
	post_receive(a, 11);
	ibv_destroy_qp(b);
	usleep(100000);
	printf("  state %d, completions %d\n", state(a), ibv_poll_cq(cq, 1, &(struct ibv_wc){}));
	post(a, IBV_WR_SEND, 12);
	reap(2);
	printf("  state %d, RTS %d\n", state(a), rts(a) == EINVAL);
	ibv_destroy_qp(a);
	ibv_destroy_qp(c);
}

static void nobody(void)
{
	struct ibv_qp *a = create(), *b = create();

	puts("the peer never knows the number");
	if (init(a) || rtr(a, b->qp_num) || rts(a) || post(a, IBV_WR_SEND, 1) ||
	    post(a, IBV_WR_SEND, 2))
		die("connect");
	reap(2);
	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
}

/* Sends of an unreliable queue pair are dropped if there is no receive or no peer. */
static void unreliable(void)
{
	struct ibv_qp *a = create_of(IBV_QPT_UC), *b = create_of(IBV_QPT_UC);

	puts("an unreliable connection");
	init(a);
	for (int bit = IBV_QP_STATE << 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (FOR_RTR_UC & bit)
			if (rtr_with(a, b->qp_num, FOR_RTR_UC & ~bit) != EINVAL)
				printf("  RTR without %#x\n", bit);
	if (init(b) || rtr_with(a, b->qp_num, FOR_RTR_UC) || rtr_with(b, a->qp_num, FOR_RTR_UC))
		die("RTR");
	printf("  RTS without a PSN %d\n", rts_with(a, IBV_QP_STATE) == EINVAL);
	if (rts_with(a, FOR_RTS_UC) || rts_with(b, FOR_RTS_UC))
		die("RTS");
	printf("  Read %d\n", post(a, IBV_WR_RDMA_READ, 1) == EINVAL);
	puts("without a receive, and with one");
	post(a, IBV_WR_SEND, 1);
	reap(1);
	/* It arrives behind the Send, which has been dropped then. */
	memory[2048] = 0;
	memory[0] = 1;
	post(a, IBV_WR_RDMA_WRITE, 2);
	reap(1);
	while (!*(volatile char *)(memory + 2048))
		ibv_poll_cq(cq, 1, &(struct ibv_wc){});
	post_receive(b, 3);
	post(a, IBV_WR_SEND, 4);
	reap(2);
	puts("the peer is destroyed");
	ibv_destroy_qp(b);
	for (int id = 5; id < 8; id++) {
		usleep(100000);
		post(a, IBV_WR_SEND, id);
		reap(1);
	}
	printf("  state %d\n", state(a));
	ibv_destroy_qp(a);
}

/* A child of a fork has a device of its own. Its queue pair is another process's for the parent. */
static void forked(void)
{
	int to_child[2], to_parent[2], status = 1;
	uint32_t peer;
	struct ibv_qp *qp;
	pid_t child;

	puts("a queue pair of the parent and one of the child");
	fflush(stdout);
	if (pipe(to_child) || pipe(to_parent))
		die("pipe");
	child = fork();
	if (child == 0)
		open_all();
	qp = create();
	if (write(child ? to_child[1] : to_parent[1], &qp->qp_num, 4) != 4 ||
	    read(child ? to_parent[0] : to_child[0], &peer, 4) != 4)
		die("exchange");
	if (init(qp) || post_receive(qp, 1) || rtr(qp, peer) || rts(qp) ||
	    post(qp, IBV_WR_SEND, 2))
		die("connect");
	if (child == 0) {
		struct ibv_wc wc;
		int got = 0;

		while (got < 2)
			if (ibv_poll_cq(cq, 1, &wc) == 1)
				got += wc.status == IBV_WC_SUCCESS ? 1 : (exit(1), 0);
		exit(0);
	}
	reap(2);
	waitpid(child, &status, 0);
	printf("  child %d\n", status);
}

int main(void)
{
	open_all();
	steps();
	pairs();
	nobody();
	unreliable();
	forked();
	return 0;
}
