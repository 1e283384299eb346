/*
 * Many queue pairs at once. Two processes connect 1,000 pairs, both sides at the same time, and
 * exchange a message over each in both directions. Then one process connects 3,000 queue pairs of
 * its own, two by two.
 *
 *     crowd
 */
#include <sys/resource.h>

#include "pair.h"

#define PAIRS 1000
#define ALONE 3000

static struct ibv_qp *qps[ALONE];
static struct address ours[ALONE], theirs[ALONE];
/* A message for each queue pair, sent and received. */
static uint32_t sent[ALONE], received[ALONE];
static struct ibv_mr *sent_mr, *received_mr;
static struct ibv_cq *cq;

static void create(int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
				 .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
			.sq_sig_all = 1,
		};

		if (!(qps[i] = ibv_create_qp(pd, &attr)))
			die("ibv_create_qp");
		ours[i] = address_of(qps[i]);
	}
}

static void start(int i, struct address peer)
{
	struct ibv_sge to = { (uintptr_t)(received + i), 4, received_mr->lkey };
	struct ibv_sge from = { (uintptr_t)(sent + i), 4, sent_mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = i, .sg_list = &from, .num_sge = 1,
				    .opcode = IBV_WR_SEND }, *bad;

	/* The number of the queue pair that is to receive it. */
	sent[i] = peer.number;
	connect_to(qps[i], peer, 1);
	if (ibv_post_recv(qps[i], &receive, &bad_receive) || ibv_post_send(qps[i], &send, &bad))
		die("post");
}

/* Waits for a send and a receive of each queue pair. */
static void finish(int count)
{
	static unsigned char seen[ALONE];
	struct ibv_wc wc[32];
	int left = 2 * count;

	memset(seen, 0, sizeof seen);
	while (left > 0) {
		int got = ibv_poll_cq(cq, 32, wc);

		if (got < 0)
			die("ibv_poll_cq");
		for (int i = 0; i < got; i++) {
			int bit = wc[i].opcode & IBV_WC_RECV ? 2 : 1;

			if (wc[i].status || wc[i].wr_id >= (uint64_t)count ||
			    seen[wc[i].wr_id] & bit) {
				fprintf(stderr, "%d: %s\n", (int)wc[i].wr_id,
					ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			seen[wc[i].wr_id] |= bit;
		}
		left -= got;
	}
	for (int i = 0; i < count; i++)
		if (received[i] != qps[i]->qp_num)
			die("a message for another queue pair");
}

static void destroy(int count)
{
	for (int i = 0; i < count; i++)
		if (ibv_destroy_qp(qps[i]))
			die("ibv_destroy_qp");
}

int main(void)
{
	struct rlimit limit;
	char done = 0;
	int status;
	pid_t child;

	/* Each end of a connection takes a descriptor. */
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	child = split();
	open_device();
	sent_mr = registered(sent, sizeof sent);
	received_mr = registered(received, sizeof received);
	if (!(cq = ibv_create_cq(context, 2 * ALONE, NULL, NULL, 0)))
		die("ibv_create_cq");
	create(PAIRS);
	for (int from = 0; from < PAIRS; from += 100)
		swap(ours + from, theirs + from, 100 * sizeof ours[0]);
	for (int i = 0; i < PAIRS; i++)
		start(i, theirs[i]);
	finish(PAIRS);
	swap(&done, &done, 1);
	destroy(PAIRS);
	if (!child)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status)
		die("the other process has failed");
	printf("%d pairs of two processes\n", PAIRS);
	create(ALONE);
	for (int i = 0; i < ALONE; i++)
		start(i, ours[i ^ 1]);
	finish(ALONE);
	destroy(ALONE);
	printf("%d queue pairs of one process\n", ALONE);
	fflush(stdout);
	_exit(0);
}
