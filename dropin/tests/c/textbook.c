/*
 * Example of many tutorials, with the plain API of libibverbs and librdmacm, on any device.
 * The server sends address and key of a region in the private data of its reply. The client
 * writes to the region, reads it back, compares, and sends a message. The server then checks its
 * memory.
 *
 *     textbook PORT            server, for one client
 *     textbook PORT ADDRESS    client
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SIZE (256 * 1024)
#define DONE "done"

struct lent {
	uint64_t addr;
	uint32_t rkey;
	uint32_t length;
};

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void fail(const char *what, int is, int not)
{
	fprintf(stderr, "%s: %d, expected %d\n", what, is, not);
	exit(1);
}

struct side {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	uint8_t *region, *copy;
	struct ibv_mr *region_mr, *copy_mr;
};

static uint8_t pattern(unsigned at)
{
	return (uint8_t)(at * 31 + (at >> 8) + 7);
}

static uint32_t sum(const uint8_t *bytes, unsigned length)
{
	uint32_t hash = 2166136261u;

	while (length--)
		hash = (hash ^ *bytes++) * 16777619u;
	return hash;
}

/* Waits for the next event, which must have this type; the caller acknowledges it. */
static struct rdma_cm_event *expect(struct side *side, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(side->channel, &event))
		die("rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event %s, status %d, expected %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}

static void pass(struct side *side, enum rdma_cm_event_type type)
{
	if (rdma_ack_cm_event(expect(side, type)))
		die("rdma_ack_cm_event");
}

/* Creates the objects of a side as soon as it has a device: memory, a queue pair, one receive. */
static void prepare(struct side *side, int region_access)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_sge sge;
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	side->pd = ibv_alloc_pd(side->id->verbs);
	if (!side->pd)
		die("ibv_alloc_pd");
	side->completions = ibv_create_comp_channel(side->id->verbs);
	if (!side->completions)
		die("ibv_create_comp_channel");
	side->cq = ibv_create_cq(side->id->verbs, 16, NULL, side->completions, 0);
	if (!side->cq)
		die("ibv_create_cq");
	if (ibv_req_notify_cq(side->cq, 0))
		die("ibv_req_notify_cq");
	side->region = calloc(1, SIZE);
	side->copy = calloc(1, SIZE);
	if (!side->region || !side->copy)
		die("calloc");
	side->region_mr = ibv_reg_mr(side->pd, side->region, SIZE, region_access);
	side->copy_mr = ibv_reg_mr(side->pd, side->copy, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!side->region_mr || !side->copy_mr)
		die("ibv_reg_mr");
	init.send_cq = init.recv_cq = side->cq;
	if (rdma_create_qp(side->id, side->pd, &init))
		die("rdma_create_qp");
	sge = (struct ibv_sge){ .addr = (uintptr_t)side->copy, .length = SIZE, .lkey = side->copy_mr->lkey };
	if (ibv_post_recv(side->id->qp, &receive, &bad))
		die("ibv_post_recv");
}

/* Waits for one completion. Blocks on completion events, and does not spin. */
static struct ibv_wc complete(struct side *side, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(side->cq, 1, &wc)) == 0) {
		struct ibv_cq *cq;
		void *context;

		if (ibv_get_cq_event(side->completions, &cq, &context))
			die("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
	}
	if (count < 0)
		die("ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(wc.status), wc.status, IBV_WC_SUCCESS);
	if (wc.opcode != opcode)
		fail("opcode", wc.opcode, opcode);
	return wc;
}

static void post(struct side *side, enum ibv_wr_opcode opcode, uint8_t *from, struct ibv_mr *mr, unsigned length,
		 const struct lent *lent)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (lent) {
		wr.wr.rdma.remote_addr = be64toh(lent->addr);
		wr.wr.rdma.rkey = ntohl(lent->rkey);
	}
	if (ibv_post_send(side->id->qp, &wr, &bad))
		die("ibv_post_send");
}

static void finish(struct side *side)
{
	rdma_destroy_qp(side->id);
	if (ibv_dereg_mr(side->region_mr) || ibv_dereg_mr(side->copy_mr))
		die("ibv_dereg_mr");
	if (ibv_destroy_cq(side->cq) || ibv_destroy_comp_channel(side->completions) || ibv_dealloc_pd(side->pd))
		die("ibv_destroy");
	if (rdma_destroy_id(side->id))
		die("rdma_destroy_id");
	free(side->region);
	free(side->copy);
}

