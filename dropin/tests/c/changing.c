/*
 * Writes to memory while the memory is sent, as a guest does during live migration. The received
 * data may be torn, but the connection must not end.
 *
 *     changing PORT KIND            server, for one client
 *     changing PORT KIND ADDRESS    client
 *
 * KIND is `write` or `send` (the client changes its memory), or `read` (the server does).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define SIZE (256 * 1024)
#define COUNT 64
#define OUTSTANDING 4
#define DONE 4

struct lent {
	uint64_t addr;
	uint32_t rkey;
};

static uint8_t *memory;
static atomic_int over;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *change(void *unused)
{
	unsigned round = 0;

	(void)unused;
	while (!over) {
		round++;
		for (size_t at = 0; at < SIZE; at += 64)
			((volatile uint8_t *)memory)[at] = (uint8_t)round;
	}
	return NULL;
}

static void good(int polled, const struct ibv_wc *wc)
{
	if (polled < 0)
		die("a completion");
	if (wc->status) {
		fprintf(stderr, "request %d: %s\n", (int)wc->wr_id, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static struct ibv_mr *lend(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, SIZE,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);

	if (!mr)
		die("ibv_reg_mr");
	return mr;
}

static void serve(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct lent lent;
	struct rdma_conn_param param = { .responder_resources = OUTSTANDING, .initiator_depth = OUTSTANDING };
	struct ibv_wc wc;

	if (rdma_listen(listener, 1) || rdma_get_request(listener, &id))
		die("a request");
	mr = lend(id);
	lent = (struct lent){ (uintptr_t)memory, mr->rkey };
	param.private_data = &lent;
	param.private_data_len = sizeof lent;
	for (int at = 0; at <= COUNT; at++)
		if (rdma_post_recv(id, NULL, memory, SIZE, mr))
			die("rdma_post_recv");
	if (rdma_accept(id, &param))
		die("rdma_accept");
	do
		good(rdma_get_recv_comp(id, &wc), &wc);
	while (wc.byte_len != DONE);
	puts("all has come");
	over = 1;
	rdma_disconnect(id);
}

static void ask(struct rdma_cm_id *id, char kind)
{
	struct rdma_conn_param param = { .responder_resources = OUTSTANDING, .initiator_depth = OUTSTANDING };
	struct ibv_mr *mr = lend(id);
	struct lent lent;
	struct ibv_wc wc;
	int posted = 0, done = 0;

	if (rdma_connect(id, &param))
		die("rdma_connect");
	memcpy(&lent, id->event->param.conn.private_data, sizeof lent);
	while (done < COUNT) {
		if (posted < COUNT && posted - done < OUTSTANDING) {
			void *context = (void *)(uintptr_t)posted++;
			int failed = kind == 'w' ? rdma_post_write(id, context, memory, SIZE, mr, 0, lent.addr, lent.rkey)
				   : kind == 'r' ? rdma_post_read(id, context, memory, SIZE, mr, 0, lent.addr, lent.rkey)
						 : rdma_post_send(id, context, memory, SIZE, mr, 0);

			if (failed)
				die("a post");
			continue;
		}
		good(rdma_get_send_comp(id, &wc), &wc);
		done++;
	}
	if (rdma_post_send(id, NULL, memory, DONE, mr, 0))
		die("rdma_post_send");
	good(rdma_get_send_comp(id, &wc), &wc);
	printf("%d of %d bytes each are done\n", done, SIZE);
	over = 1;
	rdma_disconnect(id);
}

int main(int argc, char **argv)
{
	int client = argc > 3;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = client ? 0 : RAI_PASSIVE }, *info;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = COUNT + 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *id;
	pthread_t changer;
	int changes = (argv[2][0] == 'r') != client;

	memory = aligned_alloc(4096, SIZE);
	memset(memory, 0, SIZE);
	if (rdma_getaddrinfo(client ? argv[3] : NULL, argv[1], &hints, &info))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&id, info, NULL, &init))
		die("rdma_create_ep");
	if (changes && pthread_create(&changer, NULL, change, NULL))
		die("pthread_create");
	if (client)
		ask(id, argv[2][0]);
	else
		serve(id);
	if (changes)
		pthread_join(changer, NULL);
	return 0;
}
