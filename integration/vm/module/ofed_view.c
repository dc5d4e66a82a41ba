// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: the GID files of sysfs show what they
 * show with NVIDIA's driver (MLNX_OFED, DOCA-OFED; 5.8 to 25.10 were read).
 *
 * Upstream's ib_core shows the whole table to everyone. NVIDIA's has in
 * drivers/infiniband/core/cache.c
 *
 *	bool rdma_check_gid_user_access(const struct ib_gid_attr *attr)
 *
 * which is false for an entry whose netdev is in another network namespace than
 * the task that reads (current->nsproxy->net_ns). It is not the mount of sysfs
 * that counts. drivers/infiniband/core/sysfs.c asks it in
 *
 *	_show_port_gid():                the GID reads as zero, like a free place
 *	_show_port_gid_attr():           type and netdev cannot be read: EINVAL
 *
 * This module does the same behind the functions of Debian's ib_core that print
 * these files, by kretprobes. NVIDIA's ib_resolve_eth_dmac() asks as well, which
 * is not imitated: it is about queue pairs, not about files.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/sysfs.h>
#include <net/net_namespace.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_sysfs.h>
#include <rdma/ib_verbs.h>

/* What the functions get, as in drivers/infiniband/core/sysfs.c of 6.1. */
struct port_table_attribute {
	struct ib_port_attribute attr;
	char name[8];
	int index;
	__be16 attr_id;
};

/* One call of such a function. */
struct call {
	char *page; /* that it prints to */
	bool foreign;
};

static bool foreign(struct ib_device *dev, u32 port, int index)
{
	const struct ib_gid_attr *attr = rdma_get_gid_attr(dev, port, index);
	struct net_device *netdev;
	bool other;

	if (IS_ERR(attr))
		return false; /* nothing is there */
	rcu_read_lock();
	netdev = rcu_dereference(attr->ndev);
	other = netdev && !net_eq(dev_net(netdev), current->nsproxy->net_ns);
	rcu_read_unlock();
	rdma_put_gid_attr(attr);
	return other;
}

/* (struct ib_device *, u32 port, struct ib_port_attribute *, char *page) */
static int begins(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct call *call = (struct call *)probe->data;
	struct port_table_attribute *file = (void *)regs_get_kernel_argument(regs, 2);

	call->page = (char *)regs_get_kernel_argument(regs, 3);
	call->foreign = foreign((void *)regs_get_kernel_argument(regs, 0),
				regs_get_kernel_argument(regs, 1), file->index);
	return 0;
}

static int gid_ends(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct call *call = (struct call *)probe->data;

	if (call->foreign)
		regs_set_return_value(regs, sysfs_emit(call->page, "%pI6\n", &in6addr_any));
	return 0;
}

static int attribute_ends(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct call *call = (struct call *)probe->data;

	if (call->foreign)
		regs_set_return_value(regs, -EINVAL);
	return 0;
}

#define BEHIND(function, end) { \
	.kp.symbol_name = function, .entry_handler = begins, .handler = end, \
	.data_size = sizeof(struct call), .maxactive = 64, \
}

static struct kretprobe gid = BEHIND("show_port_gid", gid_ends);
static struct kretprobe netdev = BEHIND("show_port_gid_attr_ndev", attribute_ends);
static struct kretprobe type = BEHIND("show_port_gid_attr_gid_type", attribute_ends);
static struct kretprobe *probes[] = { &gid, &netdev, &type };

static int __init start(void)
{
	return register_kretprobes(probes, ARRAY_SIZE(probes));
}
module_init(start);

static void __exit stop(void)
{
	unregister_kretprobes(probes, ARRAY_SIZE(probes));
}
module_exit(stop);

MODULE_DESCRIPTION("Testing aid: GID files hide entries of other namespaces, as with NVIDIA's driver");
MODULE_LICENSE("GPL");
