/*
 * Forks while other threads create and destroy objects and take events. Each child uses a device of
 * its own. A child that hangs is killed, and is the last one.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define FORKS 60
#define THREADS 3

static volatile int stop;

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

/* Creates one object of each kind that has a number, and destroys them. */
static void objects(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_async_event event;
	struct ibv_qp *qp;

	if (!cq || !srq)
		die("objects");
	qp = ibv_create_qp(pd, &attr);
	if (!qp)
		die("ibv_create_qp");
	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	if (ibv_destroy_qp(qp) || ibv_destroy_srq(srq) || ibv_destroy_cq(cq))
		die("destroy");
}

static struct ibv_context *opened(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;

	if (!context)
		die("ibv_open_device");
	fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
	ibv_free_device_list(devices);
	return context;
}

static void *churns(void *given)
{
	struct ibv_context *context = given;
	struct ibv_pd *pd = ibv_alloc_pd(context);

	if (!pd)
		die("ibv_alloc_pd");
	while (!stop)
		objects(context, pd);
	ibv_dealloc_pd(pd);
	return NULL;
}

int main(void)
{
	struct ibv_context *context = opened();
	pthread_t threads[THREADS];
	int good = 0;

	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, churns, context);
	for (int i = 0; i < FORKS && good == i; i++) {
		int status = 1;
		pid_t child = fork();

		if (child == 0) {
			struct ibv_context *own;
			struct ibv_pd *pd;

			alarm(30);
			own = opened();
			pd = ibv_alloc_pd(own);
			if (!pd)
				die("ibv_alloc_pd");
			objects(own, pd);
			_exit(ibv_dealloc_pd(pd) || ibv_close_device(own));
		}
		waitpid(child, &status, 0);
		if (status)
			printf("child %d: status %#x\n", i, status);
		good += status == 0;
	}
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%d of %d children are good\n", good, FORKS);
	return good != FORKS || ibv_close_device(context);
}
