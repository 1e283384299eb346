/* Connection management: the commands for librdmacm, and its events. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"

enum { RESOLVE_MS = 5000 };

static bool parse_addr(struct json *in, const char *key, bool passive, struct sockaddr_storage *out)
{
	const char *host = json_string(in, key, NULL);
	const char *port_key = passive || strcmp(key, "addr") == 0 ? "port" : "source_port";
	uint64_t port = json_number(in, port_key, 0);
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	char service[24];
	int error;

	if (port > 65535) {
		json_error(in, "%s: 0 to 65535 was expected", port_key);
		return false;
	}
	if (!host && strcmp(key, "source") == 0)
		host = strchr(json_string(in, "addr", ""), ':') ? "::" : "0.0.0.0";
	if (!host && !passive) {
		json_error(in, "%s: an address was expected", key);
		return false;
	}
	if (!host)
		hints.ai_family = AF_INET;
	snprintf(service, sizeof(service), "%u", (unsigned)port);
	error = getaddrinfo(host, service, &hints, &found);
	if (error) {
		json_error(in, "%s: '%.40s': %s", key, host ? host : "", gai_strerror(error));
		return false;
	}
	memcpy(out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return true;
}

#define ANSWER_KEYS "ird ord data"
static bool parse_answer(struct json *in, struct answer *out)
{
	uint64_t ird = json_number(in, "ird", 16), ord = json_number(in, "ord", 16);

	if (ird > 255 || ord > 255)
		json_error(in, "ird, ord: 0 to 255 was expected (librdmacm has 8 bits for them)");
	out->ird = (uint8_t)ird;
	out->ord = (uint8_t)ord;
	out->len = json_hex(in, "data", out->private_data, 255);
	return !in->error;
}

static struct rdma_conn_param conn_param(const struct answer *answer)
{
	return (struct rdma_conn_param){
		.private_data = answer->len ? answer->private_data : NULL,
		.private_data_len = (uint8_t)answer->len,
		.responder_resources = answer->ird,
		.initiator_depth = answer->ord,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

static struct endpoint *connection(struct json *in)
{
	return endpoint_number(in, json_number(in, "conn", MAX_ENDPOINTS), ENDPOINT_CONNECTION);
}

void command_listen(struct json *in, struct line *out)
{
	struct sockaddr_storage addr;
	struct endpoint *listener;
	struct qp_wish wish;
	struct answer answer = { 0 };
	uint64_t backlog = json_number(in, "backlog", 64);
	bool auto_accept = json_bool(in, "auto", false);
	const char *what;
	int number;

	if (!parse_addr(in, "addr", true, &addr) || !parse_wish(in, &wish) ||
	    !parse_answer(in, &answer))
		return;
	number = endpoint_new(ENDPOINT_LISTENER);
	if (number < 0) {
		json_error(in, "all %d endpoints are in use", MAX_ENDPOINTS);
		return;
	}
	listener = &endpoints[number];
	listener->wish = wish;
	listener->auto_accept = auto_accept;
	listener->answer = answer;
	if ((what = "rdma_create_id", rdma_create_id(agent.events, &listener->id, listener, RDMA_PS_TCP)) ||
	    (what = "rdma_bind_addr", rdma_bind_addr(listener->id, (struct sockaddr *)&addr)) ||
	    (what = "rdma_listen", rdma_listen(listener->id, (int)backlog))) {
		int error = errno;

		endpoint_destroy(listener);
		refuse(out, what, error);
		return;
	}
	agree(out);
	line_number(out, "listener", (uint64_t)number);
	line_number(out, "port", ntohs(rdma_get_src_port(listener->id)));
}

/* Starts to resolve the address of an active connection. Later events create the QP and report
 * `ready`. */
void command_open(struct json *in, struct line *out)
{
	struct sockaddr_storage addr, source;
	struct endpoint *conn;
	struct qp_wish wish;
	bool bound = json_has(in, "source") || json_has(in, "source_port");
	const char *what;
	int number;

	if (!parse_addr(in, "addr", false, &addr) || !parse_wish(in, &wish) ||
	    (bound && !parse_addr(in, "source", false, &source)))
		return;
	number = endpoint_new(ENDPOINT_CONNECTION);
	if (number < 0) {
		json_error(in, "all %d endpoints are in use", MAX_ENDPOINTS);
		return;
	}
	conn = &endpoints[number];
	conn->wish = wish;
	if ((what = "rdma_create_id", rdma_create_id(agent.events, &conn->id, conn, RDMA_PS_TCP)) ||
	    (what = "rdma_resolve_addr",
	     rdma_resolve_addr(conn->id, bound ? (struct sockaddr *)&source : NULL,
			       (struct sockaddr *)&addr, RESOLVE_MS))) {
		int error = errno;

		endpoint_destroy(conn);
		refuse(out, what, error);
		return;
	}
	agree(out);
	line_number(out, "conn", (uint64_t)number);
}

void command_connect(struct json *in, struct line *out)
{
	struct endpoint *conn = connection(in);
	struct answer answer;
	struct rdma_conn_param param;

	if (!parse_answer(in, &answer))
		return;
	param = conn_param(&answer);
	if (rdma_connect(conn->id, &param))
		refuse(out, "rdma_connect", errno);
	else
		agree(out);
}

void command_accept(struct json *in, struct line *out)
{
	struct endpoint *conn = connection(in);
	struct answer answer;
	struct rdma_conn_param param;

	if (!parse_answer(in, &answer))
		return;
	param = conn_param(&answer);
	if (rdma_accept(conn->id, &param))
		refuse(out, "rdma_accept", errno);
	else
		agree(out);
}

