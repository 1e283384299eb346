/* Work requests: receives and sends, in batches. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

/* Parameters that batches of receives and of sends have in common: the first work request, and the
 * steps to the next requests. */
struct batch {
	uint64_t wr_id, count, stride;
	struct ibv_sge sges[MAX_SGE];
	int sge_count;
	struct ibv_sge *lists; /* count lists of sge_count elements */
};

static bool parse_batch(struct json *in, struct batch *out)
{
	memset(out, 0, sizeof(*out));
	out->wr_id = json_number(in, "wr_id", 0);
	out->count = json_number(in, "count", 1);
	out->stride = json_number(in, "stride", 0);
	out->sge_count = parse_sges(in, json_string(in, "sge", ""), out->sges, MAX_SGE);
	if (out->count < 1 || out->count > MAX_BATCH)
		json_error(in, "count: 1 to %d was expected", MAX_BATCH);
	if (in->error)
		return false;
	/* calloc of zero bytes may return NULL, so one element more is allocated. */
	out->lists = must(calloc(out->count * (size_t)out->sge_count + 1, sizeof(struct ibv_sge)));
	for (uint64_t i = 0; i < out->count; i++)
		for (int j = 0; j < out->sge_count; j++) {
			struct ibv_sge *sge = &out->lists[i * (uint64_t)out->sge_count + (uint64_t)j];

			*sge = out->sges[j];
			sge->addr += i * out->stride;
		}
	return true;
}

/* The QP of the connection that a command names. */
static struct ibv_qp *qp_of(struct json *in)
{
	struct endpoint *conn =
		endpoint_number(in, json_number(in, "conn", MAX_ENDPOINTS), ENDPOINT_CONNECTION);

	if (conn && !conn->has_qp)
		json_error(in, "the connection has no QP yet: wait for its 'ready'");
	return in->error ? NULL : conn->id->qp;
}

static struct ibv_sge *sges_of(struct batch *batch, uint64_t i)
{
	return &batch->lists[i * (uint64_t)batch->sge_count];
}

/* Reports how many requests were posted, and the reason if one was refused. `bad` is the index of
 * the refused request. */
static void posted(struct line *out, const char *what, int error, uint64_t count, uint64_t bad)
{
	if (error)
		refuse(out, what, error);
	else
		agree(out);
	line_number(out, "posted", error ? bad : count);
}

/* Posts receives to a QP or to an SRQ. */
static void receive(struct json *in, struct line *out, struct ibv_qp *qp, struct ibv_srq *srq)
{
	struct batch batch;
	struct ibv_recv_wr *wrs, *bad = NULL;
	int error;

	if (!parse_batch(in, &batch))
		return;
	wrs = must(calloc(batch.count, sizeof(*wrs)));
	for (uint64_t i = 0; i < batch.count; i++) {
		wrs[i].wr_id = batch.wr_id + i;
		wrs[i].sg_list = sges_of(&batch, i);
		wrs[i].num_sge = batch.sge_count;
		wrs[i].next = i + 1 < batch.count ? &wrs[i + 1] : NULL;
	}
	error = srq ? ibv_post_srq_recv(srq, wrs, &bad) : ibv_post_recv(qp, wrs, &bad);
	posted(out, srq ? "ibv_post_srq_recv" : "ibv_post_recv", error, batch.count,
	       bad ? (uint64_t)(bad - wrs) : 0);
	free(wrs);
	free(batch.lists);
}

void command_recv(struct json *in, struct line *out)
{
	struct ibv_qp *qp = qp_of(in);

	if (qp)
		receive(in, out, qp, NULL);
}

void command_srq_recv(struct json *in, struct line *out)
{
	struct ibv_srq *srq = srq_number(in, json_number(in, "srq", MAX_SRQS));

	if (srq)
		receive(in, out, NULL, srq);
}

static bool parse_op(struct json *in, enum ibv_wr_opcode *out)
{
	static const struct {
		const char *name;
		enum ibv_wr_opcode op;
	} names[] = {
		{ "send", IBV_WR_SEND },	     { "send_inv", IBV_WR_SEND_WITH_INV },
		{ "send_imm", IBV_WR_SEND_WITH_IMM }, { "write", IBV_WR_RDMA_WRITE },
		{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
		{ "read", IBV_WR_RDMA_READ },	     { "cas", IBV_WR_ATOMIC_CMP_AND_SWP },
		{ "fadd", IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	const char *name = json_string(in, "op", "");

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i].name, name) == 0) {
			*out = names[i].op;
			return true;
		}
	json_error(in, "op: send send_inv send_imm write write_imm read cas or fadd was expected");
	return false;
}

static unsigned parse_flags(struct json *in)
{
	unsigned flags = 0;

	if (json_bool(in, "se", false))
		flags |= IBV_SEND_SOLICITED;
	if (json_bool(in, "inline", false))
		flags |= IBV_SEND_INLINE;
	if (json_bool(in, "fence", false))
		flags |= IBV_SEND_FENCE;
	return flags;
}

void command_post(struct json *in, struct line *out)
{
	uint64_t raddr = json_number(in, "raddr", 0), rstride = json_number(in, "rstride", 0);
	uint64_t rkey = json_number(in, "rkey", 0), inv = json_number(in, "inv", 0);
	uint64_t imm = json_number(in, "imm", 0), compare = json_number(in, "compare", 0);
	uint64_t swap = json_number(in, "swap", 0);
	const char *signal = json_string(in, "signal", "all");
	unsigned flags = parse_flags(in);
	struct ibv_qp *qp = qp_of(in);
	struct ibv_send_wr *wrs, *bad = NULL;
	enum ibv_wr_opcode op;
	struct batch batch;
	int error;

	if (strcmp(signal, "all") && strcmp(signal, "last") && strcmp(signal, "none"))
		json_error(in, "signal: all, last or none was expected");
	if (rkey > UINT32_MAX || inv > UINT32_MAX || imm > UINT32_MAX)
		json_error(in, "rkey, inv, imm: 32 bits were expected");
	if (!qp || !parse_op(in, &op) || !parse_batch(in, &batch))
		return;
	wrs = must(calloc(batch.count, sizeof(*wrs)));
	for (uint64_t i = 0; i < batch.count; i++) {
		struct ibv_send_wr *wr = &wrs[i];
		bool last = i + 1 == batch.count;

		wr->wr_id = batch.wr_id + i;
		wr->sg_list = sges_of(&batch, i);
		wr->num_sge = batch.sge_count;
		wr->opcode = op;
		wr->send_flags = flags;
		if (*signal == 'a' || (*signal == 'l' && last))
			wr->send_flags |= IBV_SEND_SIGNALED;
		wr->next = last ? NULL : &wrs[i + 1];
		if (op == IBV_WR_SEND_WITH_INV)
			wr->invalidate_rkey = (uint32_t)inv;
		else
			wr->imm_data = htobe32((uint32_t)imm);
		if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr->wr.atomic.remote_addr = raddr + i * rstride;
			wr->wr.atomic.rkey = (uint32_t)rkey;
			wr->wr.atomic.compare_add = compare;
			wr->wr.atomic.swap = swap;
		} else {
			wr->wr.rdma.remote_addr = raddr + i * rstride;
			wr->wr.rdma.rkey = (uint32_t)rkey;
		}
	}
	error = ibv_post_send(qp, wrs, &bad);
	posted(out, "ibv_post_send", error, batch.count, bad ? (uint64_t)(bad - wrs) : 0);
	free(wrs);
	free(batch.lists);
}
