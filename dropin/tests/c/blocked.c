/*
 * Cancels threads in calls that wait. A cancelled call does not return and keeps no lock. Other
 * threads then use the same objects.
 *
 *     blocked PORT
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SYS_poll
#define WAITS SYS_poll
#else
#define WAITS SYS_ppoll
#endif

static struct rdma_cm_id *listener, *client, *server, *silent;

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

/* A blocking call, and the id of the thread that makes the call. */
struct call {
	void (*run)(void);
	atomic_int thread;
};

static void *call(void *of)
{
	struct call *call = of;

	call->thread = gettid();
	call->run();
	return NULL;
}

/* Returns true if a thread of this process is in the system call in which the library waits. */
static int waits(int thread)
{
	char path[64];
	long number = -1;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
	file = fopen(path, "r");
	want(file != NULL, path);
	if (fscanf(file, "%ld", &number) != 1)
		number = -1;
	fclose(file);
	return number == WAITS;
}

static void cancel(const char *name, void (*run)(void))
{
	struct call in = { .run = run };
	pthread_t thread;
	void *result;

	want(pthread_create(&thread, NULL, call, &in) == 0, "pthread_create");
	while (!in.thread || !waits(in.thread))
		usleep(100);
	want(pthread_cancel(thread) == 0, "pthread_cancel");
	want(pthread_join(thread, &result) == 0, "pthread_join");
	printf("%s: %s\n", name, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

static void get_event(void)
{
	struct ibv_async_event event;

	ibv_get_async_event(client->verbs, &event);
}

static void get_request(void)
{
	rdma_get_request(listener, &server);
}

static void do_connect(void)
{
	rdma_connect(client, NULL);
}

static void do_disconnect(void)
{
	rdma_disconnect(silent);
}

/* Takes the event for which a cancelled call waited. That call must not have taken the event. */
static void pass(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	want(rdma_get_cm_event(id->channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event %s, status %d, expected %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	want(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
}

/* A limit above the number of posted receives raises an event of the SRQ immediately. */
static void an_event(struct ibv_context *context)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_async_event event;
	struct ibv_srq *srq;

	want(pd != NULL, "ibv_alloc_pd");
	srq = ibv_create_srq(pd, &attr);
	want(srq != NULL, "ibv_create_srq");
	want(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0, "ibv_modify_srq");
	want(ibv_get_async_event(context, &event) == 0, "ibv_get_async_event");
	want(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq, "the event");
	ibv_ack_async_event(&event);
	want(ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
	want(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
}

/* Sends a message over the connection of the client whose call was cancelled. */
static void a_message(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)"bytes", .length = 5 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
				    .sg_list = &sge, .num_sge = 1 }, *bad_send;
	struct ibv_recv_wr receive = { .num_sge = 1 }, *bad_receive;
	struct ibv_sge into;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char to[8] = "";

	mr = ibv_reg_mr(server->qp->pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE);
	want(mr != NULL, "ibv_reg_mr");
	into = (struct ibv_sge){ .addr = (uintptr_t)to, .length = sizeof to, .lkey = mr->lkey };
	receive.sg_list = &into;
	want(ibv_post_recv(server->qp, &receive, &bad_receive) == 0, "ibv_post_recv");
	want(ibv_post_send(client->qp, &send, &bad_send) == 0, "ibv_post_send");
	while (ibv_poll_cq(server->recv_cq, 1, &wc) == 0)
		;
	want(wc.status == IBV_WC_SUCCESS, "a completion");
	printf("received '%s'\n", to);
	want(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
}

/* Connects a client that sends only an MPA Request of revision 1. Returns its open socket. */
static int a_silent_client(const char *port)
{
	static const char request[] = "MPA ID Req Frame\x40\x01\x00\x00";
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)) };
	int client = socket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	want(connect(client, (struct sockaddr *)&to, sizeof to) == 0, "connect");
	want(write(client, request, sizeof request - 1) == sizeof request - 1, "write");
	return client;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	}, same = attr;
	int peer;

	setvbuf(stdout, NULL, _IOLBF, 0);
	want(rdma_getaddrinfo("127.0.0.1", argv[argc - 1], &hints, &info) == 0, "rdma_getaddrinfo");
	want(rdma_create_ep(&listener, info, NULL, &attr) == 0, "rdma_create_ep");
	want(rdma_listen(listener, 1) == 0, "rdma_listen");
	cancel("rdma_get_request", get_request);

	hints.ai_flags = 0;
	rdma_freeaddrinfo(info);
	want(rdma_getaddrinfo("127.0.0.1", argv[argc - 1], &hints, &info) == 0, "rdma_getaddrinfo");
	want(rdma_create_ep(&client, info, NULL, &same) == 0, "rdma_create_ep");
	rdma_freeaddrinfo(info);
	cancel("rdma_connect", do_connect);

	/* The connection attempt that the cancelled call has started continues. */
	want(rdma_get_request(listener, &server) == 0, "rdma_get_request");
	want(rdma_accept(server, NULL) == 0, "rdma_accept");
	pass(client, RDMA_CM_EVENT_ESTABLISHED);
	a_message();

	peer = a_silent_client(argv[argc - 1]);
	want(rdma_get_request(listener, &silent) == 0, "rdma_get_request");
	want(rdma_accept(silent, NULL) == 0, "rdma_accept");
	cancel("rdma_disconnect", do_disconnect);
	close(peer);
	pass(silent, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(silent);

	cancel("ibv_get_async_event", get_event);
	an_event(client->verbs);

	want(rdma_disconnect(client) == 0, "rdma_disconnect");
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
	printf("all is gone\n");
	return 0;
}
