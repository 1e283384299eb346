/*
 * Sends datagrams between queue pairs of one process, and prints what a program can see of them.
 *
 *     datagrams
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define KEY 0x11111111
#define GRH 40

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
/* Receives come into the first half. */
static char memory[16384];

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };

	if (!list || !list[0] || !(context = ibv_open_device(list[0])))
		die("open");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq_ex(context, &attr);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !mr || ibv_query_gid(context, 1, 0, &gid))
		die("objects");
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	if (!qp)
		die("ibv_create_qp_ex");
	return qp;
}

static int init(struct ibv_qp *qp, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY };

	return ibv_modify_qp(qp, &attr, mask);
}

static int step(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .sq_psn = 5 };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0));
}

static struct ibv_ah *handle(int global, union ibv_gid to)
{
	struct ibv_ah_attr attr = {
		.is_global = global,
		.port_num = 1,
		.grh = { .dgid = to, .hop_limit = 1, .traffic_class = 0x28 },
	};

	return ibv_create_ah(pd, &attr);
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8192, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(memory, 0, 8192);
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

/* Posts a Send of two elements with `len` bytes in all. */
static int post(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_qp *to, int opcode, int len)
{
	char *from = memory + 8192;
	struct ibv_sge sges[] = {
		{ .addr = (uintptr_t)from, .length = len / 2, .lkey = mr->lkey },
		{ .addr = (uintptr_t)from + len / 2, .length = len - len / 2, .lkey = mr->lkey },
	};
	struct ibv_send_wr wr = {
		.sg_list = sges,
		.num_sge = 2,
		.opcode = opcode,
		.imm_data = htonl(7),
		.wr.ud = { .ah = ah, .remote_qpn = to->qp_num, .remote_qkey = KEY },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int send_text(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_qp *to, int opcode,
		     const char *text)
{
	strcpy(memory + 8192, text);
	return post(qp, ah, to, opcode, strlen(text));
}

/* Waits for a receive, prints it, and returns a handle of its sender. */
static struct ibv_ah *reap(struct ibv_qp *from)
{
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_wc wc = { 0 };
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;

	while (ibv_start_poll(cq, &none))
		;
	wc.wc_flags = ibv_wc_read_wc_flags(cq);
	wc.sl = ibv_wc_read_sl(cq);
	printf("  flags %d, length %d, from %d, sl %d, imm %d\n", wc.wc_flags,
	       ibv_wc_read_byte_len(cq), ibv_wc_read_src_qp(cq) == from->qp_num, wc.sl,
	       wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(ibv_wc_read_imm_data(cq)) : 0);
	if (cq->status != IBV_WC_SUCCESS || ibv_wc_read_opcode(cq) != IBV_WC_RECV)
		die("another completion");
	ibv_end_poll(cq);
	printf("  %s\n", memory + GRH);
	if (ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)memory, &attr))
		die("ibv_init_ah_from_wc");
	printf("  traffic class %#x\n", attr.grh.traffic_class);
	ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1);
	if (!ah)
		die("ibv_create_ah_from_wc");
	return ah;
}

/* Waits until what was sent before was received or dropped, by a datagram to the sender itself. */
static void settle(struct ibv_qp *qp, struct ibv_ah *ah)
{
	struct ibv_poll_cq_attr none = { 0 };

	receive(qp, 9);
	send_text(qp, ah, qp, IBV_WR_SEND, "settled");
	while (ibv_start_poll(cq, &none))
		;
	if (ibv_wc_read_qp_num(cq) != qp->qp_num)
		die("a datagram that should be dropped has arrived");
	ibv_end_poll(cq);
	memset(memory, 0, 8192);
}

static void by_calls(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_qp *to)
{
	struct ibv_qp_ex *calls = ibv_qp_to_qp_ex(qp);

	puts("by calls");
	receive(to, 3);
	ibv_wr_start(calls);
	calls->wr_flags = 0;
	ibv_wr_send_imm(calls, htonl(9));
	ibv_wr_set_ud_addr(calls, ah, to->qp_num, KEY);
	ibv_wr_set_inline_data(calls, "calls", 5);
	if (ibv_wr_complete(calls))
		die("ibv_wr_complete");
	ibv_destroy_ah(reap(qp));
	ibv_wr_start(calls);
	ibv_wr_send(calls);
	printf("  no destination %d\n", ibv_wr_complete(calls) == EINVAL);
}

