/*
 * Prints how many requests the queues of a queue pair accept, on any device. The place of a request
 * is free after its completion was polled. librdmacm creates completion queues of the same depth.
 *
 *     places PORT    both ends, over 127.0.0.1
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define DEPTH 16

static struct rdma_cm_id *client;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static struct rdma_cm_id *endpoint(char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *to;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *id;

	if (rdma_getaddrinfo("127.0.0.1", port, &hints, &to))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&id, to, NULL, &init))
		die("rdma_create_ep");
	rdma_freeaddrinfo(to);
	return id;
}

static void *connects(void *port)
{
	client = endpoint(port, 0);
	if (rdma_connect(client, NULL))
		die("rdma_connect");
	return NULL;
}

static int send_one(enum ibv_wr_opcode opcode, int flags)
{
	struct ibv_send_wr wr = { .opcode = opcode, .send_flags = flags }, *bad;

	return ibv_post_send(client->qp, &wr, &bad);
}

static int receive_one(struct rdma_cm_id *id)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;

	return ibv_post_recv(id->qp, &wr, &bad);
}

/* Waits for `count` completions. Each must have the status success. */
static void take(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	while (count) {
		int got = ibv_poll_cq(cq, 1, &wc);

		if (got < 0)
			die("ibv_poll_cq");
		if (got && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		count -= got;
	}
}

static int fill_sends(enum ibv_wr_opcode opcode, int flags)
{
	int count = 0, error;

	while (!(error = send_one(opcode, flags)) && count < 10 * DEPTH)
		count++;
	if (error != ENOMEM)
		printf("not ENOMEM but %d: ", error);
	return count;
}

static int fill_receives(struct rdma_cm_id *id)
{
	int count = 0, error;

	while (!(error = receive_one(id)) && count < 10 * DEPTH)
		count++;
	if (error != ENOMEM)
		printf("not ENOMEM but %d: ", error);
	return count;
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener, *server;
	pthread_t thread;
	int at;

	(void)argc;
	listener = endpoint(argv[1], RAI_PASSIVE);
	if (rdma_listen(listener, 1))
		die("rdma_listen");
	pthread_create(&thread, NULL, connects, argv[1]);
	if (rdma_get_request(listener, &server))
		die("rdma_get_request");
	printf("receives %d", fill_receives(server));
	if (rdma_accept(server, NULL))
		die("rdma_accept");
	pthread_join(thread, NULL);

	/* Each Send has arrived, but its receive completion was not polled. */
	for (at = 0; at < DEPTH; at++) {
		if (send_one(IBV_WR_SEND, IBV_SEND_SIGNALED))
			die("ibv_post_send");
		take(client->send_cq, 1);
	}
	printf(", then %d", fill_receives(server));
	take(server->recv_cq, 3);
	printf(", after 3 polls %d\n", fill_receives(server));

	printf("signaled %d", fill_sends(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	take(client->send_cq, 3);
	printf(", after 3 polls %d\n", fill_sends(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	take(client->send_cq, DEPTH);

	for (at = 1; at < DEPTH; at++)
		if (send_one(IBV_WR_RDMA_WRITE, 0))
			die("ibv_post_send");
	if (send_one(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED))
		die("ibv_post_send");
	take(client->send_cq, 1);
	printf("unsignaled, after the poll of one behind them %d", fill_sends(IBV_WR_RDMA_WRITE, 0));
	printf(", then %d\n", fill_sends(IBV_WR_RDMA_WRITE, 0));
	return 0;
}
