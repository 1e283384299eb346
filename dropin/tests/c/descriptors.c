/*
 * A process that connects queue pairs many times, by their numbers and by librdmacm, and forks.
 *
 *     descriptors         checks that no file descriptor is left of any connection, and that a child
 *                         of a fork can neither use nor harm the objects of its parent
 */
#include <arpa/inet.h>
#include <dirent.h>

#include <rdma/rdma_cma.h>

#include "pair.h"

enum { ROUNDS = 20, LENGTH = 4096 };

static char memory[LENGTH];

/* Two queue pairs of this process, and what they need. */
struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
};

static void want(int holds, const char *what)
{
	if (!holds)
		die(what);
}

static struct ibv_qp_init_attr queues(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static void open_pair(struct pair *pair)
{
	struct ibv_qp_init_attr init;

	open_device();
	*pair = (struct pair){ .context = context, .pd = pd };
	pair->channel = ibv_create_comp_channel(context);
	want(pair->channel != NULL, "ibv_create_comp_channel");
	pair->cq = ibv_create_cq(context, 16, NULL, pair->channel, 0);
	want(pair->cq != NULL, "ibv_create_cq");
	pair->mr = registered(memory, sizeof(memory));
	for (int end = 0; end < 2; end++) {
		init = queues(pair->cq);
		pair->qp[end] = ibv_create_qp(pd, &init);
		want(pair->qp[end] != NULL, "ibv_create_qp");
	}
	for (int end = 0; end < 2; end++)
		connect_to(pair->qp[end], address_of(pair->qp[1 - end]), 1);
}

static void close_pair(struct pair *pair)
{
	for (int end = 0; end < 2; end++)
		want(ibv_destroy_qp(pair->qp[end]) == 0, "ibv_destroy_qp");
	want(ibv_dereg_mr(pair->mr) == 0, "ibv_dereg_mr");
	want(ibv_destroy_cq(pair->cq) == 0, "ibv_destroy_cq");
	want(ibv_destroy_comp_channel(pair->channel) == 0, "ibv_destroy_comp_channel");
	want(ibv_dealloc_pd(pair->pd) == 0, "ibv_dealloc_pd");
	want(ibv_close_device(pair->context) == 0, "ibv_close_device");
}

static int post_send(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + 2048, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* Sends a message from one end to the other. */
static void message(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_wc wc;
	int got = 0;

	want(post_receive(to, mr) == 0, "ibv_post_recv");
	want(post_send(from, mr) == 0, "ibv_post_send");
	while (got < 2) {
		int count = ibv_poll_cq(cq, 1, &wc);

		want(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS), "completion");
		got += count;
	}
}

/* Waits for an event of this type, and returns its id. */
static struct rdma_cm_id *pass(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	want(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	want(event->event == type, rdma_event_str(event->event));
	id = event->id;
	want(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
	return id;
}

static void by_librdmacm(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listener, *client, *server;
	struct ibv_qp_init_attr init;
	struct ibv_cq *cq;
	struct ibv_mr *mr;

	want(here && there, "rdma_create_event_channel");
	want(rdma_create_id(there, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_bind_addr(listener, (struct sockaddr *)&to) == 0, "rdma_bind_addr");
	want(rdma_listen(listener, 1) == 0, "rdma_listen");
	to.sin_port = rdma_get_src_port(listener);
	want(rdma_create_id(here, &client, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 2000) == 0, "rdma_resolve_addr");
	pass(here, RDMA_CM_EVENT_ADDR_RESOLVED);
	want(rdma_resolve_route(client, 2000) == 0, "rdma_resolve_route");
	pass(here, RDMA_CM_EVENT_ROUTE_RESOLVED);
	pd = ibv_alloc_pd(client->verbs);
	want(pd != NULL, "ibv_alloc_pd");
	mr = registered(memory, sizeof(memory));
	cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);
	want(cq != NULL, "ibv_create_cq");
	init = queues(cq);
	want(rdma_create_qp(client, pd, &init) == 0, "rdma_create_qp");
	want(rdma_connect(client, &param) == 0, "rdma_connect");
	server = pass(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	init = queues(cq);
	want(rdma_create_qp(server, pd, &init) == 0, "rdma_create_qp");
	want(rdma_accept(server, &param) == 0, "rdma_accept");
	pass(here, RDMA_CM_EVENT_ESTABLISHED);
	pass(there, RDMA_CM_EVENT_ESTABLISHED);
	message(client->qp, server->qp, cq, mr);
	message(server->qp, client->qp, cq, mr);
	want(rdma_disconnect(client) == 0, "rdma_disconnect");
	pass(there, RDMA_CM_EVENT_DISCONNECTED);
	pass(here, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	want(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	want(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	want(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
	want(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0, "rdma_destroy_id");
	want(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

static void by_numbers(void)
{
	struct pair pair;

	open_pair(&pair);
	message(pair.qp[0], pair.qp[1], pair.cq, pair.mr);
	close_pair(&pair);
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	want(dir != NULL, "/proc/self/fd");
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/*
 * What a process keeps is there after the first round. The descriptor of a connection is closed when
 * the peer has acknowledged the last bytes, which may be after the end of its objects.
 */
static void leaves_none(const char *name, void (*round)(void))
{
	int before, after;

	round();
	before = open_descriptors();
	for (int i = 0; i < ROUNDS; i++)
		round();
	for (int waited = 0; (after = open_descriptors()) > before && waited < 10000; waited++)
		usleep(1000);
	if (after > before) {
		fprintf(stderr, "%s: %d descriptors after one round, %d after %d more\n", name, before, after, ROUNDS);
		exit(1);
	}
	printf("%s: no descriptor is left\n", name);
}

/* Objects of the parent fail in the child, also their end, and do not affect the parent. */
static void forks(void)
{
	struct pair pair;
	struct ibv_wc wc;
	int status = 1;
	pid_t child;

	open_pair(&pair);
	message(pair.qp[0], pair.qp[1], pair.cq, pair.mr);
	fflush(stdout);
	child = fork();
	want(child >= 0, "fork");
	if (child == 0) {
		alarm(60);
		want(post_send(pair.qp[0], pair.mr) != 0, "the child may send");
		want(post_receive(pair.qp[0], pair.mr) != 0, "the child may receive");
		want(ibv_poll_cq(pair.cq, 1, &wc) <= 0, "the child has completions");
		by_numbers();
		by_librdmacm();
		ibv_destroy_qp(pair.qp[0]);
		ibv_destroy_cq(pair.cq);
		ibv_dereg_mr(pair.mr);
		ibv_close_device(pair.context);
		exit(0);
	}
	message(pair.qp[0], pair.qp[1], pair.cq, pair.mr);
	want(waitpid(child, &status, 0) == child && status == 0, "the child");
	message(pair.qp[1], pair.qp[0], pair.cq, pair.mr);
	close_pair(&pair);
	printf("a child and its parent: each has its own objects\n");
}

int main(void)
{
	alarm(300);
	leaves_none("by numbers", by_numbers);
	leaves_none("by librdmacm", by_librdmacm);
	forks();
	return 0;
}
