/* The application under test: libibverbs and librdmacm, driven by JSON lines. */
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

/* The event channel, the completion channel and the device, for all endpoints. */
struct agent {
	struct ibv_context *verbs;
	struct rdma_event_channel *events;
	struct ibv_comp_channel *completions;
	struct ibv_pd *pds[MAX_PDS];
};

extern struct agent agent;

/* Memory that is there, or the end of the program. */
void *must(void *memory);
/* The protection domain of that number, allocated on first use. */
struct ibv_pd *pd_number(struct json *in, uint64_t number);
/* Ends everything that commands have made. */
void reset_all(void);

/* ---- control.c ---- */

/* `stdio`, `tcp:PORT` or a file (a serial port becomes raw). Ends the program when it cannot. */
void control_open(const char *where);
/* For poll(2): fills in up to two entries and returns how many. */
struct pollfd;
int control_poll(struct pollfd *out);
/* After poll(2). `command` is called for each line; false when the controller is gone for good. */
bool control_ready(const struct pollfd *fds, int count, void (*command)(char *line));
/* Queued when the channel is busy; never blocks. */
void control_write(const char *text, size_t len);
/* Sends what is queued, for the last words; may block. */
void control_flush(void);
/* The greeting of a new controller. */
void greet(void);

/* ---- memory.c ---- */

struct region {
	struct ibv_mr *mr;
	uint8_t *memory; /* what is registered: inside of `mapped` */
	size_t len;
	void *mapped;
	size_t mapped_len;
};

struct region *region_number(struct json *in, uint64_t number);
/* "REGION:OFFSET+LENGTH,..." Returns how many, -1 with an error in `in`. Not checked against the
 * region: that is the business of the device under test. */
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
/* The number of that queue; -1 when it is none of them. */
int srq_index(const struct ibv_srq *srq);
void command_srq(struct json *in, struct line *out);
void command_srq_destroy(struct json *in, struct line *out);
void command_srq_modify(struct json *in, struct line *out);
void command_srq_query(struct json *in, struct line *out);
/* After the connections: a queue with QPs cannot go. */
void srqs_reset(void);

/* ---- endpoint.c: listeners and connections, and their QPs ---- */

enum endpoint_kind { ENDPOINT_FREE, ENDPOINT_LISTENER, ENDPOINT_CONNECTION };

/* What a QP is to be made with. */
struct qp_wish {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
	uint64_t pd;
	struct ibv_srq *srq; /* where receives come from, or NULL */
	bool solicited_only; /* arm the CQ for solicited completions only */
	bool silent;	     /* do not arm it at all: only `poll` reports */
};

/* What a connection request is answered with. */
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
	/* A listener that accepts by itself. */
	bool auto_accept;
	struct answer answer;
};

extern struct endpoint endpoints[MAX_ENDPOINTS];

int endpoint_new(enum endpoint_kind kind);
int endpoint_index(const struct endpoint *endpoint);
struct endpoint *endpoint_number(struct json *in, uint64_t number, enum endpoint_kind kind);
#define QP_WISH_KEYS "send_wr recv_wr send_sge recv_sge inline pd notify srq"
bool parse_wish(struct json *in, struct qp_wish *out);
/* Makes CQ and QP of a connection. 0, or an errno with a word what failed in `what`. */
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
/* Takes every event that is there. */
void cm_ready(void);

/* ---- work.c ---- */

void command_recv(struct json *in, struct line *out);
void command_srq_recv(struct json *in, struct line *out);
void command_post(struct json *in, struct line *out);

/* ---- completion.c ---- */

void command_poll(struct json *in, struct line *out);
/* Takes every notification that is there, and reports the completions. */
void completions_ready(void);
/* Reports what is in the CQ of an endpoint; returns how many. */
int report_completions(struct endpoint *endpoint);
/* Reports the asynchronous events of the device. */
void async_ready(void);
int arm(struct endpoint *endpoint);

/* A command failed in the library: `what` and errno. */
void refuse(struct line *out, const char *what, int error);
/* A command succeeded so far: the members that follow are its result. */
void agree(struct line *out);

#endif
