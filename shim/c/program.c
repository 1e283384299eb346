/*
 * A C program with two devices in one process, like programs for libibverbs and librdmacm. One
 * thread posts, another polls, and a third sleeps in poll(2) on a completion channel. The process
 * also forks. It exits with 0, or prints the error and exits with 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uw.h"

enum {
	LIMIT_MS = 20000, /* for each wait */
	DEPTH = 64,	  /* receives posted at the server */
	ROUNDS = 2000,	  /* messages in each of the two phases */
	SLOT = 256,	  /* bytes of one message */
};
#define SERVER_IOVA 0x10000u

static void fail(int line, const char *what)
{
	fprintf(stderr, "program.c:%d: %s: %s\n", line, what, uw_error());
	exit(1);
}
#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

/* One end: a device with all objects for a connection. */
struct end {
	struct uw_device *device;
	struct uw_pd *pd;
	struct uw_channel *channel;
	struct uw_cq *send_cq, *recv_cq;
	struct uw_qp *qp;
	struct uw_mr *mr;
	struct uw_cm_channel *cm;
	uint8_t *memory;
	size_t length;
};

static void wait_readable(int fd)
{
	struct pollfd set = { .fd = fd, .events = POLLIN };
	int ready;

	do
		ready = poll(&set, 1, LIMIT_MS);
	while (ready < 0 && errno == EINTR);
	CHECK(ready == 1);
}

static void open_end(struct end *end, size_t length, uint64_t iova)
{
	int access = UW_LOCAL_WRITE | UW_REMOTE_WRITE | UW_REMOTE_READ | UW_REMOTE_ATOMIC | UW_WINDOW_BIND;

	memset(end, 0, sizeof *end);
	end->length = length;
	CHECK(end->device = uw_open_device());
	CHECK(end->pd = uw_alloc_pd(end->device));
	CHECK(end->channel = uw_create_comp_channel(end->device));
	CHECK(end->send_cq = uw_create_cq(end->device, 2 * DEPTH, 1, NULL));
	CHECK(end->recv_cq = uw_create_cq(end->device, 2 * DEPTH, 2, end->channel));
	CHECK(end->qp = uw_create_qp(end->pd, end->send_cq, end->recv_cq));
	CHECK(end->memory = aligned_alloc(4096, length));
	memset(end->memory, 0, length);
	CHECK(end->mr = uw_reg_mr_iova(end->pd, end->memory, length, iova ? iova : (uintptr_t)end->memory, access));
	CHECK(end->cm = uw_create_event_channel());
}

static void close_end(struct end *end)
{
	CHECK(uw_destroy_cq(end->recv_cq) == EBUSY); /* the queue pair still uses it */
	CHECK(uw_destroy_qp(end->qp, LIMIT_MS) == 0);
	CHECK(uw_destroy_cq(end->send_cq) == 0);
	CHECK(uw_destroy_cq(end->recv_cq) == 0);
	CHECK(uw_dereg_mr(end->mr) == 0);
	free(end->memory);
	uw_destroy_comp_channel(end->channel);
	uw_dealloc_pd(end->pd);
	uw_destroy_event_channel(end->cm);
	uw_close_device(end->device);
}

static struct uw_cm_event next_cm_event(struct uw_cm_channel *channel, int type)
{
	struct uw_cm_event event;

	wait_readable(uw_cm_fd(channel));
	CHECK(uw_get_cm_event(channel, &event) == 0);
	if (event.type != type)
		fprintf(stderr, "event %d, expected %d\n", event.type, type);
	CHECK(event.type == type);
	return event;
}

static void post_receives(struct end *end, int from, int count)
{
	for (int i = from; i < from + count; i++) {
		struct uw_sge sge = { .addr = SERVER_IOVA + (uint64_t)(i % DEPTH) * SLOT, .length = SLOT, .lkey = uw_mr_key(end->mr) };
		CHECK(uw_post_recv(end->qp, i % DEPTH, &sge, 1) == 0);
	}
}

