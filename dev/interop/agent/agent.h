/* The application under test: libibverbs and librdmacm, controlled by lines of JSON. */
#ifndef AGENT_H
#define AGENT_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "json.h"

enum {
	MAX_ENDPOINTS = 1024, /* listeners and connections together */
	MAX_REGIONS = 1024,
	MAX_PDS = 8,
	MAX_SRQS = 8,
	MAX_SGE = 32,
	MAX_BATCH = 4096,
	MAX_PRIVATE_DATA = 512,
};

/* ---- main.c ---- */

/* The event channel, the completion channel and the device, shared by all endpoints. */
struct agent {
	struct ibv_context *verbs;
	struct rdma_event_channel *events;
	struct ibv_comp_channel *completions;
	struct ibv_pd *pds[MAX_PDS];
};

extern struct agent agent;

/* Returns `memory`. Ends the program if `memory` is NULL. */
void *must(void *memory);
/* Returns the protection domain with this number. Allocates it on first use. */
struct ibv_pd *pd_number(struct json *in, uint64_t number);
/* Destroys all objects that commands have created. */
void reset_all(void);

/* ---- control.c ---- */

/* Opens `stdio`, `tcp:[ADDRESS:]PORT` or a file; a serial port becomes raw. Controllers over TCP
 * have to send `token`, unless it is NULL. Ends the program on failure. */
void control_open(const char *where, const char *token);
/* Returns true if the controller still has to send the token. */
bool control_wants_token(void);
/* Returns true if the controller may run the command `name`. Checks the token if it is the first
 * command, and sets the error of `in` if the token is missing or wrong. */
bool control_admit(struct json *in, const char *name);
/* Ends the connection of a controller over TCP after this line, which is no command. Otherwise a
 * web page could make a browser send a request whose body has commands. */
void control_refuse(void);
/* Fills in at most two entries for poll(2) and returns their number. */
struct pollfd;
int control_poll(struct pollfd *out);
/* Must be called after poll(2). Calls `command` for each line. Returns false if the controller is
 * gone and cannot connect again. */
bool control_ready(const struct pollfd *fds, int count, void (*command)(char *line));
/* Sends the text, or queues it if the channel is busy; never blocks. */
void control_write(const char *text, size_t len);
/* Sends the queued text before the program ends; may block. */
void control_flush(void);
/* Sends the greeting to a new controller. */
void greet(void);

/* ---- memory.c ---- */

struct region {
	struct ibv_mr *mr;
	uint8_t *memory; /* the registered bytes, inside `mapped` */
	size_t len;
	void *mapped;
	size_t mapped_len;
};

struct region *region_number(struct json *in, uint64_t number);
/* Parses "REGION:OFFSET+LENGTH,..." and returns the number of elements, or -1 with an error in
 * `in`. Ranges are not checked against the region, because the device under test must do that. */
int parse_sges(struct json *in, const char *text, struct ibv_sge *out, int room);
void command_reg(struct json *in, struct line *out);
void command_dereg(struct json *in, struct line *out);
void command_fill(struct json *in, struct line *out);
void command_check(struct json *in, struct line *out);
void command_hash(struct json *in, struct line *out);
void command_peek(struct json *in, struct line *out);
void command_poke(struct json *in, struct line *out);
void memory_reset(void);

/* ---- srq.c ---- */

struct ibv_srq *srq_number(struct json *in, uint64_t number);
/* Returns the number of this SRQ, or -1 if it is unknown. */
int srq_index(const struct ibv_srq *srq);
void command_srq(struct json *in, struct line *out);
void command_srq_destroy(struct json *in, struct line *out);
void command_srq_modify(struct json *in, struct line *out);
void command_srq_query(struct json *in, struct line *out);
/* Must be called after all connections are destroyed: an SRQ with QPs cannot be destroyed. */
void srqs_reset(void);

/* ---- endpoint.c: listeners and connections, and their QPs ---- */

enum endpoint_kind { ENDPOINT_FREE, ENDPOINT_LISTENER, ENDPOINT_CONNECTION };

/* Parameters of a QP. */
struct qp_wish {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
	uint64_t pd;
	struct ibv_srq *srq; /* source of receives, or NULL */
	bool solicited_only; /* request events for solicited completions only */
	bool silent;      /* request no events: only `poll` reports completions */
};

/* Parameters of a connect, an accept or a reject. */
struct answer {
	uint8_t ird, ord;
	size_t len;
	uint8_t private_data[MAX_PRIVATE_DATA];
};

struct endpoint {
	enum endpoint_kind kind;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct qp_wish wish;
	bool has_qp;
	/* True for a listener that accepts every request, with `answer`. */
	bool auto_accept;
	struct answer answer;
};

extern struct endpoint endpoints[MAX_ENDPOINTS];

int endpoint_new(enum endpoint_kind kind);
int endpoint_index(const struct endpoint *endpoint);
struct endpoint *endpoint_number(struct json *in, uint64_t number, enum endpoint_kind kind);
#define QP_WISH_KEYS "send_wr recv_wr send_sge recv_sge inline pd notify srq"
bool parse_wish(struct json *in, struct qp_wish *out);
/* Creates the CQ and the QP of a connection. Returns 0, or an errno and the failed call in
 * `what`. */
int endpoint_make_qp(struct endpoint *endpoint, const char **what);
void endpoint_destroy(struct endpoint *endpoint);
void endpoints_reset(void);
void command_modify(struct json *in, struct line *out);
void command_query_qp(struct json *in, struct line *out);
void command_destroy(struct json *in, struct line *out);

/* ---- cm.c ---- */

void command_listen(struct json *in, struct line *out);
void command_open(struct json *in, struct line *out);
void command_connect(struct json *in, struct line *out);
void command_accept(struct json *in, struct line *out);
void command_reject(struct json *in, struct line *out);
void command_disconnect(struct json *in, struct line *out);
/* Handles all pending events. */
void cm_ready(void);

/* ---- work.c ---- */

void command_recv(struct json *in, struct line *out);
void command_srq_recv(struct json *in, struct line *out);
void command_post(struct json *in, struct line *out);

/* ---- completion.c ---- */

void command_poll(struct json *in, struct line *out);
/* Takes all pending notifications and reports the completions. */
void completions_ready(void);
/* Reports the completions in the CQ of an endpoint and returns their number. */
int report_completions(struct endpoint *endpoint);
/* Reports the asynchronous events of the device. */
void async_ready(void);
int arm(struct endpoint *endpoint);

/* Answers that a library call failed, with its name and errno. */
void refuse(struct line *out, const char *what, int error);
/* Answers that the command succeeded. The members added next are its result. */
void agree(struct line *out);

#endif
