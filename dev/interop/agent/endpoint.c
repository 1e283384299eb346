/* Listeners and connections: their numbers, and the QP of a connection. */
#include <errno.h>
#include <string.h>

#include "agent.h"

struct endpoint endpoints[MAX_ENDPOINTS];

/* Numbers are assigned round robin, so a late event of an old connection is not attributed to a new
 * one. */
int endpoint_new(enum endpoint_kind kind)
{
	static int next;

	for (int tried = 0; tried < MAX_ENDPOINTS; tried++) {
		int number = next;

		next = (next + 1) % MAX_ENDPOINTS;
		if (endpoints[number].kind == ENDPOINT_FREE) {
			memset(&endpoints[number], 0, sizeof(endpoints[number]));
			endpoints[number].kind = kind;
			return number;
		}
	}
	return -1;
}

int endpoint_index(const struct endpoint *endpoint)
{
	return (int)(endpoint - endpoints);
}

struct endpoint *endpoint_number(struct json *in, uint64_t number, enum endpoint_kind kind)
{
	if (number >= MAX_ENDPOINTS || endpoints[number].kind != kind) {
		json_error(in, "there is no %s %llu",
			   kind == ENDPOINT_LISTENER ? "listener" : "connection",
			   (unsigned long long)number);
		return NULL;
	}
	return &endpoints[number];
}

bool parse_wish(struct json *in, struct qp_wish *out)
{
	const char *notify = json_string(in, "notify", "all");

	memset(out, 0, sizeof(*out));
	out->send_wr = (uint32_t)json_number(in, "send_wr", 64);
	out->recv_wr = (uint32_t)json_number(in, "recv_wr", 64);
	out->send_sge = (uint32_t)json_number(in, "send_sge", 4);
	out->recv_sge = (uint32_t)json_number(in, "recv_sge", 4);
	out->inline_data = (uint32_t)json_number(in, "inline", 0);
	out->pd = json_number(in, "pd", 0);
	pd_number(in, out->pd);
	if (json_has(in, "srq"))
		out->srq = srq_number(in, json_number(in, "srq", MAX_SRQS));
	if (strcmp(notify, "solicited") == 0)
		out->solicited_only = true;
	else if (strcmp(notify, "none") == 0)
		out->silent = true;
	else if (strcmp(notify, "all") != 0)
		json_error(in, "notify: all, solicited or none was expected");
	return !in->error;
}

int endpoint_make_qp(struct endpoint *endpoint, const char **what)
{
	const struct qp_wish *wish = &endpoint->wish;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.srq = wish->srq,
		.cap = { .max_send_wr = wish->send_wr,
			 .max_recv_wr = wish->recv_wr,
			 .max_send_sge = wish->send_sge,
			 .max_recv_sge = wish->recv_sge,
			 .max_inline_data = wish->inline_data },
	};
	struct json unused = { 0 };
	int cqe = (int)(wish->send_wr + wish->recv_wr);

	if (endpoint->id->verbs != agent.verbs) {
		*what = "the address belongs to another RDMA device";
		return ENODEV;
	}
	endpoint->cq = ibv_create_cq(agent.verbs, cqe > 0 ? cqe : 1, endpoint, agent.completions, 0);
	if (!endpoint->cq) {
		*what = "ibv_create_cq";
		return errno;
	}
	if (arm(endpoint)) {
		*what = "ibv_req_notify_cq";
		return errno;
	}
	attr.send_cq = attr.recv_cq = endpoint->cq;
	if (rdma_create_qp(endpoint->id, pd_number(&unused, wish->pd), &attr)) {
		*what = "rdma_create_qp";
		return errno;
	}
	endpoint->has_qp = true;
	return 0;
}

void endpoint_destroy(struct endpoint *endpoint)
{
	if (endpoint->has_qp)
		rdma_destroy_qp(endpoint->id);
	if (endpoint->cq)
		ibv_destroy_cq(endpoint->cq);
	if (endpoint->id)
		rdma_destroy_id(endpoint->id);
	memset(endpoint, 0, sizeof(*endpoint));
}

/* Connections come first, because a listener can only be destroyed without connections. */
void endpoints_reset(void)
{
	for (int i = 0; i < MAX_ENDPOINTS; i++)
		if (endpoints[i].kind == ENDPOINT_CONNECTION)
			endpoint_destroy(&endpoints[i]);
	for (int i = 0; i < MAX_ENDPOINTS; i++)
		if (endpoints[i].kind == ENDPOINT_LISTENER)
			endpoint_destroy(&endpoints[i]);
}

/* `destroy` of a connection, `unlisten` of a listener. */
void command_destroy(struct json *in, struct line *out)
{
	bool listener = json_has(in, "listener");
	const char *key = listener ? "listener" : "conn";
	struct endpoint *endpoint =
		endpoint_number(in, json_number(in, key, MAX_ENDPOINTS),
				listener ? ENDPOINT_LISTENER : ENDPOINT_CONNECTION);

	if (in->error)
		return;
	endpoint_destroy(endpoint);
	agree(out);
}

static const struct {
	const char *name;
	enum ibv_qp_state state;
} states[] = {
	{ "reset", IBV_QPS_RESET }, { "init", IBV_QPS_INIT }, { "rtr", IBV_QPS_RTR },
	{ "rts", IBV_QPS_RTS },	    { "sqd", IBV_QPS_SQD },   { "sqe", IBV_QPS_SQE },
	{ "err", IBV_QPS_ERR },
};

static struct endpoint *with_qp(struct json *in)
{
	struct endpoint *endpoint =
		endpoint_number(in, json_number(in, "conn", MAX_ENDPOINTS), ENDPOINT_CONNECTION);

	if (endpoint && !endpoint->has_qp)
		json_error(in, "the connection has no QP yet: wait for its 'ready'");
	return in->error ? NULL : endpoint;
}

void command_modify(struct json *in, struct line *out)
{
	struct endpoint *endpoint = with_qp(in);
	const char *name = json_string(in, "state", "");
	struct ibv_qp_attr attr = { 0 };
	size_t i = 0;
	int error;

	while (i < sizeof(states) / sizeof(states[0]) && strcmp(states[i].name, name) != 0)
		i++;
	if (i == sizeof(states) / sizeof(states[0]))
		json_error(in, "state: reset init rtr rts sqd sqe or err was expected");
	if (in->error)
		return;
	attr.qp_state = states[i].state;
	error = ibv_modify_qp(endpoint->id->qp, &attr, IBV_QP_STATE);
	if (error)
		refuse(out, "ibv_modify_qp", error);
	else
		agree(out);
}

void command_query_qp(struct json *in, struct line *out)
{
	struct endpoint *endpoint = with_qp(in);
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init = { 0 };
	int error;

	if (in->error)
		return;
	error = ibv_query_qp(endpoint->id->qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init);
	if (error) {
		refuse(out, "ibv_query_qp", error);
		return;
	}
	agree(out);
	line_number(out, "qpn", endpoint->id->qp->qp_num);
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		if (states[i].state == attr.qp_state)
			line_string(out, "state", states[i].name);
	line_number(out, "send_wr", init.cap.max_send_wr);
	line_number(out, "recv_wr", init.cap.max_recv_wr);
	line_number(out, "send_sge", init.cap.max_send_sge);
	line_number(out, "recv_sge", init.cap.max_recv_sge);
	line_number(out, "inline", init.cap.max_inline_data);
}
