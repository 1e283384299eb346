/* Two MPI ranks, as in the OSU micro-benchmarks. `pingpong` sends a message there and back. In
 * `put`, rank 0 puts, with a flush after each window of puts. Arguments: the test, the length in
 * bytes, the seconds, the processors of the ranks ("none": not pinned), and the puts per window.
 * Rank 0 prints the median of batches: seconds one way, or bytes per second. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 4096

static int rank;
static int outstanding;
static char *memory;
static MPI_Win window;

/* Keeps this rank, and the threads that it starts later, on its processor. */
static void pin(char **processors)
{
	const char *own = getenv("OMPI_COMM_WORLD_RANK");
	cpu_set_t set;

	if (!own || strcmp(processors[atoi(own)], "none") == 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(atoi(processors[atoi(own)]), &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void pingpong(int length, int count)
{
	int at;

	for (at = 0; at < count; at++) {
		if (rank == 0)
			MPI_Send(memory, length, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(memory, length, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(memory, length, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	}
}

/* Puts from rank 0. Rank 1 waits in a barrier meanwhile. */
static void put(int length, int count)
{
	int at, of;

	for (at = 0; at < count && rank == 0; at++) {
		for (of = 0; of < outstanding; of++)
			MPI_Put(memory, length, MPI_BYTE, 1, 0, length, MPI_BYTE, window);
		MPI_Win_flush(1, window);
	}
}

static int ascending(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	static double times[BATCHES];
	void (*work)(int, int);
	int length, count, at, most = 0;
	double seconds, began, all;
	char *shown;

	if (argc != 7)
		return 2;
	outstanding = atoi(argv[6]);
	if (outstanding < 1)
		return 2;
	pin(argv + 4);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	work = strcmp(argv[1], "put") == 0 ? put : pingpong;
	length = atoi(argv[2]);
	seconds = atof(argv[3]);
	memory = malloc(length);
	memset(memory, rank + 1, length);
	MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shown, &window);
	memset(shown, 0, length);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);

	/* Warms up: the first messages connect, register memory and grow TCP's windows. If they
	 * were measured, the search below would end at once, with only a few batches. */
	for (count = 1; count <= 8; count *= 2)
		work(length, count);
	MPI_Barrier(MPI_COMM_WORLD);

	/* Finds the size of a batch that takes some milliseconds, and the number of batches. */
	for (count = 1;; count *= 2) {
		began = MPI_Wtime();
		work(length, count);
		all = MPI_Wtime() - began;
		MPI_Bcast(&all, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
		if (all >= seconds / 50 || count >= 1 << 20)
			break;
	}
	most = (int)(seconds / all) + 3;
	if (most > BATCHES)
		most = BATCHES;
	for (at = 0; at < most; at++) {
		began = MPI_Wtime();
		work(length, count);
		times[at] = (MPI_Wtime() - began) / count;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_unlock_all(window);
	if (work == put && rank == 1)
		for (at = 0; at < length; at++)
			if (shown[at] != 1) {
				fprintf(stderr, "byte %d was not put\n", at);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
	qsort(times, most, sizeof times[0], ascending);
	all = times[most / 2];
	if (rank == 0)
		printf("median %.9g\n", work == put ? (double)length * outstanding / all : all / 2);
	MPI_Win_free(&window);
	free(memory);
	MPI_Finalize();
	return 0;
}
