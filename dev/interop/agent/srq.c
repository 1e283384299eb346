/* Shared receive queues. */
#include <errno.h>
#include <string.h>

#include "agent.h"

static struct ibv_srq *srqs[MAX_SRQS];

struct ibv_srq *srq_number(struct json *in, uint64_t number)
{
	if (number >= MAX_SRQS || !srqs[number]) {
		json_error(in, "there is no shared receive queue %llu", (unsigned long long)number);
		return NULL;
	}
	return srqs[number];
}

int srq_index(const struct ibv_srq *srq)
{
	for (int i = 0; i < MAX_SRQS; i++)
		if (srqs[i] && srqs[i] == srq)
			return i;
	return -1;
}

void srqs_reset(void)
{
	for (int i = 0; i < MAX_SRQS; i++)
		if (srqs[i] && !ibv_destroy_srq(srqs[i]))
			srqs[i] = NULL;
}

void command_srq(struct json *in, struct line *out)
{
	struct ibv_srq_init_attr attr = {
		.attr = { .max_wr = (uint32_t)json_number(in, "max_wr", 64),
			  .max_sge = (uint32_t)json_number(in, "sge", 4),
			  .srq_limit = (uint32_t)json_number(in, "limit", 0) },
	};
	struct ibv_pd *pd = pd_number(in, json_number(in, "pd", 0));
	int number = 0;

	while (number < MAX_SRQS && srqs[number])
		number++;
	if (number == MAX_SRQS)
		json_error(in, "all %d shared receive queues are in use", MAX_SRQS);
	if (in->error)
		return;
	srqs[number] = ibv_create_srq(pd, &attr);
	if (!srqs[number]) {
		refuse(out, "ibv_create_srq", errno);
		return;
	}
	agree(out);
	line_number(out, "srq", (uint64_t)number);
}

void command_srq_destroy(struct json *in, struct line *out)
{
	uint64_t number = json_number(in, "srq", MAX_SRQS);
	struct ibv_srq *srq = srq_number(in, number);
	int error;

	if (in->error)
		return;
	error = ibv_destroy_srq(srq);
	if (error) {
		refuse(out, "ibv_destroy_srq", error);
		return;
	}
	srqs[number] = NULL;
	agree(out);
}

void command_srq_modify(struct json *in, struct line *out)
{
	struct ibv_srq *srq = srq_number(in, json_number(in, "srq", MAX_SRQS));
	struct ibv_srq_attr attr = { .max_wr = (uint32_t)json_number(in, "max_wr", 0),
				     .srq_limit = (uint32_t)json_number(in, "limit", 0) };
	int error, mask = 0;

	if (json_has(in, "max_wr"))
		mask |= IBV_SRQ_MAX_WR;
	if (json_has(in, "limit"))
		mask |= IBV_SRQ_LIMIT;
	if (in->error)
		return;
	error = ibv_modify_srq(srq, &attr, mask);
	if (error)
		refuse(out, "ibv_modify_srq", error);
	else
		agree(out);
}

void command_srq_query(struct json *in, struct line *out)
{
	struct ibv_srq *srq = srq_number(in, json_number(in, "srq", MAX_SRQS));
	struct ibv_srq_attr attr = { 0 };
	int error;

	if (in->error)
		return;
	error = ibv_query_srq(srq, &attr);
	if (error) {
		refuse(out, "ibv_query_srq", error);
		return;
	}
	agree(out);
	line_number(out, "max_wr", attr.max_wr);
	line_number(out, "sge", attr.max_sge);
	line_number(out, "limit", attr.srq_limit);
}
