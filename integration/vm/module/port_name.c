// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: one network interface has a port
 * name on its hardware, as those of NICs in switchdev mode have.
 *
 *	modprobe port_name name=r3=pf0vf0
 *
 * There "pf0vf0" is the representor of VF 0: drivers/net/ethernet/mellanox/mlx5/
 * core/en_rep.c registers such a devlink port, and net/devlink/leftover.c
 * __devlink_port_phys_port_name_get() makes the name. Programs read it from
 * IFLA_PHYS_PORT_NAME; net/core/rtnetlink.c gets it from
 *
 *	int dev_get_phys_port_name(struct net_device *dev, char *name, size_t len)
 *
 * This module answers in its place, by a kretprobe. The file phys_port_name in
 * sysfs is not imitated: it is refused before that function is asked.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>

static char *name = "";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "NETDEV=NAME");

/* One call of the function. */
struct call {
	char *answer;
	size_t size;
	bool ours;
};

static int begins(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct call *call = (struct call *)probe->data;
	struct net_device *dev = (void *)regs_get_kernel_argument(regs, 0);
	size_t length = strlen(dev->name);

	call->answer = (char *)regs_get_kernel_argument(regs, 1);
	call->size = regs_get_kernel_argument(regs, 2);
	call->ours = !strncmp(name, dev->name, length) && name[length] == '=';
	return 0;
}

static int ends(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct call *call = (struct call *)probe->data;

	if (!call->ours)
		return 0;
	strscpy(call->answer, strchr(name, '=') + 1, call->size);
	regs_set_return_value(regs, 0);
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "dev_get_phys_port_name", .entry_handler = begins, .handler = ends,
	.data_size = sizeof(struct call), .maxactive = 64,
};

static int __init start(void)
{
	return register_kretprobe(&probe);
}
module_init(start);

static void __exit stop(void)
{
	unregister_kretprobe(&probe);
}
module_exit(stop);

MODULE_DESCRIPTION("Testing aid: a network interface with a port name");
MODULE_LICENSE("GPL");
