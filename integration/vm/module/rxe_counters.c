// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: Soft-RoCE binds queue pairs to
 * counters, as mlx5 does (mlx5 counters.c). After
 *
 *	rdma statistic qp set link rxe0/1 auto pid on
 *
 * the kernel has counters for the queue pairs of each program. They have the
 * names of the port's counters, and sent_pkts and rcvd_pkts are counted: a packet
 * where rxe_xmit_packet() sends it, and where rxe_resp_queue_pkt() or
 * rxe_comp_queue_pkt() gives it to a queue pair. The kernel adds what is bound to
 * what the file of the port says (rdma_counter_get_hwstat_value()), but rdma_rxe
 * goes on to count these packets for the port too. So the file has them twice.
 * The operations point into this module: it must stay loaded, so it has no exit.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_counter.h>

enum { SENT, RECEIVED }; /* RXE_CNT_SENT_PKTS, RXE_CNT_RCVD_PKTS */

/* The first argument is a struct rxe_qp, which begins with its struct ib_qp. */
static void count(struct pt_regs *regs, int which)
{
	struct ib_qp *qp = (struct ib_qp *)regs_get_kernel_argument(regs, 0);
	struct rdma_counter *counter = READ_ONCE(qp->counter);

	if (counter)
		atomic64_inc((atomic64_t *)&counter->stats->value[which]);
}

static int sends(struct kprobe *probe, struct pt_regs *regs)
{
	count(regs, SENT);
	return 0;
}

static int receives(struct kprobe *probe, struct pt_regs *regs)
{
	count(regs, RECEIVED);
	return 0;
}

static struct kprobe probes[] = {
	{ .symbol_name = "rxe_xmit_packet", .pre_handler = sends },
	{ .symbol_name = "rxe_resp_queue_pkt", .pre_handler = receives },
	{ .symbol_name = "rxe_comp_queue_pkt", .pre_handler = receives },
};

/* The ID is the driver's: the kernel lists each counter by it. */
static int bind_qp(struct rdma_counter *counter, struct ib_qp *qp)
{
	static atomic_t last;

	if (!counter->id)
		counter->id = atomic_inc_return(&last);
	WRITE_ONCE(qp->counter, counter);
	return 0;
}

static int unbind_qp(struct ib_qp *qp)
{
	WRITE_ONCE(qp->counter, NULL);
	return 0;
}

static int dealloc(struct rdma_counter *counter)
{
	return 0;
}

static struct rdma_hw_stats *alloc_stats(struct rdma_counter *counter)
{
	return counter->device->ops.alloc_hw_port_stats(counter->device, counter->port);
}

static int update_stats(struct rdma_counter *counter)
{
	return 0; /* they are counted at once */
}

static const struct ib_device_ops ops = {
	.counter_bind_qp = bind_qp,
	.counter_unbind_qp = unbind_qp,
	.counter_dealloc = dealloc,
	.counter_alloc_stats = alloc_stats,
	.counter_update_stats = update_stats,
};

/* Called for each device there is, and for each that comes. */
static int add(struct ib_device *dev)
{
	if (dev->ops.driver_id == RDMA_DRIVER_RXE)
		ib_set_device_ops(dev, &ops);
	return -EOPNOTSUPP; /* no client of it */
}

static struct ib_client client = { .name = "rxe_counters", .add = add };

static int __init start(void)
{
	int i, err;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		err = register_kprobe(&probes[i]);
		if (err)
			return err;
	}
	return ib_register_client(&client);
}
module_init(start);

MODULE_DESCRIPTION("Testing aid: Soft-RoCE binds queue pairs to counters");
MODULE_LICENSE("GPL");
