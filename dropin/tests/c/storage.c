/*
 * Storage target and its initiator, like NVMe over RDMA (SPDK). Commands are Sends. The target
 * fetches data for the disk with RDMA Reads, up to 32 at the same time, and returns data with RDMA
 * Writes. A Read has as many scatter/gather elements as the device allows, up to 8, like SPDK's
 * buffers. It ends each command with a Send. Both sides poll and never sleep.
 *
 *     storage PORT            target, for one initiator
 *     storage PORT ADDRESS    initiator: writes a disk, reads it back, compares
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define DEPTH 32
#define BLOCK (128 * 1024)
#define BLOCKS 64
#define ROUNDS 2
#define ELEMENTS 8

enum { WRITE, READ, STOP };

struct command {
	uint64_t addr;
	uint32_t rkey, length, block;
	uint16_t slot, op;
};

struct response {
	uint16_t slot, status;
};

static struct rdma_cm_id *id;
static int elements;
static struct ibv_cq *cq;
static struct ibv_mr *small_mr;
static struct {
	struct command commands[DEPTH];
	struct response responses[DEPTH];
} small;
#define commands small.commands
#define responses small.responses

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_mr *registered(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, length,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);

	if (!mr)
		die("ibv_reg_mr");
	return mr;
}

/* Waits for the next completion, which must be a success. */
static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	if (count < 0 || wc.status) {
		fprintf(stderr, "opcode %d of %d: %s\n", wc.opcode, (int)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(id->qp, wr, &bad))
		die("ibv_post_send");
}

static void receive(void *into, uint32_t length, int slot)
{
	struct ibv_sge sge = { (uintptr_t)into, length, small_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(id->qp, &wr, &bad))
		die("ibv_post_recv");
}

/* Posts the Send that ends a command, after `first` if that is not NULL. */
static void respond(struct ibv_send_wr *first, uint16_t slot)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	responses[slot] = (struct response){ slot, 0 };
	sge = (struct ibv_sge){ (uintptr_t)&responses[slot], sizeof responses[slot], small_mr->lkey };
	if (first)
		first->next = &wr;
	post(first ? first : &wr);
}

static void move(uint8_t *disk, struct ibv_mr *mr, const struct command *command)
{
	struct ibv_sge sges[ELEMENTS];
	struct ibv_send_wr wr = { .wr_id = command->slot, .sg_list = sges };
	uint64_t at = (uintptr_t)disk + (size_t)command->block * BLOCK;
	uint32_t left = command->length;

	while (left) {
		/* Each element is a bit longer than the one before. The last one has the rest. */
		uint32_t part = command->length / ELEMENTS + wr.num_sge;

		if (part > left || wr.num_sge + 1 == elements)
			part = left;
		sges[wr.num_sge++] = (struct ibv_sge){ at, part, mr->lkey };
		at += part;
		left -= part;
	}
	wr.wr.rdma.remote_addr = command->addr;
	wr.wr.rdma.rkey = command->rkey;
	if (command->op == WRITE) {
		wr.opcode = IBV_WR_RDMA_READ;
		wr.send_flags = IBV_SEND_SIGNALED;
		post(&wr);
	} else {
		wr.opcode = IBV_WR_RDMA_WRITE;
		respond(&wr, command->slot);
	}
}

static void target(void)
{
	uint8_t *disk = calloc(BLOCKS, BLOCK);
	struct ibv_mr *mr = registered(disk, (size_t)BLOCKS * BLOCK);
	struct rdma_conn_param param = { .responder_resources = DEPTH, .initiator_depth = DEPTH };
	int reads = 0, most = 0, stop = 0;

	for (int slot = 0; slot < DEPTH; slot++)
		receive(&commands[slot], sizeof commands[slot], slot);
	if (rdma_accept(id, &param))
		die("rdma_accept");
	while (!stop) {
		struct ibv_wc wc = next();
		struct command command;

		if (wc.opcode == IBV_WC_RDMA_READ) {
			reads--;
			respond(NULL, (uint16_t)wc.wr_id);
		}
		if (wc.opcode != IBV_WC_RECV)
			continue;
		command = commands[wc.wr_id];
		receive(&commands[wc.wr_id], sizeof command, (int)wc.wr_id);
		if (command.op == STOP) {
			stop = 1;
			respond(NULL, command.slot);
			continue;
		}
		reads += command.op == WRITE;
		most = reads > most ? reads : most;
		move(disk, mr, &command);
	}
	while (next().opcode != IBV_WC_SEND)
		;
	printf("the target served, with more than one Read at once: %s, with %d elements each\n",
	       most > 1 ? "yes" : "no", elements);
}