/* Polls until there is a completion, and returns it. */
static struct uw_wc next_completion(struct uw_cq *cq)
{
	struct uw_wc wc;
	int count;

	while ((count = uw_poll_cq(cq, 1, &wc)) == 0)
		sched_yield();
	CHECK(count == 1);
	return wc;
}

static struct uw_wc send_and_wait(struct end *end, const struct uw_send_wr *wr)
{
	CHECK(uw_post_send(end->qp, wr) == 0);
	struct uw_wc wc = next_completion(end->send_cq);
	CHECK(wc.wr_id == wr->wr_id);
	return wc;
}

/* ---- traffic: one thread posts, one polls, one sleeps in poll(2) ---- */

struct traffic {
	struct end *client, *server;
	int first;	      /* number of the first message */
	atomic_int completed; /* number of completed Sends, counted by the polling thread */
};

/*
 * Returns the address to which the server writes the number of messages that it has received. The
 * Write is one-sided: the client makes no call for it.
 */
static _Atomic uint64_t *credits(struct end *client)
{
	return (_Atomic uint64_t *)client->memory;
}

static void *poster(void *argument)
{
	struct traffic *traffic = argument;
	struct end *client = traffic->client;

	for (int i = traffic->first; i < traffic->first + ROUNDS; i++) {
		while ((uint64_t)i >= atomic_load(credits(client)) + DEPTH)
			sched_yield();
		/* The memory of a Send may be reused only after its completion. */
		while (i - traffic->first - atomic_load(&traffic->completed) >= DEPTH)
			sched_yield();
		uint8_t *from = client->memory + SLOT * (size_t)(1 + i % DEPTH);
		memset(from, i & 0xff, SLOT);
		memcpy(from, &i, sizeof i);
		struct uw_sge sge = { .addr = (uintptr_t)from, .length = SLOT, .lkey = uw_mr_key(client->mr) };
		struct uw_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_SEND, .flags = UW_SIGNALED };
		CHECK(uw_post_send(client->qp, &wr) == 0);
	}
	return NULL;
}

static void *poller(void *argument)
{
	struct traffic *traffic = argument;

	for (int i = 0; i < ROUNDS; i++) {
		struct uw_wc wc = next_completion(traffic->client->send_cq);
		CHECK(wc.status == UW_WC_SUCCESS);
		CHECK(wc.wr_id == (uint64_t)(traffic->first + i));
		CHECK(wc.qp_num == uw_qp_num(traffic->client->qp));
		atomic_store(&traffic->completed, i + 1);
	}
	return NULL;
}

static void take_message(struct traffic *traffic, int number, const struct uw_wc *wc)
{
	struct end *server = traffic->server;
	const uint8_t *slot = server->memory + (size_t)(number % DEPTH) * SLOT;
	int told;

	CHECK(wc->status == UW_WC_SUCCESS && wc->opcode == UW_WC_RECV && wc->byte_len == SLOT);
	CHECK(wc->wr_id == (uint64_t)(number % DEPTH));
	memcpy(&told, slot, sizeof told);
	CHECK(told == number);
	for (size_t at = sizeof told; at < SLOT; at++)
		CHECK(slot[at] == (number & 0xff));
	post_receives(server, number, 1);
	if (number % 8 == 7) {
		uint64_t taken = (uint64_t)number + 1;
		struct uw_sge sge = { .addr = (uintptr_t)&taken, .length = sizeof taken };
		struct uw_send_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_RDMA_WRITE,
					 .flags = UW_SIGNALED | UW_INLINE, .remote_addr = (uintptr_t)traffic->client->memory,
					 .rkey = uw_mr_key(traffic->client->mr) };
		CHECK(send_and_wait(server, &wr).status == UW_WC_SUCCESS);
	}
}

