// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Sums one megabyte of all ranks, five times.
#include <mpi.h>
#include <stdio.h>

#define N (1 << 17)
static double mine[N], sum[N];

int main(int argc, char **argv) {
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < N; i++)
			mine[i] = i + rank + round;
		MPI_Allreduce(mine, sum, N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < N; i++)
			if (sum[i] != size * (i + round) + size * (size - 1) / 2)
				return fprintf(stderr, "the sum of %d is %g\n", i, sum[i]), 1;
	}
	printf("rank %d of %d has the sum\n", rank, size);
	return MPI_Finalize();
}
