/*
 * The verbs of uwarp for C programs, similar to libibverbs and librdmacm. The interface is only for
 * tests, and has what program.c needs. Numbers are those of libibverbs. Functions that return int
 * return 0 or an errno. Functions that return a pointer return NULL on error. After an error,
 * uw_error() returns a message for the calling thread.
 */
#ifndef UW_H
#define UW_H

#include <stddef.h>
#include <stdint.h>

struct uw_device;
struct uw_pd;
struct uw_mr;
struct uw_channel;
struct uw_cq;
struct uw_qp;
struct uw_srq;
struct uw_mw;
struct uw_cm_channel;
struct uw_cm_id;

enum { UW_LOCAL_WRITE = 1, UW_REMOTE_WRITE = 2, UW_REMOTE_READ = 4, UW_REMOTE_ATOMIC = 8, UW_WINDOW_BIND = 16 };
enum uw_opcode {
	UW_WR_RDMA_WRITE = 0,
	UW_WR_RDMA_WRITE_WITH_IMM = 1,
	UW_WR_SEND = 2,
	UW_WR_SEND_WITH_IMM = 3,
	UW_WR_RDMA_READ = 4,
	UW_WR_ATOMIC_CMP_AND_SWP = 5,
	UW_WR_ATOMIC_FETCH_AND_ADD = 6,
	UW_WR_LOCAL_INV = 7,
	UW_WR_SEND_WITH_INV = 9,
};
enum { UW_FENCE = 1, UW_SIGNALED = 2, UW_SOLICITED = 4, UW_INLINE = 8 };
enum { UW_WC_SUCCESS = 0, UW_WC_WR_FLUSH_ERR = 5 };
enum { UW_WC_RECV = 128, UW_WC_RECV_RDMA_WITH_IMM = 129 };
enum { UW_WC_WITH_IMM = 2, UW_WC_WITH_INV = 8 };
enum { UW_QPS_RESET, UW_QPS_INIT, UW_QPS_RTR, UW_QPS_RTS, UW_QPS_SQD, UW_QPS_SQE, UW_QPS_ERR };
/*
 * Numbers of libibverbs, except UW_EVENT_NONE: it reports that a connection has ended without an
 * error. (With libibverbs, only the connection manager reports that.)
 */
enum { UW_EVENT_NONE = -1, UW_EVENT_QP_FATAL = 1, UW_EVENT_COMM_EST = 4, UW_EVENT_SRQ_LIMIT = 15, UW_EVENT_LAST_WQE = 16 };
/* Numbers of enum rdma_cm_event_type. */
enum {
	UW_CM_ADDR_RESOLVED = 0,
	UW_CM_ROUTE_RESOLVED = 2,
	UW_CM_CONNECT_REQUEST = 4,
	UW_CM_REJECTED = 8,
	UW_CM_ESTABLISHED = 9,
	UW_CM_DISCONNECTED = 10,
};

struct uw_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct uw_send_wr {
	uint64_t wr_id;
	const struct uw_sge *sg_list;
	int num_sge;
	int opcode;
	int flags;
	uint32_t imm_data; /* network order, as in libibverbs */
	uint64_t remote_addr;
	uint32_t rkey; /* for *_INV: the STag to invalidate */
	uint64_t compare_add;
	uint64_t swap;
};

struct uw_wc {
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t byte_len;
	uint32_t imm_data; /* with UW_WC_WITH_INV: the STag that was invalidated */
	uint32_t qp_num;
	int flags;
};

struct uw_device_attr {
	uint64_t node_guid;
	int max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap;
	int active_mtu, gid_tbl_len;
	uint8_t gid[16];
};

struct uw_async_event {
	int type;
	uint32_t number; /* of the queue pair, or of the shared receive queue */
};

struct uw_cm_event {
	int type;
	struct uw_cm_id *id;	 /* for a request: its new id */
	uint64_t listen_context; /* for a request: context of the listening id */
	uint8_t private_data[64];
	int private_data_len;
	int responder_resources, initiator_depth;
	void *event; /* owned by the library, for uw_ack_cm_event */
};

const char *uw_error(void);

struct uw_device *uw_open_device(void);
void uw_close_device(struct uw_device *device);
int uw_query_device(struct uw_device *device, struct uw_device_attr *attr);
/* Asynchronous events have their own descriptor. uw_ack_async_event acknowledges a taken event. */
int uw_async_fd(struct uw_device *device);
int uw_get_async_event(struct uw_device *device, struct uw_async_event *event);
void uw_ack_async_event(struct uw_device *device, const struct uw_async_event *event);

struct uw_pd *uw_alloc_pd(struct uw_device *device);
void uw_dealloc_pd(struct uw_pd *pd);
/*
 * Registers memory of the program in place; iova is the address that work requests and peers use
 * for its first byte.
 */