static void *sleeper(void *argument)
{
	struct traffic *traffic = argument;
	struct end *server = traffic->server;
	int number = traffic->first;

	while (number < traffic->first + ROUNDS) {
		struct uw_wc wc;
		uint64_t context;
		int count;

		wait_readable(uw_comp_fd(server->channel));
		CHECK(uw_get_cq_event(server->channel, &context) == 0 && context == 2);
		uw_ack_cq_events(server->recv_cq, 1);
		CHECK(uw_req_notify_cq(server->recv_cq, 0) == 0);
		while ((count = uw_poll_cq(server->recv_cq, 1, &wc)) > 0)
			take_message(traffic, number++, &wc);
		CHECK(count == 0);
	}
	return NULL;
}

static void run_traffic(struct end *client, struct end *server, int first)
{
	struct traffic traffic = { .client = client, .server = server, .first = first };
	void *(*bodies[])(void *) = { sleeper, poller, poster };
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, bodies[i], &traffic) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

/* ---- connections ---- */

static void connect_by_cm(struct end *client, struct end *server, struct uw_cm_id **active, struct uw_cm_id **passive)
{
	struct uw_cm_channel *other;
	struct uw_cm_id *listener;
	struct uw_cm_event event;
	uint16_t port = 0;

	CHECK(other = uw_create_event_channel());
	CHECK(listener = uw_create_id(server->cm, server->device, 77));
	CHECK(uw_listen(listener, 4, &port) == 0 && port != 0);
	CHECK(*active = uw_create_id(client->cm, client->device, 88));
	CHECK(uw_resolve_addr(*active, port) == 0);
	event = next_cm_event(client->cm, UW_CM_ADDR_RESOLVED);
	CHECK(event.id == *active && uw_id_context(event.id) == 88);
	CHECK(uw_ack_cm_event(&event) == 0);
	CHECK(uw_resolve_route(*active) == 0);
	event = next_cm_event(client->cm, UW_CM_ROUTE_RESOLVED);
	CHECK(uw_ack_cm_event(&event) == 0);
	CHECK(uw_connect(*active, client->qp, "from the client", 15, 4, 4) == 0);

	event = next_cm_event(server->cm, UW_CM_CONNECT_REQUEST);
	*passive = event.id;
	CHECK(event.listen_context == 77 && event.private_data_len == 15);
	CHECK(memcmp(event.private_data, "from the client", 15) == 0);
	CHECK(uw_ack_cm_event(&event) == 0);
	/* Move the new id to another channel. Later events arrive there. */
	CHECK(uw_migrate_id(*passive, other) == 0);
	CHECK(uw_accept(*passive, server->qp, "from the server", 15, 2, 2) == 0);
	event = next_cm_event(other, UW_CM_ESTABLISHED);
	CHECK(event.id == *passive);
	CHECK(uw_ack_cm_event(&event) == 0);

	event = next_cm_event(client->cm, UW_CM_ESTABLISHED);
	CHECK(event.private_data_len == 15 && memcmp(event.private_data, "from the server", 15) == 0);
	/* The server raises its IRD to the client's ORD (RFC 6581 section 9.1). */
	CHECK(event.initiator_depth == 4 && event.responder_resources == 4);
	CHECK(uw_ack_cm_event(&event) == 0);

	CHECK(uw_migrate_id(*passive, server->cm) == 0);
	CHECK(uw_destroy_id(listener) == 0);
	uw_destroy_event_channel(other);
}

