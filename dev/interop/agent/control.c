/* The control channel: lines in and out. Reads and writes do not block the agent's main loop. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"

enum { LINE_MAX_LEN = 65536 };

static int in_fd = -1, out_fd = -1, listen_fd = -1;
static char input[LINE_MAX_LEN];
static size_t input_len;
static bool skipping; /* dropping the rest of a line that is too long */
static char *queue;
static size_t queue_len, queue_room;
static const char *token; /* must be sent by each controller over TCP, or NULL */
static bool admitted;     /* the controller has sent the token, or needs none */
static bool proven;       /* the controller has sent a command */
static bool refused;      /* the controller has sent a line that ends its connection */

static void die(const char *what)
{
	fprintf(stderr, "uwarp-agent: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		die("the control channel cannot be made non-blocking");
}

/* Opens PORT of loopback, or ADDRESS:PORT. */
static void open_tcp(const char *where)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const char *port = strrchr(where, ':');
	char ip[INET_ADDRSTRLEN] = "";
	char *end;
	long number;
	int on = 1;

	if (port) {
		snprintf(ip, sizeof(ip), "%.*s", (int)(port - where), where);
		if ((size_t)(port - where) >= sizeof(ip) ||
		    inet_pton(AF_INET, ip, &addr.sin_addr) != 1) {
			fprintf(stderr, "uwarp-agent: no IPv4 address is before the port in '%s'\n",
				where);
			exit(2);
		}
	}
	port = port ? port + 1 : where;
	number = strtol(port, &end, 10);
	if (end == port || *end || number < 1 || number > 65535) {
		fprintf(stderr, "uwarp-agent: '%s' is not a port\n", port);
		exit(2);
	}
	if (!token && ntohl(addr.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET) {
		fprintf(stderr,
			"uwarp-agent: other hosts can reach %s, so controllers need a token "
			"(--token)\n",
			ip);
		exit(2);
	}
	addr.sin_port = htons((uint16_t)number);
	listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listen_fd < 0 || setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listen_fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(listen_fd, 64))
		die("the control port cannot be listened on");
	nonblocking(listen_fd);
}

static void open_file(const char *path)
{
	struct termios raw;

	in_fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (in_fd < 0)
		die(path);
	if (isatty(in_fd)) {
		if (tcgetattr(in_fd, &raw))
			die(path);
		cfmakeraw(&raw);
		if (tcsetattr(in_fd, TCSANOW, &raw))
			die(path);
	}
	out_fd = in_fd;
	nonblocking(in_fd);
}

void control_open(const char *where, const char *wanted)
{
	token = wanted;
	if (strncmp(where, "tcp:", 4) == 0) {
		open_tcp(where + 4);
		return;
	}
	if (token) {
		fprintf(stderr, "uwarp-agent: only controllers over TCP send a token\n");
		exit(2);
	}
	admitted = true;
	if (strcmp(where, "stdio") == 0) {
		in_fd = STDIN_FILENO;
		out_fd = STDOUT_FILENO;
		nonblocking(in_fd);
		nonblocking(out_fd);
	} else {
		open_file(where);
	}
	greet();
}

bool control_wants_token(void)
{
	return !admitted;
}

/* Compares all bytes, so that the time does not depend on the position of a difference. */
static bool is_token(const char *given)
{
	size_t len = strlen(token);
	unsigned char difference = 0;

	if (strlen(given) != len)
		return false;
	for (size_t i = 0; i < len; i++)
		difference |= (unsigned char)(given[i] ^ token[i]);
	return difference == 0;
}

bool control_admit(struct json *in, const char *name)
{
	if (!admitted) {
		if (strcmp(name, "token") != 0) {
			json_error(in, "the first command must be 'token', with the token of the agent");
			return false;
		}
		if (!is_token(json_string(in, "token", ""))) {
			json_error(in, "the token is wrong");
			return false;
		}
		admitted = true;
	}
	proven = true;
	return true;
}

void control_refuse(void)
{
	refused = listen_fd >= 0;
}

