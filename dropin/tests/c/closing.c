/*
 * Client that closes gracefully after its Writes have completed. Its peer may not have read any of
 * them yet.
 *
 *     closing PORT        connects to 127.0.0.1, writes 1 MiB, polls the completions, disconnects,
 *                         and waits for the end
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { WRITES = 16, LENGTH = 64 * 1024 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

/* Waits for an event of this type and returns its status. */
static int pass(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	int status;

	want(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event %s, status %d, expected %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	status = event->status;
	want(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
	return status;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct rdma_conn_param ask = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = WRITES, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	static char memory[LENGTH];
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LENGTH };
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int done;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PORT\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	to.sin_port = htons((unsigned short)atoi(argv[1]));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	channel = rdma_create_event_channel();
	want(channel != NULL, "rdma_create_event_channel");
	want(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0, "rdma_resolve_addr");
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	want(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	pd = ibv_alloc_pd(id->verbs);
	want(pd != NULL, "ibv_alloc_pd");
	cq = init.send_cq = init.recv_cq = ibv_create_cq(id->verbs, WRITES + 1, NULL, NULL, 0);
	want(cq != NULL, "ibv_create_cq");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	want(mr != NULL, "ibv_reg_mr");
	want(rdma_create_qp(id, pd, &init) == 0, "rdma_create_qp");
	want(rdma_connect(id, &ask) == 0, "rdma_connect");
	pass(RDMA_CM_EVENT_ESTABLISHED);

	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = 4096;
	wr.wr.rdma.rkey = 0x12345678;
	for (done = 0; done < WRITES; done++)
		want(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
	for (done = 0; done < WRITES;) {
		int count = ibv_poll_cq(cq, 1, &wc);

		want(count >= 0, "ibv_poll_cq");
		if (count == 0) {
			usleep(1000);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "status %d\n", wc.status);
			return 1;
		}
		done++;
	}
	printf("complete\n");
	want(rdma_disconnect(id) == 0, "rdma_disconnect");
	printf("disconnected, status %d\n", pass(RDMA_CM_EVENT_DISCONNECTED));
	rdma_destroy_qp(id);
	want(rdma_destroy_id(id) == 0, "rdma_destroy_id");
	return 0;
}