static void disconnect_by_cm(struct end *client, struct end *server, struct uw_cm_id *active, struct uw_cm_id *passive)
{
	struct uw_cm_event event;

	CHECK(uw_disconnect(active) == 0);
	event = next_cm_event(server->cm, UW_CM_DISCONNECTED);
	CHECK(event.id == passive);
	CHECK(uw_ack_cm_event(&event) == 0);
	event = next_cm_event(client->cm, UW_CM_DISCONNECTED);
	CHECK(uw_ack_cm_event(&event) == 0);
	CHECK(uw_destroy_id(active) == 0);
	CHECK(uw_destroy_id(passive) == 0);
	for (int i = 0; i < DEPTH; i++) /* unused receives are flushed */
		CHECK(next_completion(server->recv_cq).status == UW_WC_WR_FLUSH_ERR);
	CHECK(uw_modify_qp(client->qp, UW_QPS_RESET) == 0);
	CHECK(uw_modify_qp(server->qp, UW_QPS_RESET) == 0);
}

/* Returns two connected TCP sockets. */
static void stream_pair(int fds[2])
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof addr;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&addr, sizeof addr) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&addr, &length) == 0);
	CHECK((fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
	CHECK(connect(fds[0], (struct sockaddr *)&addr, sizeof addr) == 0);
	CHECK((fds[1] = accept(listener, NULL, NULL)) >= 0);
	close(listener);
}

struct stream_client {
	struct uw_qp *qp;
	int fd;
};

static void *connect_stream(void *argument)
{
	struct stream_client *client = argument;

	CHECK(uw_connect_stream(client->qp, client->fd) == 0);
	return NULL;
}

/* Connects over an existing stream whose first bytes the server has already read. */
static void connect_by_stream(struct end *client, struct end *server)
{
	uint8_t read_ahead[10];
	pthread_t thread;
	int fds[2];

	stream_pair(fds);
	struct stream_client task = { .qp = client->qp, .fd = fds[0] };
	CHECK(pthread_create(&thread, NULL, connect_stream, &task) == 0);
	CHECK(recv(fds[1], read_ahead, sizeof read_ahead, MSG_WAITALL) == sizeof read_ahead);
	CHECK(uw_accept_stream(server->device, server->qp, fds[1], read_ahead, sizeof read_ahead) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* ---- single operations ---- */

static void atomics_and_immediates(struct end *client, struct end *server)
{
	uint64_t *counter = (uint64_t *)(server->memory + DEPTH * SLOT);
	uint64_t *old = (uint64_t *)(client->memory + SLOT);
	struct uw_sge sge = { .addr = (uintptr_t)old, .length = 8, .lkey = uw_mr_key(client->mr) };
	struct uw_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_ATOMIC_FETCH_AND_ADD, .flags = UW_SIGNALED,
				 .remote_addr = SERVER_IOVA + DEPTH * SLOT, .rkey = uw_mr_key(server->mr), .compare_add = 5 };
	struct uw_wc wc;

	__atomic_store_n(counter, 37, __ATOMIC_SEQ_CST);
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	CHECK(*old == 37 && __atomic_load_n(counter, __ATOMIC_SEQ_CST) == 42);
	wr.opcode = UW_WR_ATOMIC_CMP_AND_SWP;
	wr.compare_add = 42;
	wr.swap = 7;
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	CHECK(*old == 42 && __atomic_load_n(counter, __ATOMIC_SEQ_CST) == 7);

	/* A Write with Immediate Data uses up a receive of the peer, but does not write to its memory. */
	wr = (struct uw_send_wr){ .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_RDMA_WRITE_WITH_IMM, .flags = UW_SIGNALED,
				  .imm_data = htonl(0xfeedbeef), .remote_addr = SERVER_IOVA + DEPTH * SLOT + 8, .rkey = uw_mr_key(server->mr) };
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	wc = next_completion(server->recv_cq);
	CHECK(wc.opcode == UW_WC_RECV_RDMA_WITH_IMM && (wc.flags & UW_WC_WITH_IMM));
	CHECK(wc.imm_data == htonl(0xfeedbeef) && wc.qp_num == uw_qp_num(server->qp));
	CHECK(counter[1] == 42);

	/* Only queue pairs that are connected by their numbers have a Send with Immediate Data. */
	wr.opcode = UW_WR_SEND_WITH_IMM;
	CHECK(uw_post_send(client->qp, &wr) == EOPNOTSUPP);
	CHECK(strstr(uw_error(), "7306") != NULL);
}

static void remote_invalidate(struct end *client, struct end *server)
{
	static uint8_t lent[4096];
	struct uw_mr *mr = uw_reg_mr_for(server->pd, server->qp, lent, sizeof lent, UW_LOCAL_WRITE | UW_REMOTE_WRITE);
	struct uw_wc wc;

	CHECK(mr != NULL);
	struct uw_send_wr wr = { .wr_id = 3, .opcode = UW_WR_SEND_WITH_INV, .flags = UW_SIGNALED, .rkey = uw_mr_key(mr) };
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	wc = next_completion(server->recv_cq);
	CHECK(wc.status == UW_WC_SUCCESS && (wc.flags & UW_WC_WITH_INV) && wc.imm_data == uw_mr_key(mr));
	CHECK(uw_dereg_mr(mr) == 0);
}

/*
 * Writes with an unknown key, which ends the connection. Each device reports the end on its own
 * descriptor.
 */
static void provoke_an_error(struct end *client, struct end *server)
{
	uint64_t bytes = 0;
	struct uw_sge sge = { .addr = (uintptr_t)&bytes, .length = sizeof bytes };
	struct uw_send_wr wr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_RDMA_WRITE, .flags = UW_INLINE,
				 .remote_addr = SERVER_IOVA, .rkey = uw_mr_key(server->mr) ^ 0xff };
	struct end *ends[] = { client, server };

	CHECK(uw_post_send(client->qp, &wr) == 0);
	for (int i = 0; i < 2; i++) {
		struct uw_async_event event;

		do {
			wait_readable(uw_async_fd(ends[i]->device));
			CHECK(uw_get_async_event(ends[i]->device, &event) == 0);
			CHECK(event.number == uw_qp_num(ends[i]->qp));
			uw_ack_async_event(ends[i]->device, &event);
		} while (event.type != UW_EVENT_QP_FATAL);
		printf("%s: %s\n", i ? "server" : "client", uw_error());
	}
}

/* ---- shared receive queue, window, states ---- */

static void next_async_event(struct end *end, int type, uint32_t number, struct uw_async_event *event)
{
	do {
		wait_readable(uw_async_fd(end->device));
		CHECK(uw_get_async_event(end->device, event) == 0);
		if (event->type != type)
			uw_ack_async_event(end->device, event);
	} while (event->type != type);
	CHECK(event->number == number);
}

/*
 * The server's queue pair takes receives from a shared queue. A message is held until a receive is
 * posted.
 */
static void share_receives(struct end *client, struct end *server, struct uw_srq *srq)
{
	struct uw_send_wr wr = { .wr_id = 6, .opcode = UW_WR_SEND, .flags = UW_SIGNALED };
	struct uw_async_event event;
	struct uw_wc wc;

	CHECK(uw_post_recv(server->qp, 0, NULL, 0) != 0); /* it has no receive queue of its own */
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	CHECK(uw_poll_cq(server->recv_cq, 1, &wc) == 0 && uw_qp_state(server->qp) == UW_QPS_RTS);
	for (int i = 0; i < 4; i++)
		CHECK(uw_post_srq_recv(srq, 100 + i, NULL, 0) == 0);
	wc = next_completion(server->recv_cq);
	CHECK(wc.wr_id == 100 && wc.qp_num == uw_qp_num(server->qp));
	CHECK(uw_arm_srq_limit(srq, 3) == 0); /* three are left; the next use raises the event */
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	CHECK(next_completion(server->recv_cq).wr_id == 101);
	next_async_event(server, UW_EVENT_SRQ_LIMIT, uw_srq_num(srq), &event);
	CHECK(uw_destroy_srq(srq, 0) == EBUSY); /* in use, and its event is not acknowledged */
	uw_ack_async_event(server->device, &event);
}

static void write_through_a_window(struct end *client, struct end *server)
{
	uint64_t bytes = 0x0123456789abcdefu;
	struct uw_sge sge = { .addr = (uintptr_t)&bytes, .length = sizeof bytes };
	struct uw_mw *window = uw_alloc_mw(server->pd);
	uint32_t key;

	CHECK(window != NULL);
	CHECK(uw_bind_mw(server->qp, window, 7, server->mr, SLOT, 64, &key) == 0);
	struct uw_wc wc = next_completion(server->send_cq);
	CHECK(wc.wr_id == 7 && wc.status == UW_WC_SUCCESS);
	CHECK(uw_dereg_mr(server->mr) == EBUSY); /* a window is bound to it */
	struct uw_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = UW_WR_RDMA_WRITE_WITH_IMM, .flags = UW_SIGNALED | UW_INLINE,
				 .remote_addr = SERVER_IOVA + SLOT, .rkey = key };
	CHECK(send_and_wait(client, &wr).status == UW_WC_SUCCESS);
	wc = next_completion(server->recv_cq);
	CHECK(wc.wr_id == 102 && wc.opcode == UW_WC_RECV_RDMA_WITH_IMM);
	CHECK(wc.byte_len == 0); /* the wire does not contain the length of the Write */
	CHECK(memcmp(server->memory + SLOT, &bytes, sizeof bytes) == 0);
	uw_dealloc_mw(window);
}

