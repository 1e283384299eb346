/*
 * Ends connections in error, and sends messages before a receive is posted. The server posts no
 * receive until a file exists.
 *
 *     ends PORT FILE              server, for one client; posts a receive when FILE exists,
 *                                 or never if FILE is '-'
 *     ends PORT ADDRESS send      client: sends a message, waits for the end of the connection
 *     ends PORT ADDRESS close     client: sends a message, closes
 *     ends PORT ADDRESS abort     client: sends a message, moves its queue pair to error
 *     ends PORT ADDRESS read      client: reads three times with an unknown key, into 8 elements
 *     ends PORT ADDRESS lkey      client: reads twice; one element of the first has a wrong lkey
 *     ends PORT ADDRESS imm       client: writes with immediate data
 *     ends PORT ADDRESS private   client: connects with 253 bytes of private data, then with 252,
 *                                 and closes
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[64];

#define ELEMENTS 8

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static struct rdma_cm_id *pass(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *of;

	want(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event %s, status %d, expected %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	of = event->id;
	want(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
	return of;
}

static void prepare(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = ELEMENTS, .max_recv_sge = 1 },
	};
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	want(pd != NULL, "ibv_alloc_pd");
	cq = init.send_cq = init.recv_cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	want(cq != NULL, "ibv_create_cq");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	want(mr != NULL, "ibv_reg_mr");
	want(rdma_create_qp(id, pd, &init) == 0, "rdma_create_qp");
}

static struct ibv_sge all_of_it(void)
{
	return (struct ibv_sge){ .addr = (uintptr_t)memory, .length = sizeof(memory), .lkey = mr->lkey };
}

static void post_receive(void)
{
	struct ibv_sge sge = all_of_it();
	struct ibv_recv_wr wr = { .wr_id = 100, .sg_list = &sge, .num_sge = 1 }, *bad;

	want(ibv_post_recv(id->qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* Posts a request with `memory` in ELEMENTS parts. `third` is the lkey of the third part. */
static void post(uint64_t number, enum ibv_wr_opcode opcode, uint32_t third)
{
	struct ibv_sge sges[ELEMENTS];
	struct ibv_send_wr wr = { .wr_id = number, .sg_list = sges, .num_sge = ELEMENTS, .opcode = opcode }, *bad;

	for (int part = 0; part < ELEMENTS; part++) {
		sges[part] = all_of_it();
		sges[part].length /= ELEMENTS;
		sges[part].addr += part * sges[part].length;
	}
	sges[2].lkey = third;
	wr.wr.rdma.remote_addr = 4096;
	wr.wr.rdma.rkey = 0x12345678;
	want(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
}

/* Waits for a completion and prints its status as programs do. */
static void complete(void)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(1000);
	want(count == 1, "ibv_poll_cq");
	printf("%d: status %d\n", (int)wc.wr_id, wc.status);
}

static void serve(const struct sockaddr_in *at, const char *file)
{
	struct rdma_conn_param answer = { .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_id *listener;

	want(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_bind_addr(listener, (struct sockaddr *)at) == 0, "rdma_bind_addr");
	want(rdma_listen(listener, 1) == 0, "rdma_listen");
	id = pass(RDMA_CM_EVENT_CONNECT_REQUEST);
	prepare();
	want(rdma_accept(id, &answer) == 0, "rdma_accept");
	pass(RDMA_CM_EVENT_ESTABLISHED);
	printf("established\n");
	if (strcmp(file, "-")) {
		while (access(file, F_OK))
			usleep(1000);
		post_receive();
		complete();
		printf("received '%s'\n", memory);
	}
	pass(RDMA_CM_EVENT_DISCONNECTED);
	printf("disconnected\n");
}

static void call(const struct sockaddr_in *to, const char *what)
{
	struct rdma_conn_param ask = { .responder_resources = 4, .initiator_depth = 4 };
	static const char bytes[255];
	struct timespec began, now;
	int number;

	want(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0, "rdma_resolve_addr");
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	want(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare();
	if (!strcmp(what, "private")) {
		ask.private_data = bytes;
		ask.private_data_len = 253;
		if (rdma_connect(id, &ask))
			printf("253 bytes: %s\n", strerror(errno));
		ask.private_data_len = 252;
	}
	want(rdma_connect(id, &ask) == 0, "rdma_connect");
	pass(RDMA_CM_EVENT_ESTABLISHED);
	post_receive();
	clock_gettime(CLOCK_MONOTONIC, &began);
	if (!strcmp(what, "read")) {
		for (number = 1; number <= 3; number++)
			post(number, IBV_WR_RDMA_READ, mr->lkey);
		for (number = 0; number < 4; number++)
			complete();
	} else if (!strcmp(what, "lkey")) {
		post(1, IBV_WR_RDMA_READ, mr->lkey ^ 1);
		post(2, IBV_WR_RDMA_READ, mr->lkey);
		for (number = 0; number < 3; number++)
			complete();
	} else if (!strcmp(what, "imm")) {
		post(1, IBV_WR_RDMA_WRITE_WITH_IMM, mr->lkey);
		complete();
		complete();
	} else if (!strcmp(what, "private")) {
		want(rdma_disconnect(id) == 0, "rdma_disconnect");
	} else {
		strcpy(memory, "a message");
		post(1, IBV_WR_SEND, mr->lkey);
		complete();
		printf("sent\n");
		if (!strcmp(what, "close")) {
			want(rdma_disconnect(id) == 0, "rdma_disconnect");
		} else if (!strcmp(what, "abort")) {
			struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

			want(ibv_modify_qp(id->qp, &error, IBV_QP_STATE) == 0, "ibv_modify_qp");
		}
	}
	pass(RDMA_CM_EVENT_DISCONNECTED);
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("disconnected after %ld ms\n",
	       (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: %s PORT FILE | PORT ADDRESS send|close|abort|read|lkey|imm|private\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	at.sin_port = htons((unsigned short)atoi(argv[1]));
	channel = rdma_create_event_channel();
	want(channel != NULL, "rdma_create_event_channel");
	if (argc == 3) {
		serve(&at, argv[2]);
	} else {
		want(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1, "ADDRESS");
		call(&at, argv[3]);
	}
	return 0;
}