static void send_queued(void)
{
	size_t sent = 0;

	while (sent < queue_len) {
		ssize_t n = write(out_fd, queue + sent, queue_len - sent);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break; /* the channel is full, or closed; the next read detects a close */
		sent += (size_t)n;
	}
	memmove(queue, queue + sent, queue_len - sent);
	queue_len -= sent;
}

void control_write(const char *text, size_t len)
{
	if (out_fd < 0)
		return; /* no controller */
	if (queue_len + len > queue_room) {
		queue_room = 2 * (queue_len + len);
		queue = must(realloc(queue, queue_room));
	}
	memcpy(queue + queue_len, text, len);
	queue_len += len;
	send_queued();
}

void control_flush(void)
{
	while (queue_len && out_fd >= 0) {
		struct pollfd fd = { .fd = out_fd, .events = POLLOUT };

		if (poll(&fd, 1, 5000) <= 0)
			return;
		size_t before = queue_len;

		send_queued();
		if (queue_len == before)
			return;
	}
}

int control_poll(struct pollfd *out)
{
	int count = 0;

	if (in_fd >= 0) {
		short events = in_fd == out_fd && queue_len ? POLLIN | POLLOUT : POLLIN;

		out[count++] = (struct pollfd){ .fd = in_fd, .events = events };
		if (in_fd != out_fd && queue_len)
			out[count++] = (struct pollfd){ .fd = out_fd, .events = POLLOUT };
	}
	/* A new connection replaces one that has sent no command, so a silent one does not block it. */
	if (listen_fd >= 0 && !(in_fd >= 0 && proven)) {
		out[count++] = (struct pollfd){ .fd = listen_fd, .events = POLLIN };
	}
	return count;
}

static void complain(const char *why)
{
	struct line line;

	line_begin(&line);
	line_bool(&line, "ok", false);
	line_string(&line, "error", why);
	line_end(&line);
	control_refuse();
}

/* Passes each complete line of the input to `command`, up to one that ends the connection. */
static void take_lines(void (*command)(char *line))
{
	char *begin = input, *end;

	while (!refused &&
	       (end = memchr(begin, '\n', input_len - (size_t)(begin - input))) != NULL) {
		*end = '\0';
		if (skipping)
			skipping = false;
		else if (memchr(begin, '\0', (size_t)(end - begin)))
			complain("a zero byte in a line");
		else if (end > begin)
			command(begin);
		begin = end + 1;
	}
	input_len -= (size_t)(begin - input);
	memmove(input, begin, input_len);
	if (input_len == sizeof(input)) {
		if (!skipping)
			complain("a line is longer than 65535 bytes");
		skipping = true;
		input_len = 0;
	}
}

/* The controller has disconnected. A TCP controller may connect again and finds a reset agent. */
static bool gone(void)
{
	if (listen_fd < 0)
		return false;
	close(in_fd);
	in_fd = out_fd = -1;
	queue_len = 0;
	reset_all();
	return true;
}

static void new_controller(void)
{
	int fd = accept(listen_fd, NULL, NULL);

	if (fd < 0)
		return;
	if (in_fd >= 0)
		gone();
	nonblocking(fd);
	in_fd = out_fd = fd;
	input_len = queue_len = 0;
	skipping = proven = refused = false;
	admitted = !token;
	greet();
}

bool control_ready(const struct pollfd *fds, int count, void (*command)(char *line))
{
	for (int i = 0; i < count; i++) {
		if (fds[i].fd == listen_fd && fds[i].revents && !(in_fd >= 0 && proven)) {
			new_controller();
			continue;
		}
		if (fds[i].fd == out_fd && fds[i].revents & POLLOUT)
			send_queued();
		if (fds[i].fd == in_fd && fds[i].revents & (POLLIN | POLLHUP | POLLERR)) {
			ssize_t n = read(in_fd, input + input_len, sizeof(input) - input_len);

			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				continue;
			if (n <= 0)
				return gone();
			input_len += (size_t)n;
			take_lines(command);
			if (refused) {
				/* The refusal was sent. Reading on would execute the lines after it. */
				shutdown(out_fd, SHUT_WR);
				return gone();
			}
		}
	}
	return true;
}