/* Posts a request that fails later, and prints the status. Then makes the queue pair ready again. */
static void fails(const char *what, struct ibv_qp *qp, struct ibv_ah *ah, int opcode, int len)
{
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr unused;

	if (post(qp, ah, qp, opcode, len))
		die(what);
	while (ibv_start_poll(cq, &none))
		;
	printf("  %s: %s", what, ibv_wc_status_str(cq->status));
	ibv_end_poll(cq);
	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &unused))
		die("ibv_query_qp");
	printf(", state %d\n", attr.qp_state);
	if (step(qp, IBV_QPS_RESET) ||
	    init(qp, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY) ||
	    step(qp, IBV_QPS_RTR) || step(qp, IBV_QPS_RTS))
		die("ready again");
}

int main(void)
{
	struct ibv_qp *a, *b;
	struct ibv_ah *ah, *back;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr unused;
	struct ibv_port_attr port;
	union ibv_gid many = { .raw = { 0xff, 2 } };

	open_all();
	a = create();
	b = create();
	puts("handles");
	printf("  without a GRH %d, to no host %d\n", !handle(0, gid), !handle(1, many));
	ah = handle(1, gid);
	if (!ah)
		die("ibv_create_ah");
	puts("steps");
	printf("  INIT without a key %d\n", init(a, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
	for (int i = 0; i < 2; i++)
		if (init(i ? b : a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY) ||
		    step(i ? b : a, IBV_QPS_RTR))
			die("RTR");
	printf("  post in RTR %d\n", post(a, ah, b, IBV_WR_SEND, 4) == EINVAL);
	if (step(a, IBV_QPS_RTS) || step(b, IBV_QPS_RTS) ||
	    ibv_query_qp(a, &attr, IBV_QP_STATE | IBV_QP_QKEY, &unused))
		die("RTS");
	printf("  state %d, key %#x\n", attr.qp_state, attr.qkey);

	puts("a datagram of two elements, with Immediate Data");
	receive(b, 1);
	if (send_text(a, ah, b, IBV_WR_SEND_WITH_IMM, "two element"))
		die("ibv_post_send");
	back = reap(a);
	puts("an answer to a handle from the completion");
	receive(a, 2);
	send_text(b, back, a, IBV_WR_SEND, "answer");
	ibv_destroy_ah(reap(b));
	ibv_destroy_ah(back);
	by_calls(a, ah, b);

	puts("what is refused");
	if (ibv_query_port(context, 1, &port))
		die("ibv_query_port");
	printf("  without a handle %d, an unknown operation %d\n",
	       post(a, NULL, b, IBV_WR_SEND, 4) == EINVAL, post(a, ah, b, 77, 4) == EINVAL);
	puts("what fails");
	fails("longer than the MTU", a, ah, IBV_WR_SEND, (128 << port.active_mtu) + 1);
	fails("a Write", a, ah, IBV_WR_RDMA_WRITE, 4);
	fails("a Write without a handle", a, NULL, IBV_WR_RDMA_WRITE, 4);
	fails("a Read", a, ah, IBV_WR_RDMA_READ, 4);
	puts("dropped, and then one that arrives");
	send_text(a, ah, b, IBV_WR_SEND, "no receive");
	settle(a, ah);
	receive(b, 4);
	attr = (struct ibv_qp_attr){ .qkey = KEY + 1 };
	if (ibv_modify_qp(b, &attr, IBV_QP_QKEY))
		die("another key");
	send_text(a, ah, b, IBV_WR_SEND, "another key");
	settle(a, ah);
	attr.qkey = KEY;
	ibv_modify_qp(b, &attr, IBV_QP_QKEY);
	send_text(a, ah, b, IBV_WR_SEND, "last.");
	ibv_destroy_ah(reap(a));
	if (ibv_destroy_ah(ah) || ibv_destroy_qp(a) || ibv_destroy_qp(b) ||
	    ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) ||
	    ibv_close_device(context))
		die("the end");
	return 0;
}