static void wait_for_state(const struct uw_qp *qp, int state)
{
	for (int waited = 0; uw_qp_state(qp) != state; waited++) {
		CHECK(waited < LIMIT_MS);
		poll(NULL, 0, 1);
	}
}

static void the_other_queues(void)
{
	struct end client, server;
	struct uw_async_event event;
	struct uw_srq *srq;

	open_end(&client, (DEPTH + 1) * SLOT, 0);
	open_end(&server, (DEPTH + 1) * SLOT, SERVER_IOVA);
	CHECK(uw_qp_num(client.qp) == uw_qp_num(server.qp)); /* each device has its own numbers */
	CHECK(uw_destroy_qp(server.qp, 0) == 0);
	CHECK(srq = uw_create_srq(server.pd, 16, 1));
	CHECK(server.qp = uw_create_qp_srq(server.pd, server.send_cq, server.recv_cq, srq, LIMIT_MS));
	CHECK(uw_resize_cq(client.send_cq, 4 * DEPTH) == 0);

	CHECK(uw_modify_qp(client.qp, UW_QPS_RTS) == EINVAL); /* only a connection reaches RTS */
	CHECK(uw_modify_qp(client.qp, UW_QPS_INIT) == 0 && uw_qp_state(client.qp) == UW_QPS_INIT);
	connect_by_stream(&client, &server);
	CHECK(uw_modify_qp(client.qp, UW_QPS_RTR) == 0 && uw_modify_qp(client.qp, UW_QPS_RTS) == 0);
	share_receives(&client, &server, srq);
	write_through_a_window(&client, &server);

	CHECK(uw_modify_qp(client.qp, UW_QPS_SQD) == 0); /* closes the connection gracefully */
	wait_for_state(client.qp, UW_QPS_ERR);
	wait_for_state(server.qp, UW_QPS_ERR);
	next_async_event(&server, UW_EVENT_LAST_WQE, uw_qp_num(server.qp), &event);
	CHECK(uw_destroy_qp(server.qp, 0) == EBUSY); /* until its event is acknowledged */
	uw_ack_async_event(server.device, &event);
	close_end(&client);
	close_end(&server);
	CHECK(uw_destroy_srq(srq, LIMIT_MS) == 0);
}

