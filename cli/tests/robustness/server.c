/*
 * Server with two regions that every peer may read and write. It prints its port and the address
 * and key of each region, accepts every connection, and releases those that have ended.
 *
 *     server LENGTH
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rdma/rdma_cma.h>

static struct ibv_pd *pd;

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static void lend(size_t length)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	void *memory = calloc(1, length);
	struct ibv_mr *mr;

	want(memory != NULL, "calloc");
	mr = ibv_reg_mr(pd, memory, length, access);
	want(mr != NULL, "ibv_reg_mr");
	printf(" %llu %u", (unsigned long long)(uintptr_t)memory, mr->rkey);
}

static void serve(struct rdma_cm_id *id)
{
	struct rdma_conn_param answer = { .responder_resources = 16, .initiator_depth = 16 };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	init.send_cq = init.recv_cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	want(init.send_cq != NULL, "ibv_create_cq");
	want(rdma_create_qp(id, pd, &init) == 0, "rdma_create_qp");
	/* The peer may have closed meanwhile. Its id then gets no further event. */
	if (rdma_accept(id, &answer)) {
		rdma_destroy_qp(id);
		want(ibv_destroy_cq(init.send_cq) == 0, "ibv_destroy_cq");
		want(rdma_destroy_id(id) == 0, "rdma_destroy_id");
	}
}

static void release(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->qp->send_cq;

	rdma_destroy_qp(id);
	want(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	want(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	/* An id that is bound to a loopback address has no device. */
	struct ibv_context **devices = rdma_get_devices(NULL);
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *id;
	enum rdma_cm_event_type type;
	size_t length = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;

	want(length > 0, "usage: server LENGTH");
	want(channel != NULL, "rdma_create_event_channel");
	want(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0, "rdma_bind_addr");
	want(rdma_listen(listener, 1024) == 0, "rdma_listen");
	want(devices != NULL && devices[0] != NULL, "rdma_get_devices");
	pd = ibv_alloc_pd(devices[0]);
	want(pd != NULL, "ibv_alloc_pd");
	printf("%u", ntohs(rdma_get_src_port(listener)));
	lend(length);
	lend(length);
	printf("\n");
	fflush(stdout);
	for (;;) {
		want(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
		id = event->id;
		type = event->event;
		want(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
			serve(id);
		else if (type != RDMA_CM_EVENT_ESTABLISHED && id != listener)
			release(id);
	}
}
