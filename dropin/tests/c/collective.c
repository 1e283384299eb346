/*
 * The verbs of NCCL's transport net_ib, without NCCL. The receiver writes the address of its buffer
 * into a ring in the sender's memory. The sender polls that memory, and answers with Writes over
 * several queue pairs, the last of each message with Immediate Data. The receiver posts receives
 * without elements, and flushes with a Read over a queue pair that is connected to itself. A thread
 * waits for asynchronous events.
 *
 *     collective
 */
#include <pthread.h>

#include "pair.h"

#define REQUESTS 32
#define QPS 2
#define MESSAGES 500
#define LENGTH 65536
#define PAGE 4096

/* An entry of the ring. `index` is written last, and tells the sender that the entry is there. */
struct entry {
	uint64_t addr;
	uint32_t rkey, size, tag, unused;
	volatile uint64_t index;
};

static struct ibv_cq *cq;
static struct ibv_qp *qps[QPS];
static volatile int async_events;

static void *wait_for_events(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	while (!ibv_get_async_event(context, &event)) {
		fprintf(stderr, "async event %s\n", ibv_event_type_str(event.event_type));
		async_events++;
		ibv_ack_async_event(&event);
	}
	return NULL;
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 2 * REQUESTS, .max_recv_wr = REQUESTS, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = sizeof(struct entry) },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		die("ibv_create_qp");
	return qp;
}

/* Polls four completions at once, as ncclIbTest does. */
static void reap(int *sends, int *receives, uint32_t *sum)
{
	struct ibv_wc wc[4];
	int got = ibv_poll_cq(cq, 4, wc);

	if (got < 0)
		die("ibv_poll_cq");
	for (int i = 0; i < got; i++) {
		if (wc[i].status) {
			fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
			exit(1);
		}
		if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			if (!(wc[i].wc_flags & IBV_WC_WITH_IMM))
				die("no immediate data");
			++*receives;
			*sum += wc[i].imm_data;
		} else {
			++*sends;
		}
	}
}

/* Bytes of a message, which are different in each. */
static char byte_of(int message, int at)
{
	return (char)(message * 7 + at * 13 + at / 251);
}

/* The data of each message is split over the queue pairs. */
static void send_all(char *data, struct ibv_mr *mr, volatile struct entry *ring)
{
	int sends = 0, receives = 0, posted = 0;
	uint32_t sum = 0;

	for (int message = 0; message < MESSAGES; message++) {
		volatile struct entry *entry = &ring[message % REQUESTS];
		char *from = data + (size_t)(message % REQUESTS) * LENGTH;

		while (entry->index != (uint64_t)message + 1)
			reap(&sends, &receives, &sum);
		__sync_synchronize();
		if (entry->size != LENGTH || entry->tag != 7)
			die("a wrong entry");
		for (int at = 0; at < LENGTH; at++)
			from[at] = byte_of(message, at);
		for (int nth = 0; nth < QPS; nth++) {
			size_t part = LENGTH / QPS, offset = nth * part;
			struct ibv_sge sge = { .addr = (uintptr_t)from + offset, .length = part,
					       .lkey = mr->lkey };
			struct ibv_send_wr last = {
				.wr_id = message,
				.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				.send_flags = IBV_SEND_SIGNALED,
				.imm_data = part,
			}, write = {
				.wr_id = message,
				.sg_list = &sge,
				.num_sge = 1,
				.next = &last,
				.opcode = IBV_WR_RDMA_WRITE,
				.wr.rdma = { entry->addr + offset, entry->rkey },
			}, *bad;

			last.wr.rdma.remote_addr = entry->addr;
			last.wr.rdma.rkey = entry->rkey;
			if (ibv_post_send(qps[nth], &write, &bad))
				die("ibv_post_send");
			posted++;
		}
		/* The buffer is used again after REQUESTS messages. */
		while (posted - sends > QPS * (REQUESTS / 2))
			reap(&sends, &receives, &sum);
	}
	while (sends < posted)
		reap(&sends, &receives, &sum);
}