static uint8_t pattern(unsigned block, unsigned round, size_t at)
{
	return (uint8_t)(block * 7 + round * 13 + at + (at >> 8));
}

/* Returns how many bytes of a block are transferred. Blocks differ in this length. */
static uint32_t length(unsigned block)
{
	return block % 3 ? BLOCK : 512 * (1 + block % 256);
}

/* Runs a command for each block. At most one command per slot is outstanding. */
static void all(uint16_t op, unsigned round, uint8_t *buffers, struct ibv_mr *mr)
{
	unsigned begun = 0, ended = 0, of[DEPTH], free_slots[DEPTH], free_count = DEPTH;

	for (unsigned slot = 0; slot < DEPTH; slot++)
		free_slots[slot] = slot;
	while (ended < BLOCKS) {
		struct ibv_wc wc;
		uint16_t slot;
		uint8_t *buffer;

		if (free_count && begun < BLOCKS) {
			struct ibv_sge sge;
			struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
						  .send_flags = IBV_SEND_SIGNALED };

			slot = (uint16_t)free_slots[--free_count];
			of[slot] = begun++;
			buffer = buffers + (size_t)slot * BLOCK;
			for (size_t at = 0; at < length(of[slot]); at++)
				buffer[at] = op == WRITE ? pattern(of[slot], round, at) : 0;
			commands[slot] = (struct command){ (uintptr_t)buffer, mr->rkey, length(of[slot]), of[slot], slot, op };
			sge = (struct ibv_sge){ (uintptr_t)&commands[slot], sizeof commands[slot], small_mr->lkey };
			post(&wr);
			continue;
		}
		wc = next();
		if (wc.opcode != IBV_WC_RECV)
			continue;
		slot = responses[wc.wr_id].slot;
		receive(&responses[wc.wr_id], sizeof responses[0], (int)wc.wr_id);
		buffer = buffers + (size_t)slot * BLOCK;
		for (size_t at = 0; op == READ && at < length(of[slot]); at++)
			if (buffer[at] != pattern(of[slot], round, at)) {
				fprintf(stderr, "block %u has a wrong byte at %zu\n", of[slot], at);
				exit(1);
			}
		free_slots[free_count++] = slot;
		ended++;
	}
}

static void initiator(void)
{
	uint8_t *buffers = calloc(DEPTH, BLOCK);
	struct ibv_mr *mr = registered(buffers, (size_t)DEPTH * BLOCK);
	struct rdma_conn_param param = { .responder_resources = DEPTH, .initiator_depth = DEPTH };
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	for (int slot = 0; slot < DEPTH; slot++)
		receive(&responses[slot], sizeof responses[slot], slot);
	if (rdma_connect(id, &param))
		die("rdma_connect");
	for (unsigned round = 0; round < ROUNDS; round++) {
		all(WRITE, round, buffers, mr);
		all(READ, round, buffers, mr);
	}
	commands[0] = (struct command){ .op = STOP };
	sge = (struct ibv_sge){ (uintptr_t)&commands[0], sizeof commands[0], small_mr->lkey };
	post(&wr);
	while (next().opcode != IBV_WC_RECV)
		;
	printf("%d blocks were written, read and compared\n", ROUNDS * BLOCKS);
	rdma_disconnect(id);
}

int main(int argc, char **argv)
{
	int client = argc > 2;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = client ? 0 : RAI_PASSIVE }, *info;
	struct ibv_device_attr attr;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4 * DEPTH, .max_recv_wr = 2 * DEPTH, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *made;

	if (rdma_getaddrinfo(client ? argv[2] : NULL, argv[1], &hints, &info))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&made, info, NULL, NULL))
		die("rdma_create_ep");
	id = made;
	if (!client && (rdma_listen(made, 1) || rdma_get_request(made, &id)))
		die("a request");
	cq = ibv_create_cq(id->verbs, 8 * DEPTH, NULL, NULL, 0);
	if (!cq)
		die("ibv_create_cq");
	if (ibv_query_device(id->verbs, &attr))
		die("ibv_query_device");
	elements = attr.max_sge_rd < ELEMENTS ? attr.max_sge_rd : ELEMENTS;
	init.cap.max_send_sge = elements;
	init.send_cq = init.recv_cq = cq;
	if (rdma_create_qp(id, NULL, &init))
		die("rdma_create_qp");
	small_mr = registered(&small, sizeof small);
	if (client)
		initiator();
	else
		target();
	return 0;
}
