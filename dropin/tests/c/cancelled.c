/*
 * Cancels a thread while it posts and polls, with a capture. Each call must return. The thread
 * ends at its own cancellation point.
 */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static struct rdma_cm_id *listener, *client;
static atomic_int ready, cancelled, posted;

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static struct ibv_qp_init_attr attributes(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 64, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	return attr;
}

static void *serve(void *unused)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = attributes();
	(void)unused;
	want(rdma_get_request(listener, &id) == 0, "rdma_get_request");
	want(rdma_create_qp(id, NULL, &attr) == 0, "rdma_create_qp");
	want(rdma_accept(id, NULL) == 0, "rdma_accept");
	return id;
}

static void *post(void *unused)
{
	(void)unused;
	ready = 1;
	while (!cancelled)
		;
	/* The cancellation is pending now, and no call below is a cancellation point. */
	for (int i = 0; i < 50; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
		struct ibv_wc wc;
		want(ibv_post_send(client->qp, &wr, &bad) == 0, "ibv_post_send");
		while (ibv_poll_cq(client->send_cq, 1, &wc) == 0)
			;
		want(wc.status == IBV_WC_SUCCESS, "a completion");
		posted++;
	}
	pthread_testcancel();
	return NULL;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = attributes();
	pthread_t server, poster;
	void *result;

	want(rdma_getaddrinfo("127.0.0.1", argv[argc - 1], &hints, &info) == 0, "rdma_getaddrinfo");
	want(rdma_create_ep(&listener, info, NULL, NULL) == 0, "rdma_create_ep");
	want(rdma_listen(listener, 1) == 0, "rdma_listen");
	want(pthread_create(&server, NULL, serve, NULL) == 0, "pthread_create");
	hints.ai_flags = 0;
	want(rdma_getaddrinfo("127.0.0.1", argv[argc - 1], &hints, &info) == 0, "rdma_getaddrinfo");
	want(rdma_create_ep(&client, info, NULL, &attr) == 0, "rdma_create_ep");
	want(rdma_connect(client, NULL) == 0, "rdma_connect");
	want(pthread_join(server, &result) == 0, "pthread_join");
	want(pthread_create(&poster, NULL, post, NULL) == 0, "pthread_create");
	while (!ready)
		;
	want(pthread_cancel(poster) == 0, "pthread_cancel");
	cancelled = 1;
	want(pthread_join(poster, &result) == 0, "pthread_join");
	printf("%d posted, %s\n", posted, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
	return 0;
}