/* ---- fork ---- */

/*
 * In the child, objects of the parent fail with an error and do not affect the parent. A new
 * device works.
 */
static void child(struct end *inherited)
{
	struct uw_send_wr wr = { .wr_id = 5, .opcode = UW_WR_SEND, .flags = UW_SIGNALED };
	struct end client, server;

	CHECK(uw_post_send(inherited->qp, &wr) != 0);
	CHECK(strstr(uw_error(), "fork") != NULL);
	open_end(&client, 4096, 0);
	open_end(&server, (DEPTH + 1) * SLOT, SERVER_IOVA);
	post_receives(&server, 0, 1);
	connect_by_stream(&client, &server);
	CHECK(send_and_wait(&client, &wr).status == UW_WC_SUCCESS);
	CHECK(next_completion(server.recv_cq).status == UW_WC_SUCCESS);
	close_end(&client);
	close_end(&server);
	/* Destroying objects of the parent must not affect the parent either. */
	uw_destroy_qp(inherited->qp, 0);
	uw_close_device(inherited->device);
	exit(0);
}

static int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	CHECK(dir != NULL);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/*
 * Waits until this many descriptors are open. A connection's descriptor is closed only after the
 * peer has acknowledged the last bytes. At that time the connection's objects may be destroyed
 * already.
 */
