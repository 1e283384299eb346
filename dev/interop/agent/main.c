/* The application under test: libibverbs and librdmacm, controlled by lines of JSON. See
 * README.md. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

enum { PROTOCOL = 1 };

struct agent agent;
static bool ending;

void *must(void *memory)
{
	if (!memory) {
		fprintf(stderr, "uwarp-agent: out of memory\n");
		exit(2);
	}
	return memory;
}

struct ibv_pd *pd_number(struct json *in, uint64_t number)
{
	if (number >= MAX_PDS) {
		json_error(in, "pd: 0 to %d was expected", MAX_PDS - 1);
		return NULL;
	}
	if (!agent.pds[number]) {
		agent.pds[number] = ibv_alloc_pd(agent.verbs);
		if (!agent.pds[number])
			json_error(in, "ibv_alloc_pd: %s", strerror(errno));
	}
	return agent.pds[number];
}

void reset_all(void)
{
	endpoints_reset();
	srqs_reset();
	memory_reset();
}

void refuse(struct line *out, const char *what, int error)
{
	/* Library calls return -1 and set errno, or return errno or -errno. */
	if (error < 0)
		error = -error;
	line_bool(out, "ok", false);
	line_string(out, "error", what);
	line_number(out, "errno", (uint64_t)error);
	line_string(out, "text", strerror(error));
}

void agree(struct line *out)
{
	line_bool(out, "ok", true);
}

void greet(void)
{
	struct line line;

	line_begin(&line);
	line_string(&line, "hello", "uwarp-agent");
	line_number(&line, "protocol", PROTOCOL);
	line_string(&line, "device", ibv_get_device_name(agent.verbs->device));
	if (control_wants_token())
		line_bool(&line, "token", true);
	line_end(&line);
}

static void command_query(struct json *in, struct line *out)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	int error = ibv_query_device(agent.verbs, &attr);

	(void)in;
	if (!error)
		error = ibv_query_port(agent.verbs, 1, &port);
	if (error) {
		refuse(out, "ibv_query_device", error);
		return;
	}
	agree(out);
	line_string(out, "device", ibv_get_device_name(agent.verbs->device));
	line_number(out, "transport", (uint64_t)agent.verbs->device->transport_type);
	line_number(out, "vendor", attr.vendor_id);
	line_number(out, "part", attr.vendor_part_id);
	line_string(out, "firmware", attr.fw_ver);
	line_string(out, "port", ibv_port_state_str(port.state));
	line_number(out, "mtu", 128u << port.active_mtu);
	line_number(out, "max_qp", (uint64_t)attr.max_qp);
	line_number(out, "max_qp_wr", (uint64_t)attr.max_qp_wr);
	line_number(out, "max_sge", (uint64_t)attr.max_sge);
	line_number(out, "max_sge_rd", (uint64_t)attr.max_sge_rd);
	line_number(out, "max_srq", (uint64_t)attr.max_srq);
	line_number(out, "max_srq_wr", (uint64_t)attr.max_srq_wr);
	line_number(out, "max_cqe", (uint64_t)attr.max_cqe);
	line_number(out, "max_ird", (uint64_t)attr.max_qp_rd_atom);
	line_number(out, "max_ord", (uint64_t)attr.max_qp_init_rd_atom);
	line_number(out, "max_mw", (uint64_t)attr.max_mw);
	line_number(out, "atomics", (uint64_t)attr.atomic_cap);
	line_number(out, "caps", attr.device_cap_flags);
}

static void command_reset(struct json *in, struct line *out)
{
	(void)in;
	reset_all();
	agree(out);
}

static void command_exit(struct json *in, struct line *out)
{
	(void)in;
	ending = true;
	agree(out);
}

static void command_token(struct json *in, struct line *out)
{
	(void)in; /* control_admit has checked the token */
	agree(out);
}

static const struct {
	const char *name;
	const char *keys;
	void (*run)(struct json *in, struct line *out);
} commands[] = {
	{ "query", "", command_query },
	{ "token", "token", command_token },
	{ "reset", "", command_reset },
	{ "exit", "", command_exit },
	{ "reg", "len access pd skew", command_reg },
	{ "dereg", "mr", command_dereg },
	{ "fill", "mr off len seed at zero", command_fill },
	{ "check", "mr off len seed at zero", command_check },
	{ "hash", "mr off len", command_hash },
	{ "peek", "mr off len", command_peek },
	{ "poke", "mr off data", command_poke },
	{ "srq", "max_wr sge limit pd", command_srq },
	{ "srq_modify", "srq max_wr limit", command_srq_modify },
	{ "srq_query", "srq", command_srq_query },
	{ "srq_destroy", "srq", command_srq_destroy },
	{ "listen", "addr port backlog auto ird ord data " QP_WISH_KEYS, command_listen },
	{ "unlisten", "listener", command_destroy },
	{ "open", "addr port source source_port " QP_WISH_KEYS, command_open },
	{ "connect", "conn ird ord data", command_connect },
	{ "accept", "conn ird ord data", command_accept },
	{ "reject", "conn data", command_reject },
	{ "disconnect", "conn", command_disconnect },
	{ "destroy", "conn", command_destroy },
	{ "modify", "conn state", command_modify },
	{ "query_qp", "conn", command_query_qp },
	{ "recv", "conn wr_id sge count stride", command_recv },
	{ "srq_recv", "srq wr_id sge count stride", command_srq_recv },
	{ "post",
	  "conn op wr_id sge count stride raddr rkey rstride inv imm compare swap se inline fence signal",
	  command_post },
	{ "poll", "conn", command_poll },
};

