/*
 * The verbs of 3FS's transport, without 3FS. Requests and responses are Sends into buffers that are
 * posted in advance. After every few receives a side acknowledges them by a Send with Immediate
 * Data and no payload, and no side has more Sends under way than the other has buffers. The service
 * reads and writes the memory of its client by lists of Reads and Writes, the last one with
 * Immediate Data at the end of a transfer. Both sides sleep in a completion channel.
 *
 *     file_service
 */
#include <arpa/inet.h>
#include <poll.h>

#include "pair.h"

#define BUFFERS 16
#define ACK_EVERY 4
#define BUFFER 512
#define BLOCK 32768
#define BLOCKS 8
#define REQUESTS 400

enum { ACK = 1, END = 2 };

/* Asks the service to fetch the blocks and to write them back, each byte one larger. */
struct request {
	uint64_t addr;
	uint32_t rkey, number;
};

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char *buffers;
static struct ibv_mr *buffers_mr;
static int credits = BUFFERS, unacknowledged, ended, transfers, done;
/* Number of requests or responses that have arrived, and the last of them. */
static int arrived;
static struct request last;

static void post_buffer(int index)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffers + index * BUFFER, .length = BUFFER,
			       .lkey = buffers_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(qp, wr, &bad))
		die("ibv_post_send");
}

/* Sends Immediate Data without payload. */
static void note(uint32_t kind, uint32_t count)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(kind << 16 | count),
	};

	post(&wr);
}

static void completed(const struct ibv_wc *wc)
{
	if (wc->status) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
	if (!(wc->opcode & IBV_WC_RECV)) {
		done += wc->opcode == IBV_WC_RDMA_READ;
		return;
	}
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		uint32_t imm = ntohl(wc->imm_data);

		if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			transfers++;
		} else if (wc->byte_len != 0) {
			die("a note with payload");
		} else if (imm >> 16 == ACK) {
			credits += imm & 0xFFFF;
		} else {
			ended = 1;
		}
		post_buffer(wc->wr_id);
		return;
	}
	if (wc->byte_len != sizeof last)
		die("a message of another length");
	memcpy(&last, buffers + wc->wr_id * BUFFER, sizeof last);
	arrived++;
	post_buffer(wc->wr_id);
	if (++unacknowledged == ACK_EVERY) {
		unacknowledged = 0;
		note(ACK, ACK_EVERY);
	}
}

/* Handles what has completed. Sleeps if there is nothing. */
static void work(void)
{
	struct ibv_wc wc[8];
	struct ibv_cq *unused;
	void *context_of_cq;
	int got;

	for (int tries = 0; tries < 2; tries++) {
		while ((got = ibv_poll_cq(cq, 8, wc)) > 0) {
			for (int i = 0; i < got; i++)
				completed(wc + i);
			tries = 2;
		}
		if (got < 0)
			die("ibv_poll_cq");
		if (tries == 0 && ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
		if (tries == 1) {
			if (ibv_get_cq_event(channel, &unused, &context_of_cq))
				die("ibv_get_cq_event");
			ibv_ack_cq_events(cq, 1);
		}
	}
}

static void message(struct request *from, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = sizeof *from, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	while (credits == 0)
		work();
	credits--;
	post(&wr);
}

/* Posts a list of requests, one for each block. */
static void transfer(enum ibv_wr_opcode opcode, char *local, struct ibv_mr *mr,
		     const struct request *request)
{
	struct ibv_sge sges[BLOCKS];
	struct ibv_send_wr wrs[BLOCKS];

	memset(wrs, 0, sizeof wrs);
	for (int i = 0; i < BLOCKS; i++) {
		int last_one = i == BLOCKS - 1;

		sges[i] = (struct ibv_sge){ (uintptr_t)local + i * BLOCK, BLOCK, mr->lkey };
		wrs[i].sg_list = &sges[i];
		wrs[i].num_sge = 1;
		wrs[i].opcode = opcode;
		wrs[i].wr.rdma.remote_addr = request->addr + i * BLOCK;
		wrs[i].wr.rdma.rkey = request->rkey;
		wrs[i].next = last_one ? NULL : &wrs[i + 1];
		if (last_one) {
			wrs[i].send_flags = IBV_SEND_SIGNALED;
			if (opcode == IBV_WR_RDMA_WRITE)
				wrs[i].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		}
	}
	post(wrs);
}

static void serve(void)
{
	char *blocks = malloc(BLOCKS * BLOCK);
	struct ibv_mr *mr = registered(blocks, BLOCKS * BLOCK);
	struct request answer;
	struct ibv_mr *answer_mr = registered(&answer, sizeof answer);

	for (int served = 0; !ended; served++) {
		int reads = done;

		while (arrived == served && !ended)
			work();
		if (ended)
			break;
		answer = last;
		transfer(IBV_WR_RDMA_READ, blocks, mr, &answer);
		while (done == reads)
			work();
		for (int i = 0; i < BLOCKS * BLOCK; i++)
			blocks[i]++;
		transfer(IBV_WR_RDMA_WRITE, blocks, mr, &answer);
		message(&answer, answer_mr);
	}
	note(END, 0);
}

static void request_all(void)
{
	char *blocks = malloc(BLOCKS * BLOCK);
	struct ibv_mr *mr = registered(blocks, BLOCKS * BLOCK);
	struct request request = { (uintptr_t)blocks, mr->rkey, 0 };
	struct ibv_mr *request_mr = registered(&request, sizeof request);

	for (int number = 0; number < REQUESTS; number++) {
		for (int i = 0; i < BLOCKS * BLOCK; i++)
			blocks[i] = (char)(number + i * 11);
		request.number = number;
		message(&request, request_mr);
		while (arrived == number)
			work();
		if (last.number != (uint32_t)number || transfers != number + 1)
			die("a response out of order");
		for (int i = 0; i < BLOCKS * BLOCK; i++)
			if (blocks[i] != (char)(number + i * 11 + 1))
				die("a block with another content");
	}
	note(END, 0);
	while (!ended)
		work();
	printf("%d requests of %d blocks\n", REQUESTS, BLOCKS);
	fflush(stdout);
}

int main(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 64, .max_recv_wr = BUFFERS * 2, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct address ours, theirs;
	char done_byte = 0;
	int status;
	pid_t child = split();

	open_device();
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 256, NULL, channel, 0) : NULL;
	attr.send_cq = attr.recv_cq = cq;
	if (!cq || !(qp = ibv_create_qp(pd, &attr)) || !(buffers = calloc(BUFFERS * 2, BUFFER)))
		die("objects");
	buffers_mr = registered(buffers, BUFFERS * 2 * BUFFER);
	ours = address_of(qp);
	swap(&ours, &theirs, sizeof ours);
	connect_to(qp, theirs, 16);
	/* Half of the buffers are for notes and for Immediate Data of Writes. */
	for (int i = 0; i < BUFFERS * 2; i++)
		post_buffer(i);
	if (child)
		request_all();
	else
		serve();
	swap(&done_byte, &done_byte, 1);
	if (!child)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status)
		die("the service has failed");
	_exit(0);
}