static void wait_for_fds(int expected)
{
	for (int waited = 0; open_fds() != expected; waited++) {
		CHECK(waited < LIMIT_MS);
		poll(NULL, 0, 1);
	}
}

static void check_attributes(struct end *client, struct end *server)
{
	struct uw_device_attr attr;

	CHECK(uw_query_device(client->device, &attr) == 0);
	CHECK(attr.max_qp > 0 && attr.max_qp_wr > 0 && attr.max_sge > 0 && attr.max_cq > 0 && attr.max_cqe > 0);
	CHECK(attr.max_mr > 0 && attr.max_qp_rd_atom > 0 && attr.max_qp_init_rd_atom > 0 && attr.atomic_cap > 0);
	CHECK(attr.node_guid != 0 && attr.active_mtu > 0 && attr.gid_tbl_len > 0);
	int fds[] = { uw_async_fd(client->device), uw_cm_fd(client->cm), uw_comp_fd(client->channel), uw_async_fd(server->device) };
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < i; k++)
			CHECK(fds[i] != fds[k]);
	CHECK(uw_qp_state(client->qp) == UW_QPS_RESET || uw_qp_state(client->qp) == UW_QPS_INIT);
}

int program_main(void);
int program_main(void)
{
	struct uw_send_wr early = { .wr_id = 9, .opcode = UW_WR_SEND };
	struct uw_cm_id *active, *passive;
	struct end client, server;
	int fds = open_fds(), status;

	open_end(&client, (DEPTH + 1) * SLOT, 0);
	open_end(&server, (DEPTH + 1) * SLOT, SERVER_IOVA);
	check_attributes(&client, &server);
	CHECK(uw_post_send(client.qp, &early) != 0); /* not connected yet */
	post_receives(&server, 0, DEPTH);	     /* allowed before connecting */
	CHECK(uw_req_notify_cq(server.recv_cq, 0) == 0);
	connect_by_cm(&client, &server, &active, &passive);
	CHECK(uw_qp_state(client.qp) == UW_QPS_RTS);
	run_traffic(&client, &server, 0);

	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child(&client);
	run_traffic(&client, &server, ROUNDS);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	run_traffic(&client, &server, 2 * ROUNDS);
	disconnect_by_cm(&client, &server, active, passive);

	/* Use the same queue pairs again, over a stream that the program has connected. */
	post_receives(&server, 0, 8);
	connect_by_stream(&client, &server);
	atomics_and_immediates(&client, &server);
	remote_invalidate(&client, &server);
	provoke_an_error(&client, &server);
	close_end(&client);
	close_end(&server);
	the_other_queues();
	wait_for_fds(fds);
	printf("C program: %d messages, one fork, no complaint\n", 3 * ROUNDS);
	return 0;
}