/* Allows "id cmd " and the command's own keys. */
static bool known_keys(struct json *in, const char *own)
{
	char all[256];

	snprintf(all, sizeof(all), "id cmd %s", own);
	return json_only(in, all);
}

static void command(char *text)
{
	struct json in;
	struct line out;
	const char *name = "";
	size_t i = 0, count = sizeof(commands) / sizeof(commands[0]);
	size_t answered;

	line_begin(&out);
	if (json_parse(&in, text)) {
		name = json_string(&in, "cmd", "");
		line_number(&out, "id", json_number(&in, "id", 0));
	}
	if (in.error || !control_admit(&in, name)) {
		control_refuse();
	} else {
		while (i < count && strcmp(commands[i].name, name) != 0)
			i++;
		if (i == count)
			json_error(&in, "there is no command '%.24s'", name);
	}
	answered = out.len;
	if (!in.error && known_keys(&in, commands[i].keys))
		commands[i].run(&in, &out);
	if (out.len == answered) {
		line_bool(&out, "ok", false);
		line_string(&out, "error", in.error ? in.error : "no answer");
	}
	line_end(&out);
}

static void nonblocking(int fd)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
		perror("uwarp-agent: fcntl");
		exit(2);
	}
}

static void open_device(const char *name)
{
	int count = 0;
	struct ibv_context **devices = rdma_get_devices(&count);

	for (int i = 0; i < count && !agent.verbs; i++)
		if (!name || strcmp(ibv_get_device_name(devices[i]->device), name) == 0)
			agent.verbs = devices[i];
	if (!agent.verbs) {
		fprintf(stderr, "uwarp-agent: no RDMA device%s%s, of %d\n", name ? " named " : "",
			name ? name : "", count);
		exit(2);
	}
	agent.events = rdma_create_event_channel();
	agent.completions = ibv_create_comp_channel(agent.verbs);
	if (!agent.events || !agent.completions) {
		perror("uwarp-agent: the event channels cannot be made");
		exit(2);
	}
	nonblocking(agent.events->fd);
	nonblocking(agent.completions->fd);
	nonblocking(agent.verbs->async_fd);
}

static void loop(void)
{
	enum { CM, COMPLETIONS, ASYNC, CONTROL };

	while (!ending) {
		struct pollfd fds[CONTROL + 2] = {
			[CM] = { .fd = agent.events->fd, .events = POLLIN },
			[COMPLETIONS] = { .fd = agent.completions->fd, .events = POLLIN },
			[ASYNC] = { .fd = agent.verbs->async_fd, .events = POLLIN },
		};
		int control = control_poll(&fds[CONTROL]);

		if (poll(fds, (nfds_t)(CONTROL + control), -1) < 0) {
			if (errno == EINTR)
				continue;
			perror("uwarp-agent: poll");
			exit(2);
		}
		if (fds[CM].revents)
			cm_ready();
		if (fds[COMPLETIONS].revents)
			completions_ready();
		if (fds[ASYNC].revents)
			async_ready();
		if (!control_ready(&fds[CONTROL], control, command))
			return;
	}
}

static void usage(void)
{
	fprintf(stderr, "usage: uwarp-agent --control tcp:[ADDRESS:]PORT|stdio|FILE [--token TOKEN] "
			"[--device NAME]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	const char *control = NULL, *device = NULL, *token = NULL;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc)
			usage();
		if (strcmp(argv[i], "--control") == 0)
			control = argv[i + 1];
		else if (strcmp(argv[i], "--device") == 0)
			device = argv[i + 1];
		else if (strcmp(argv[i], "--token") == 0)
			token = argv[i + 1];
		else
			usage();
	}
	if (!control)
		usage();
	signal(SIGPIPE, SIG_IGN);
	open_device(device);
	control_open(control, token);
	loop();
	reset_all();
	control_flush();
	return 0;
}
