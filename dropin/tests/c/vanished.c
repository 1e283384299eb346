/*
 * Registers memory and unmaps it. A client writes to it and reads from it. Afterwards the server
 * accesses an address where nothing is mapped, which its own handler of SIGSEGV has to see.
 *
 *     vanished PORT none       server without a handler
 *     vanished PORT before     server whose handler is older than that of the library
 *     vanished PORT after      server that replaces the handler of the library
 *     vanished PORT ADDRESS    client
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#define SIZE (64 * 1024)
/* Address at which nothing is mapped. */
#define NOWHERE ((volatile char *)16)

struct lent {
	uint64_t addr;
	uint32_t rkey;
	uint32_t length;
};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char other[64];

static void want(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

/* Waits for an event, and copies its private data. */
static struct rdma_cm_id *pass(enum rdma_cm_event_type type, struct lent *lent)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *of;

	want(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event %s, status %d, expected %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	if (lent) {
		want(event->param.conn.private_data_len >= sizeof(*lent), "private data");
		memcpy(lent, event->param.conn.private_data, sizeof(*lent));
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
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	init.send_cq = init.recv_cq = cq;
	want(rdma_create_qp(id, pd, &init) == 0, "rdma_create_qp");
}

static void release(void)
{
	pass(RDMA_CM_EVENT_DISCONNECTED, NULL);
	rdma_destroy_qp(id);
	want(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

static void open_device(void)
{
	/* An id that is bound to a loopback address has no device. */
	struct ibv_context **devices = rdma_get_devices(NULL);

	want(devices != NULL && devices[0] != NULL, "rdma_get_devices");
	pd = ibv_alloc_pd(devices[0]);
	want(pd != NULL, "ibv_alloc_pd");
	cq = ibv_create_cq(devices[0], 16, NULL, NULL, 0);
	want(cq != NULL, "ibv_create_cq");
}

static volatile sig_atomic_t faults;
static siginfo_t seen;
static sigjmp_buf after_fault;

static void handle(int signal, siginfo_t *info, void *context)
{
	(void)context;
	faults++;
	if (signal == SIGSEGV)
		seen = *info;
	siglongjmp(after_fault, 1);
}

static void install(void)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };

	want(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
}

/* Registers memory, and unmaps it. */
static struct lent vanish(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
	struct ibv_mr *mr;

	want(memory != MAP_FAILED, "mmap");
	mr = ibv_reg_mr(pd, memory, SIZE, access);
	want(mr != NULL, "ibv_reg_mr");
	want(munmap(memory, SIZE) == 0, "munmap");
	/* Nothing else may be mapped there meanwhile. */
	want(mmap(memory, SIZE, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0) == memory, "mmap");
	return (struct lent){ .addr = (uintptr_t)memory, .rkey = mr->rkey, .length = SIZE };
}

static void serve(const struct sockaddr_in *at, const char *handler)
{
	struct rdma_conn_param answer = { .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_id *listener;
	struct lent lent;
	int number;

	if (!strcmp(handler, "before"))
		install();
	want(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_bind_addr(listener, (struct sockaddr *)at) == 0, "rdma_bind_addr");
	open_device();
	if (!strcmp(handler, "after")) {
		want(ibv_reg_mr(pd, other, sizeof(other), 0) != NULL, "ibv_reg_mr");
		install();
	}
	lent = vanish();
	answer.private_data = &lent;
	answer.private_data_len = sizeof(lent);
	want(rdma_listen(listener, 1) == 0, "rdma_listen");
	for (number = 0; number < 2; number++) {
		id = pass(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
		prepare();
		want(rdma_accept(id, &answer) == 0, "rdma_accept");
		pass(RDMA_CM_EVENT_ESTABLISHED, NULL);
		release();
	}
	printf("lives\n");
	if (sigsetjmp(after_fault, 1) == 0)
		*NOWHERE = 1;
	printf("%d fault of its own, signal %d, code %d, at %p\n", (int)faults, seen.si_signo, seen.si_code,
	       seen.si_addr);
}

static void use(const struct sockaddr_in *to, enum ibv_wr_opcode opcode)
{
	struct rdma_conn_param ask = { .responder_resources = 4, .initiator_depth = 4 };
	struct ibv_send_wr wr = { .opcode = opcode, .num_sge = 1 }, *bad;
	struct ibv_sge sge = { .addr = (uintptr_t)other, .length = sizeof(other) };
	struct lent lent;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int count;

	want(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	want(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0, "rdma_resolve_addr");
	pass(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	want(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	open_device();
	prepare();
	mr = ibv_reg_mr(pd, other, sizeof(other), IBV_ACCESS_LOCAL_WRITE);
	want(mr != NULL, "ibv_reg_mr");
	want(rdma_connect(id, &ask) == 0, "rdma_connect");
	pass(RDMA_CM_EVENT_ESTABLISHED, &lent);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = lent.addr;
	wr.wr.rdma.rkey = lent.rkey;
	want(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(1000);
	want(count == 1, "ibv_poll_cq");
	/* A Write may complete before the peer has received it. */
	if (opcode == IBV_WR_RDMA_READ)
		printf("read: status %d\n", wc.status);
	release();
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc != 3) {
		fprintf(stderr, "usage: %s PORT none|before|after|ADDRESS\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	at.sin_port = htons((unsigned short)atoi(argv[1]));
	channel = rdma_create_event_channel();
	want(channel != NULL, "rdma_create_event_channel");
	if (inet_pton(AF_INET, argv[2], &at.sin_addr) == 1) {
		use(&at, IBV_WR_RDMA_WRITE);
		use(&at, IBV_WR_RDMA_READ);
	} else {
		serve(&at, argv[2]);
	}
	return 0;
}