struct uw_mr *uw_reg_mr_iova(struct uw_pd *pd, void *addr, size_t length, uint64_t iova, int access);
/* Registers memory for a single queue pair, whose peer may then invalidate the region. */
struct uw_mr *uw_reg_mr_for(struct uw_pd *pd, struct uw_qp *qp, void *addr, size_t length, int access);
uint32_t uw_mr_key(const struct uw_mr *mr);
int uw_dereg_mr(struct uw_mr *mr);

struct uw_channel *uw_create_comp_channel(struct uw_device *device);
int uw_comp_fd(struct uw_channel *channel);
void uw_destroy_comp_channel(struct uw_channel *channel);
struct uw_cq *uw_create_cq(struct uw_device *device, int cqe, uint64_t context, struct uw_channel *channel);
int uw_destroy_cq(struct uw_cq *cq); /* EBUSY while queue pairs use it */
int uw_resize_cq(struct uw_cq *cq, uint32_t cqe);
int uw_req_notify_cq(struct uw_cq *cq, int solicited_only);
int uw_get_cq_event(struct uw_channel *channel, uint64_t *context); /* does not acknowledge */
void uw_ack_cq_events(struct uw_cq *cq, unsigned int count);
int uw_poll_cq(struct uw_cq *cq, int count, struct uw_wc *wc);

struct uw_qp *uw_create_qp(struct uw_pd *pd, struct uw_cq *send_cq, struct uw_cq *recv_cq);
uint32_t uw_qp_num(const struct uw_qp *qp);
int uw_qp_state(const struct uw_qp *qp);
int uw_modify_qp(struct uw_qp *qp, int state);
int uw_destroy_qp(struct uw_qp *qp, uint32_t timeout_ms); /* EBUSY if an event is still not acknowledged after timeout_ms */
int uw_post_send(struct uw_qp *qp, const struct uw_send_wr *wr);
int uw_post_recv(struct uw_qp *qp, uint64_t wr_id, const struct uw_sge *sg_list, int num_sge);
/*
 * Connects over a connected stream, and takes ownership of the descriptor. read: bytes that were
 * already read from it.
 */
int uw_connect_stream(struct uw_qp *qp, int fd);
int uw_accept_stream(struct uw_device *device, struct uw_qp *qp, int fd, const void *read, size_t len);

struct uw_srq *uw_create_srq(struct uw_pd *pd, uint32_t max_wr, uint32_t max_sge);
uint32_t uw_srq_num(const struct uw_srq *srq);
int uw_post_srq_recv(struct uw_srq *srq, uint64_t wr_id, const struct uw_sge *sg_list, int num_sge);
int uw_arm_srq_limit(struct uw_srq *srq, uint32_t limit);
int uw_destroy_srq(struct uw_srq *srq, uint32_t timeout_ms); /* EBUSY while queue pairs use it */
/*
 * Creates a queue pair that takes its receives from srq. A message without a receive is held for at
 * most hold_ms.
 */
struct uw_qp *uw_create_qp_srq(struct uw_pd *pd, struct uw_cq *send_cq, struct uw_cq *recv_cq, struct uw_srq *srq, uint32_t hold_ms);

/* Memory windows of type 1. *key is the key that the peer uses after the bind has completed. */
struct uw_mw *uw_alloc_mw(struct uw_pd *pd);
int uw_bind_mw(struct uw_qp *qp, struct uw_mw *mw, uint64_t wr_id, struct uw_mr *mr, uint64_t offset, uint64_t length, uint32_t *key);
void uw_dealloc_mw(struct uw_mw *mw);

struct uw_cm_channel *uw_create_event_channel(void);
int uw_cm_fd(struct uw_cm_channel *channel);
void uw_destroy_event_channel(struct uw_cm_channel *channel);
struct uw_cm_id *uw_create_id(struct uw_cm_channel *channel, struct uw_device *device, uint64_t context);
int uw_destroy_id(struct uw_cm_id *id);
uint64_t uw_id_context(struct uw_cm_id *id);
int uw_migrate_id(struct uw_cm_id *id, struct uw_cm_channel *channel);
int uw_listen(struct uw_cm_id *id, int backlog, uint16_t *port); /* on 127.0.0.1 */
int uw_resolve_addr(struct uw_cm_id *id, uint16_t port); /* 127.0.0.1 */
int uw_resolve_route(struct uw_cm_id *id);
int uw_connect(struct uw_cm_id *id, struct uw_qp *qp, const void *private_data, int len, int resources, int depth);
int uw_accept(struct uw_cm_id *id, struct uw_qp *qp, const void *private_data, int len, int resources, int depth);
int uw_disconnect(struct uw_cm_id *id);
int uw_get_cm_event(struct uw_cm_channel *channel, struct uw_cm_event *event);
int uw_ack_cm_event(struct uw_cm_event *event);

#endif
