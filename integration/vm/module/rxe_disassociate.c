// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: lets Soft-RoCE devices be moved
 * between network namespaces, as those of real NICs can be.
 *
 * rdma_dev_change_netns() refuses a device that has no disassociate_ucontext
 * (EOPNOTSUPP), because the device is taken from processes that have it open.
 * rdma_rxe has none, though it maps no hardware into processes, so that there
 * is nothing to do in it. The operation points into this module: it must stay
 * loaded, so it has no exit.
 */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static void nothing_to_take(struct ib_ucontext *context)
{
}

static const struct ib_device_ops ops = {
	.disassociate_ucontext = nothing_to_take,
};

/* Called for each device there is, and for each that comes. */
static int add(struct ib_device *dev)
{
	if (dev->ops.driver_id == RDMA_DRIVER_RXE)
		ib_set_device_ops(dev, &ops);
	return -EOPNOTSUPP; /* no client of it */
}

static struct ib_client client = { .name = "rxe_disassociate", .add = add };

static int __init start(void)
{
	return ib_register_client(&client);
}
module_init(start);

MODULE_DESCRIPTION("Testing aid: Soft-RoCE devices can change their namespace");
MODULE_LICENSE("GPL");