static void receive_all(char *data, struct ibv_mr *mr, struct entry *own, struct ibv_mr *own_mr,
			uint64_t ring, uint32_t ring_key)
{
	struct ibv_qp *flush = create();
	struct ibv_mr *word;
	int sends = 0, receives = 0, wanted = 0, slots = 0;
	uint32_t sum = 0;
	char landing[8];

	word = registered(landing, sizeof landing);
	connect_to(flush, address_of(flush), 1);
	for (int message = 0; message < MESSAGES; message++) {
		char *to = data + (size_t)(message % REQUESTS) * LENGTH;
		struct entry *entry = &own[message % REQUESTS];
		struct ibv_recv_wr receive = { .wr_id = message }, *bad_receive;
		struct ibv_sge slot = { .addr = (uintptr_t)entry, .length = sizeof *entry,
					.lkey = own_mr->lkey };
		struct ibv_send_wr write = {
			.sg_list = &slot,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_INLINE,
			.wr.rdma = { ring + (message % REQUESTS) * sizeof *entry, ring_key },
		}, *bad;
		struct ibv_sge sge = { .addr = (uintptr_t)landing, .length = 1, .lkey = word->lkey };
		struct ibv_send_wr read = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)to, mr->rkey },
		};

		for (int nth = 0; nth < QPS; nth++)
			if (ibv_post_recv(qps[nth], &receive, &bad_receive))
				die("ibv_post_recv");
		*entry = (struct entry){ .addr = (uintptr_t)to, .rkey = mr->rkey, .size = LENGTH,
					 .tag = 7, .index = message + 1 };
		if (message % REQUESTS == 0) {
			write.send_flags |= IBV_SEND_SIGNALED;
			slots++;
		}
		if (ibv_post_send(qps[0], &write, &bad))
			die("ibv_post_send of an entry");
		wanted += QPS;
		while (receives < wanted || sends < slots)
			reap(&sends, &receives, &sum);
		slots++;
		if (ibv_post_send(flush, &read, &bad))
			die("ibv_post_send of the flush");
		while (sends < slots)
			reap(&sends, &receives, &sum);
		if (landing[0] != to[0])
			die("the flush has read another byte");
		for (int at = 0; at < LENGTH; at++)
			if (to[at] != byte_of(message, at)) {
				fprintf(stderr, "message %d differs at %d\n", message, at);
				exit(1);
			}
	}
	if (sum != (uint32_t)MESSAGES * LENGTH)
		die("the immediate data does not add up");
	ibv_destroy_qp(flush);
	ibv_dereg_mr(word);
}

int main(void)
{
	struct offer {
		struct address qps[QPS];
		uint64_t ring;
		uint32_t ring_key;
	} ours = { 0 }, theirs;
	size_t size = (size_t)REQUESTS * LENGTH;
	struct ibv_port_attr port;
	struct ibv_mr *data_mr, *ring_mr;
	struct entry *ring;
	pthread_t events;
	char *data, done = 0;
	int status;
	pid_t child = split();

	open_device();
	if (pthread_create(&events, NULL, wait_for_events, NULL))
		die("pthread_create");
	if (ibv_query_port(context, 1, &port) || port.state != IBV_PORT_ACTIVE ||
	    port.link_layer != IBV_LINK_LAYER_ETHERNET)
		die("ibv_query_port");
	cq = ibv_create_cq(context, 2 * REQUESTS * QPS * 2, NULL, NULL, 0);
	if (!cq || posix_memalign((void **)&data, PAGE, size) ||
	    posix_memalign((void **)&ring, PAGE, PAGE))
		die("memory");
	memset(ring, 0, PAGE);
	data_mr = ibv_reg_mr_iova2(pd, data, size, (uintptr_t)data,
				   ALL_RIGHTS | IBV_ACCESS_RELAXED_ORDERING);
	if (!data_mr)
		die("ibv_reg_mr_iova2");
	ring_mr = registered(ring, PAGE);
	for (int nth = 0; nth < QPS; nth++) {
		qps[nth] = create();
		ours.qps[nth] = address_of(qps[nth]);
	}
	ours.ring = (uintptr_t)ring;
	ours.ring_key = ring_mr->rkey;
	swap(&ours, &theirs, sizeof ours);
	for (int nth = 0; nth < QPS; nth++)
		connect_to(qps[nth], theirs.qps[nth], 1);
	if (child)
		receive_all(data, data_mr, ring, ring_mr, theirs.ring, theirs.ring_key);
	else
		send_all(data, data_mr, ring);
	/* Neither leaves before the other has all. */
	swap(&done, &done, 1);
	for (int nth = 0; nth < QPS; nth++)
		ibv_destroy_qp(qps[nth]);
	if (async_events)
		die("there were asynchronous events");
	if (!child)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status)
		die("the sender has failed");
	printf("%d messages of %d bytes over %d queue pairs\n", MESSAGES, LENGTH, QPS);
	fflush(stdout);
	_exit(0);
}