static void serve(struct side *side, unsigned short port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_conn_param answer = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;
	struct lent lent;
	unsigned at_byte;

	if (rdma_create_id(side->channel, &listener, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&at))
		die("rdma_bind_addr");
	if (rdma_listen(listener, 1))
		die("rdma_listen");
	event = expect(side, RDMA_CM_EVENT_CONNECT_REQUEST);
	side->id = event->id;
	if (rdma_ack_cm_event(event))
		die("rdma_ack_cm_event");
	prepare(side, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	lent.addr = htobe64((uintptr_t)side->region);
	lent.rkey = htonl(side->region_mr->rkey);
	lent.length = htonl(SIZE);
	answer.private_data = &lent;
	answer.private_data_len = sizeof(lent);
	if (rdma_accept(side->id, &answer))
		die("rdma_accept");
	pass(side, RDMA_CM_EVENT_ESTABLISHED);
	printf("lent %d bytes\n", SIZE);

	if (complete(side, IBV_WC_RECV).byte_len != sizeof(DONE) || memcmp(side->copy, DONE, sizeof(DONE))) {
		fprintf(stderr, "unexpected message\n");
		exit(1);
	}
	for (at_byte = 0; at_byte < SIZE; at_byte++)
		if (side->region[at_byte] != pattern(at_byte))
			fail("byte", side->region[at_byte], pattern(at_byte));
	printf("the client wrote %08x\n", sum(side->region, SIZE));
	pass(side, RDMA_CM_EVENT_DISCONNECTED);
	rdma_disconnect(side->id);
	finish(side);
	if (rdma_destroy_id(listener))
		die("rdma_destroy_id");
}

static void call(struct side *side, const char *port, const char *address)
{
	struct rdma_conn_param ask = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *to;
	struct rdma_cm_event *event;
	struct lent lent;
	unsigned at;

	if (rdma_getaddrinfo(address, port, &hints, &to))
		die("rdma_getaddrinfo");
	if (rdma_create_id(side->channel, &side->id, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(side->id, NULL, to->ai_dst_addr, 2000))
		die("rdma_resolve_addr");
	rdma_freeaddrinfo(to);
	pass(side, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(side->id, 2000))
		die("rdma_resolve_route");
	pass(side, RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(side, IBV_ACCESS_LOCAL_WRITE);
	if (rdma_connect(side->id, &ask))
		die("rdma_connect");
	event = expect(side, RDMA_CM_EVENT_ESTABLISHED);
	if (event->param.conn.private_data_len < sizeof(lent))
		fail("private data", event->param.conn.private_data_len, sizeof(lent));
	memcpy(&lent, event->param.conn.private_data, sizeof(lent));
	if (rdma_ack_cm_event(event))
		die("rdma_ack_cm_event");
	if (ntohl(lent.length) != SIZE)
		fail("length", (int)ntohl(lent.length), SIZE);

	for (at = 0; at < SIZE; at++)
		side->region[at] = pattern(at);
	post(side, IBV_WR_RDMA_WRITE, side->region, side->region_mr, SIZE, &lent);
	complete(side, IBV_WC_RDMA_WRITE);
	printf("wrote %08x\n", sum(side->region, SIZE));
	post(side, IBV_WR_RDMA_READ, side->copy, side->copy_mr, SIZE, &lent);
	complete(side, IBV_WC_RDMA_READ);
	printf("read  %08x\n", sum(side->copy, SIZE));
	if (memcmp(side->region, side->copy, SIZE)) {
		fprintf(stderr, "what was read is not what was written\n");
		exit(1);
	}
	printf("they are equal\n");
	memcpy(side->region, DONE, sizeof(DONE));
	post(side, IBV_WR_SEND, side->region, side->region_mr, sizeof(DONE), NULL);
	complete(side, IBV_WC_SEND);
	if (rdma_disconnect(side->id))
		die("rdma_disconnect");
	pass(side, RDMA_CM_EVENT_DISCONNECTED);
	finish(side);
}

int main(int argc, char **argv)
{
	struct side side = { 0 };

	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: %s PORT [ADDRESS]\n", argv[0]);
		return 2;
	}
	side.channel = rdma_create_event_channel();
	if (!side.channel)
		die("rdma_create_event_channel");
	if (argc == 2)
		serve(&side, (unsigned short)atoi(argv[1]));
	else
		call(&side, argv[1], argv[2]);
	rdma_destroy_event_channel(side.channel);
	return 0;
}
