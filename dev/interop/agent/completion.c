/* Completions and asynchronous events, reported as lines. */
#include <errno.h>
#include <string.h>

#include "agent.h"

static const char *opcode_name(enum ibv_wc_opcode opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "send";
	case IBV_WC_RDMA_WRITE: return "write";
	case IBV_WC_RDMA_READ: return "read";
	case IBV_WC_COMP_SWAP: return "cas";
	case IBV_WC_FETCH_ADD: return "fadd";
	case IBV_WC_BIND_MW: return "bind_mw";
	case IBV_WC_LOCAL_INV: return "local_inv";
	case IBV_WC_RECV: return "recv";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "recv_write_imm";
	default: return "other";
	}
}

static const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"success",	"loc_len_err",	  "loc_qp_op_err",    "loc_eec_op_err",
		"loc_prot_err", "wr_flush_err",	  "mw_bind_err",      "bad_resp_err",
		"loc_access_err", "rem_inv_req_err", "rem_access_err", "rem_op_err",
		"retry_exc_err", "rnr_retry_exc_err", "loc_rdd_viol_err", "rem_inv_rd_req_err",
		"rem_abort_err", "inv_eecn_err", "inv_eec_state_err", "fatal_err",
		"resp_timeout_err", "general_err",
	};

	return (size_t)status < sizeof(names) / sizeof(names[0]) ? names[status] : "other";
}

int arm(struct endpoint *endpoint)
{
	if (endpoint->wish.silent)
		return 0;
	errno = ibv_req_notify_cq(endpoint->cq, endpoint->wish.solicited_only);
	return errno;
}

/* In an error completion only wr_id, status and vendor_err are valid. */
static void report_one(const struct endpoint *endpoint, const struct ibv_wc *wc)
{
	struct line line;

	line_begin(&line);
	line_number(&line, "wc", (uint64_t)endpoint_index(endpoint));
	line_number(&line, "wr_id", wc->wr_id);
	line_number(&line, "st", wc->status);
	line_string(&line, "status", status_name(wc->status));
	if (wc->status == IBV_WC_SUCCESS) {
		line_string(&line, "op", opcode_name(wc->opcode));
		line_number(&line, "len", wc->byte_len);
		if (wc->wc_flags)
			line_number(&line, "flags", wc->wc_flags);
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			line_number(&line, "imm", be32toh(wc->imm_data));
		if (wc->wc_flags & IBV_WC_WITH_INV)
			line_number(&line, "inv", wc->invalidated_rkey);
	} else if (wc->vendor_err) {
		line_number(&line, "vendor", wc->vendor_err);
	}
	line_end(&line);
}

int report_completions(struct endpoint *endpoint)
{
	struct ibv_wc wcs[16];
	int total = 0, count;

	while ((count = ibv_poll_cq(endpoint->cq, 16, wcs)) > 0) {
		for (int i = 0; i < count; i++)
			report_one(endpoint, &wcs[i]);
		total += count;
	}
	return count < 0 ? count : total;
}

void completions_ready(void)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(agent.completions, &cq, &context) == 0) {
		struct endpoint *endpoint = context;

		ibv_ack_cq_events(cq, 1);
		arm(endpoint);
		report_completions(endpoint);
	}
}

void command_poll(struct json *in, struct line *out)
{
	struct endpoint *conn =
		endpoint_number(in, json_number(in, "conn", MAX_ENDPOINTS), ENDPOINT_CONNECTION);
	int count;

	if (conn && !conn->cq)
		json_error(in, "the connection has no CQ yet: wait for its 'ready'");
	if (in->error)
		return;
	/* The completions precede the answer that counts them. */
	count = report_completions(conn);
	if (count < 0) {
		refuse(out, "ibv_poll_cq", EIO);
		return;
	}
	agree(out);
	line_number(out, "count", (uint64_t)count);
}

static bool is_of_qp(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return true;
	default:
		return false;
	}
}

void async_ready(void)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(agent.verbs, &event) == 0) {
		struct line line;

		line_begin(&line);
		line_string(&line, "async", ibv_event_type_str(event.event_type));
		line_number(&line, "type", event.event_type);
		for (int i = 0; is_of_qp(event.event_type) && i < MAX_ENDPOINTS; i++)
			if (endpoints[i].has_qp && endpoints[i].id->qp == event.element.qp)
				line_number(&line, "conn", (uint64_t)i);
		if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED ||
		    event.event_type == IBV_EVENT_SRQ_ERR)
			line_number(&line, "srq", (uint64_t)srq_index(event.element.srq));
		ibv_ack_async_event(&event);
		line_end(&line);
	}
}
