/*
 * Kills the peer (SIGKILL) in each state of its queue pair. The survivor learns of it by its next
 * send, which fails, and goes on with another queue pair.
 *
 *     killed
 */
#include <signal.h>

#include "pair.h"

enum state { IN_RESET, IN_INIT, IN_RTR, IN_RTS, CONNECTED, RECEIVING, WRITING, STATES };

static const char *const names[STATES] = {
	"RESET", "INIT", "RTR", "RTS", "connected", "while it receives", "while it writes",
};

static char memory[1 << 20];
static struct ibv_mr *mr;
static struct ibv_cq *cq;

static void open_all(void)
{
	open_device();
	mr = registered(memory, sizeof memory);
	if (!(cq = ibv_create_cq(context, 256, NULL, NULL, 0)))
		die("ibv_create_cq");
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		die("ibv_create_qp");
	return qp;
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t remote, uint32_t key)
{
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.wr.rdma = { remote, key },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (got < 0)
		die("ibv_poll_cq");
	return wc;
}

struct offer {
	struct address qp;
	uint64_t addr;
	uint32_t rkey;
};

static struct offer offer_of(struct ibv_qp *qp)
{
	return (struct offer){ address_of(qp), (uintptr_t)memory, mr->rkey };
}

/* The peer: brings its queue pair into the state, and stays there until it is killed. */
static void peer(enum state state)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = ALL_RIGHTS };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	struct offer ours, theirs;
	struct ibv_qp *qp;

	open_all();
	qp = create();
	ours = offer_of(qp);
	swap(&ours, &theirs, sizeof ours);
	rtr.dest_qp_num = theirs.qp.number;
	rtr.ah_attr.grh.dgid = theirs.qp.gid;
	if (state == IN_INIT || state == IN_RTR)
		if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						     IBV_QP_ACCESS_FLAGS))
			die("INIT");
	if (state == IN_RTR)
		if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						    IBV_QP_MAX_DEST_RD_ATOMIC |
						    IBV_QP_MIN_RNR_TIMER))
			die("RTR");
	if (state >= IN_RTS)
		connect_to(qp, theirs.qp, 1);
	if (state >= CONNECTED) {
		receive(qp);
		/* The survivor sends one message, and so knows that the two are connected. */
		next();
	}
	swap(&ours, &theirs, 1);
	for (;;) {
		if (state == RECEIVING) {
			receive(qp);
			next();
		} else if (state == WRITING) {
			post(qp, IBV_WR_RDMA_WRITE, theirs.addr, theirs.rkey);
			next();
		} else {
			pause();
		}
	}
}

static void survive(enum state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr unused;
	struct offer ours, theirs;
	struct ibv_qp *qp, *itself;
	int sent = 0, failed = 0, flushed = 0, status;
	struct ibv_wc wc;
	pid_t child = split();

	if (child == 0)
		peer(state);
	qp = create();
	ours = offer_of(qp);
	swap(&ours, &theirs, sizeof ours);
	connect_to(qp, theirs.qp, 1);
	receive(qp);
	if (state >= CONNECTED) {
		if (post(qp, IBV_WR_SEND, 0, 0) || next().status)
			die("the first message");
	}
	swap(&ours, &theirs, 1);
	if (state == RECEIVING)
		for (int i = 0; i < 16; i++)
			sent += post(qp, IBV_WR_SEND, 0, 0) == 0;
	if (state >= RECEIVING)
		usleep(20000);
	if (kill(child, SIGKILL) || waitpid(child, &status, 0) != child)
		die("kill");
	close(other);
	while (failed == 0) {
		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			sent -= wc.wr_id == 2;
			failed += wc.status == IBV_WC_RETRY_EXC_ERR;
			flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
			if (flushed && !failed)
				die("a flush came first");
		}
		/* A send tells whether the peer is there. TCP may still take it before it knows. */
		if (failed == 0 && sent == 0)
			sent += post(qp, IBV_WR_SEND, 0, 0) == 0;
	}
	while (flushed == 0 || sent > 0) {
		wc = next();
		sent -= wc.wr_id == 2;
		flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
	}
	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &unused))
		die("ibv_query_qp");
	ibv_destroy_qp(qp);
	/* The device goes on. */
	itself = create();
	connect_to(itself, address_of(itself), 1);
	receive(itself);
	if (post(itself, IBV_WR_SEND, 0, 0) || next().status || next().status)
		die("to itself");
	ibv_destroy_qp(itself);
	printf("%s: retry exceeded %d, state %d\n", names[state], failed, attr.qp_state);
	fflush(stdout);
}

int main(void)
{
	open_all();
	for (int state = 0; state < STATES; state++)
		survive(state);
	return 0;
}