void command_reject(struct json *in, struct line *out)
{
	struct endpoint *conn = connection(in);
	struct answer answer;

	if (!parse_answer(in, &answer))
		return;
	if (rdma_reject(conn->id, answer.private_data, (uint8_t)answer.len))
		refuse(out, "rdma_reject", errno);
	else
		agree(out);
}

void command_disconnect(struct json *in, struct line *out)
{
	struct endpoint *conn = connection(in);

	if (in->error)
		return;
	if (rdma_disconnect(conn->id))
		refuse(out, "rdma_disconnect", errno);
	else
		agree(out);
}

/* ---- events ---- */

static const char *event_name(enum rdma_cm_event_type type)
{
	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED: return "addr_resolved";
	case RDMA_CM_EVENT_ADDR_ERROR: return "addr_error";
	case RDMA_CM_EVENT_ROUTE_RESOLVED: return "route_resolved";
	case RDMA_CM_EVENT_ROUTE_ERROR: return "route_error";
	case RDMA_CM_EVENT_CONNECT_REQUEST: return "connect_request";
	case RDMA_CM_EVENT_CONNECT_RESPONSE: return "connect_response";
	case RDMA_CM_EVENT_CONNECT_ERROR: return "connect_error";
	case RDMA_CM_EVENT_UNREACHABLE: return "unreachable";
	case RDMA_CM_EVENT_REJECTED: return "rejected";
	case RDMA_CM_EVENT_ESTABLISHED: return "established";
	case RDMA_CM_EVENT_DISCONNECTED: return "disconnected";
	case RDMA_CM_EVENT_DEVICE_REMOVAL: return "device_removal";
	case RDMA_CM_EVENT_ADDR_CHANGE: return "addr_change";
	case RDMA_CM_EVENT_TIMEWAIT_EXIT: return "timewait_exit";
	default: return "other";
	}
}

static void begin_event(struct line *line, const char *name, int number)
{
	line_begin(line);
	line_string(line, "ev", name);
	line_number(line, "conn", (uint64_t)number);
}

static void failed(struct endpoint *conn, const char *what, int error)
{
	struct line line;

	begin_event(&line, "failed", endpoint_index(conn));
	line_string(&line, "error", what);
	line_number(&line, "errno", (uint64_t)error);
	line_string(&line, "text", strerror(error));
	line_end(&line);
}

static void ready(struct endpoint *conn)
{
	const char *what;
	struct line line;
	int error = endpoint_make_qp(conn, &what);

	if (error) {
		failed(conn, what, error);
		return;
	}
	begin_event(&line, "ready", endpoint_index(conn));
	line_number(&line, "qpn", conn->id->qp->qp_num);
	line_end(&line);
}

/* Copy of an event, whose private data, IRD and ORD are lost when the event is acknowledged. */
struct news {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id;
	struct endpoint *endpoint, *listener;
	struct answer answer;
};

static void report(const struct news *news, struct endpoint *conn)
{
	struct line line;

	begin_event(&line, event_name(news->type), endpoint_index(conn));
	if (news->listener)
		line_number(&line, "listener", (uint64_t)endpoint_index(news->listener));
	line_signed(&line, "status", news->status);
	if (news->type == RDMA_CM_EVENT_CONNECT_REQUEST || news->type == RDMA_CM_EVENT_ESTABLISHED) {
		line_number(&line, "ird", news->answer.ird);
		line_number(&line, "ord", news->answer.ord);
	}
	if (news->answer.len)
		line_hex(&line, "data", news->answer.private_data, news->answer.len);
	line_end(&line);
}

/* Handles a connection request. The connection gets its number and its QP before the report. */
static void requested(const struct news *news)
{
	int number = endpoint_new(ENDPOINT_CONNECTION), error;
	struct endpoint *conn;
	const char *what;

	if (number < 0) {
		rdma_reject(news->id, NULL, 0);
		rdma_destroy_id(news->id);
		return;
	}
	conn = &endpoints[number];
	conn->id = news->id;
	conn->id->context = conn;
	conn->wish = news->listener->wish;
	error = endpoint_make_qp(conn, &what);
	report(news, conn);
	if (!error && news->listener->auto_accept) {
		struct rdma_conn_param param = conn_param(&news->listener->answer);

		what = "rdma_accept";
		error = rdma_accept(conn->id, &param) ? errno : 0;
	}
	if (error)
		failed(conn, what, error);
}

static void handle(const struct news *news)
{
	struct endpoint *conn = news->endpoint;

	switch (news->type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		requested(news);
		break;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(conn->id, RESOLVE_MS))
			failed(conn, "rdma_resolve_route", errno);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		ready(conn);
		break;
	default:
		report(news, conn);
	}
}

void cm_ready(void)
{
	struct rdma_cm_event *event;

	while (rdma_get_cm_event(agent.events, &event) == 0) {
		const struct rdma_conn_param *param = &event->param.conn;
		struct news news = { .type = event->event,
				     .status = event->status,
				     .id = event->id,
				     .endpoint = event->id->context,
				     .answer = { .ird = param->responder_resources,
						 .ord = param->initiator_depth } };

		if (event->listen_id)
			news.listener = event->listen_id->context;
		if (param->private_data && param->private_data_len) {
			news.answer.len = param->private_data_len;
			memcpy(news.answer.private_data, param->private_data, news.answer.len);
		}
		rdma_ack_cm_event(event);
		handle(&news);
	}
}
