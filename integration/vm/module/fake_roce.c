// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: RDMA devices without a data path on
 * ordinary network interfaces. What a program sees of them by netlink, sysfs,
 * configfs and /dev/infiniband is what it sees of a NIC's.
 *
 *	modprobe fake_roce devices="mlx5_%d=r0;mlx5_%d=r1,r2;irdma%d:32:v2=r3;mlx5_%d:raw=r4"
 *
 * A device has a name, options, and a netdev for each port. What it imitates:
 *
 *   parent       the PCI function below the first netdev, as with every NIC: mlx5
 *                main.c mlx5r_probe() (dev.parent = mdev->device)
 *   v1 and v2    two entries for each address, v1 first: mlx5 main.c
 *                set_core_cap_flags(). Option v2: RoCE v2 alone, as irdma
 *   256 places   mlx5 (roce_address_table_size). Option 32: irdma verbs.c
 *                irdma_roce_port_immutable()
 *   two ports    mlx4, mlx5 in dual-port mode: two netdevs of one device
 *   option raw   no RoCE and no GID table: mlx5 in switchdev mode, main.c
 *                mlx5_port_rep_immutable(), or with devlink's enable_roce false,
 *                raw_eth_profile. nldev tells no protocol of them
 *   option zero  node GUID 0: an mlx5 VF to which no GUID was given
 *   moves        disassociate_ucontext is there, as in mlx5, bnxt_re and irdma
 *   option lag   one port on several netdevs, the slaves of a bond: RoCE LAG, mlx5
 *                lag/lag.c. The port names the slave that sends: the first one, and
 *                then the one that the bond reports (mlx5_lag_get_roce_netdev()).
 *                Its state is that of the bond (mlx5_query_port_roce())
 *   parameters gid_late_us, del_late_us and gid_fails, which can be written at any
 *                time: the firmware's part of add_gid and del_gid (mlx5 main.c
 *                mlx5_ib_add_gid(), mlx5_ib_del_gid()), which takes its time or fails
 *   parameter hold: references to all entries, as queue pairs of programs have them
 *                (core/verbs.c, av_sgid_attr). An entry that is removed keeps its
 *                index until the last reference is gone, and reads as zero
 *   port state   that of its netdev, so it flaps as that does
 */
#include <linux/delay.h>
#include <linux/if_ether.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <net/addrconf.h>
#include <net/net_namespace.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

static char *devices = "";
module_param(devices, charp, 0444);
MODULE_PARM_DESC(devices, "NAME[:OPTION...]=NETDEV[,NETDEV...][;...]; options: SIZE, v2, raw, zero, lag");

static uint gid_late_us;
module_param(gid_late_us, uint, 0644);
MODULE_PARM_DESC(gid_late_us, "how many microseconds the firmware takes for an entry");

static uint del_late_us;
module_param(del_late_us, uint, 0644);
MODULE_PARM_DESC(del_late_us, "how many microseconds the firmware takes for the end of an entry");

static bool gid_fails;
module_param(gid_fails, bool, 0644);
MODULE_PARM_DESC(gid_fails, "whether the firmware refuses entries");

#define MAX_PORTS 4

struct fake {
	struct ib_device ib;
	struct list_head list;
	struct net_device *netdevs[MAX_PORTS];
	int count; /* of the netdevs */
	int active; /* the one that sends, with lag */
	int size; /* of the GID table */
	bool v1, raw, zero, lag;
};

static LIST_HEAD(all);

static struct fake *to_fake(struct ib_device *dev)
{
	return container_of(dev, struct fake, ib);
}

static int query_device(struct ib_device *dev, struct ib_device_attr *attr, struct ib_udata *udata)
{
	attr->fw_ver = 1;
	attr->max_qp = 1;
	attr->max_pkeys = 1;
	attr->sys_image_guid = dev->node_guid;
	return 0;
}

static bool is_up(struct fake *fake, u32 port)
{
	struct net_device *netdev;
	bool up;

	rcu_read_lock();
	netdev = fake->lag ? netdev_master_upper_dev_get_rcu(fake->netdevs[0]) : fake->netdevs[port - 1];
	up = netdev && netif_running(netdev) && netif_carrier_ok(netdev);
	rcu_read_unlock();
	return up;
}

static int query_port(struct ib_device *dev, u32 port, struct ib_port_attr *attr)
{
	struct fake *fake = to_fake(dev);
	bool up = is_up(fake, port);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_1024;
	attr->active_speed = IB_SPEED_EDR;
	attr->active_width = IB_WIDTH_4X;
	attr->pkey_tbl_len = 1;
	attr->gid_tbl_len = fake->raw ? 0 : fake->size;
	attr->ip_gids = !fake->raw;
	return 0;
}

static int get_port_immutable(struct ib_device *dev, u32 port, struct ib_port_immutable *immutable)
{
	struct fake *fake = to_fake(dev);

	immutable->pkey_tbl_len = 1;
	immutable->core_cap_flags = RDMA_CORE_PORT_RAW_PACKET;
	if (fake->raw)
		return 0;
	immutable->gid_tbl_len = fake->size;
	immutable->core_cap_flags |= RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP;
	if (fake->v1)
		immutable->core_cap_flags |= RDMA_CORE_CAP_PROT_ROCE;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *dev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int query_pkey(struct ib_device *dev, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	fsleep(gid_late_us);
	return gid_fails ? -EIO : 0;
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	fsleep(del_late_us);
	return 0;
}

struct fake_ucontext {
	struct ib_ucontext ib;
};

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void nothing_to_free(struct ib_ucontext *context)
{
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.query_pkey = query_pkey,
	.add_gid = add_gid,
	.del_gid = del_gid,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = nothing_to_free,
	.disassociate_ucontext = nothing_to_free,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, fake_ucontext, ib),
};

static struct net_device *active_netdev(struct ib_device *dev, u32 port)
{
	struct fake *fake = to_fake(dev);
	struct net_device *netdev = fake->netdevs[READ_ONCE(fake->active)];

	dev_hold(netdev);
	return netdev;
}

static const struct ib_device_ops lag_ops = {
	.get_netdev = active_netdev,
};

/* What mlx5's LAG learns of a bond: lag/lag.c mlx5_handle_changelowerstate_event() */
static int lower_state_changed(struct notifier_block *block, unsigned long event, void *ptr)
{
	struct netdev_notifier_changelowerstate_info *info = ptr;
	struct netdev_lag_lower_state_info *state;
	struct fake *fake;
	int i;

	if (event != NETDEV_CHANGELOWERSTATE)
		return NOTIFY_DONE;
	state = info->lower_state_info;
	list_for_each_entry(fake, &all, list)
		for (i = 0; fake->lag && state && i < fake->count; i++)
			if (fake->netdevs[i] == netdev_notifier_info_to_dev(ptr) && state->tx_enabled)
				WRITE_ONCE(fake->active, i);
	return NOTIFY_DONE;
}

static struct notifier_block lower_states = {
	.notifier_call = lower_state_changed,
};

/* The references of parameter hold; the lock of the parameters protects them. */
static const struct ib_gid_attr *held[2048];
static int n_held;

static void let_go(void)
{
	while (n_held)
		rdma_put_gid_attr(held[--n_held]);
}

static void hold_entries(struct fake *fake)
{
	const struct ib_gid_attr *attr;
	u32 port;
	int i;

	rdma_for_each_port(&fake->ib, port)
		for (i = 0; i < fake->size && n_held < ARRAY_SIZE(held); i++) {
			attr = rdma_get_gid_attr(&fake->ib, port, i);
			if (!IS_ERR(attr))
				held[n_held++] = attr;
		}
}

static int set_hold(const char *value, const struct kernel_param *param)
{
	struct fake *fake;
	bool hold;
	int err = kstrtobool(value, &hold);

	if (err)
		return err;
	let_go();
	if (hold)
		list_for_each_entry(fake, &all, list)
			if (!fake->raw)
				hold_entries(fake);
	return 0;
}

static int get_hold(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%c\n", n_held ? 'Y' : 'N');
}

static const struct kernel_param_ops hold_ops = {
	.set = set_hold,
	.get = get_hold,
};
module_param_cb(hold, &hold_ops, NULL, 0644);
MODULE_PARM_DESC(hold, "whether programs use all entries that there are when this is written");

/* The PCI function that a device stands on, or else its parent: a virtio NIC is
 * on the virtio bus, and that on a PCI function. */
static struct device *function_of(struct net_device *netdev)
{
	struct device *dev;

	for (dev = netdev->dev.parent; dev; dev = dev->parent)
		if (dev_is_pci(dev))
			return dev;
	return netdev->dev.parent;
}

static int parse_option(struct fake *fake, const char *option)
{
	if (!strcmp(option, "raw"))
		fake->raw = true;
	else if (!strcmp(option, "v2"))
		fake->v1 = false;
	else if (!strcmp(option, "zero"))
		fake->zero = true;
	else if (!strcmp(option, "lag"))
		fake->lag = true;
	else
		return kstrtoint(option, 10, &fake->size);
	return 0;
}

static void release(struct fake *fake)
{
	int i;

	for (i = 0; i < fake->count; i++)
		dev_put(fake->netdevs[i]);
	ib_dealloc_device(&fake->ib);
}

static int add_ports(struct fake *fake, char *netdevs)
{
	struct net_device *netdev;
	int err = 0, i;
	char *name;

	while ((name = strsep(&netdevs, ","))) {
		netdev = fake->count < MAX_PORTS ? dev_get_by_name(&init_net, name) : NULL;
		if (!netdev)
			return -ENODEV;
		fake->netdevs[fake->count++] = netdev;
	}
	fake->ib.node_type = RDMA_NODE_IB_CA;
	fake->ib.phys_port_cnt = fake->lag ? 1 : fake->count;
	fake->ib.num_comp_vectors = 1;
	fake->ib.dev.parent = function_of(fake->netdevs[0]);
	if (!fake->zero)
		addrconf_addr_eui48((u8 *)&fake->ib.node_guid, fake->netdevs[0]->dev_addr);
	ib_set_device_ops(&fake->ib, &ops);
	if (fake->lag)
		ib_set_device_ops(&fake->ib, &lag_ops);
	for (i = 0; !err && !fake->lag && i < fake->count; i++)
		err = ib_device_set_netdev(&fake->ib, fake->netdevs[i], i + 1);
	return err;
}

/* text is NAME[:OPTION...]=NETDEV[,NETDEV...] */
static int make(char *text)
{
	char *options = strsep(&text, "="), *name = strsep(&options, ":"), *option;
	struct fake *fake;
	int err = 0;

	if (!text)
		return -EINVAL;
	fake = ib_alloc_device(fake, ib);
	if (!fake)
		return -ENOMEM;
	fake->size = 256;
	fake->v1 = true;
	while (!err && (option = strsep(&options, ":")))
		err = parse_option(fake, option);
	if (!err)
		err = add_ports(fake, text);
	if (!err)
		err = ib_register_device(&fake->ib, name, NULL);
	if (err) {
		pr_err("fake_roce: %s: %d\n", name, err);
		release(fake);
		return err;
	}
	list_add(&fake->list, &all);
	return 0;
}

static void stop(void)
{
	struct fake *fake, *next;

	list_for_each_entry_safe(fake, next, &all, list) {
		ib_unregister_device(&fake->ib);
		release(fake);
	}
}

static int __init start(void)
{
	char *copy = kstrdup(devices, GFP_KERNEL), *rest = copy, *one;
	int err = 0;

	if (!copy)
		return -ENOMEM;
	while (!err && (one = strsep(&rest, ";")))
		err = make(one);
	kfree(copy);
	if (!err)
		err = register_netdevice_notifier(&lower_states);
	if (err)
		stop();
	return err;
}
module_init(start);

static void __exit end(void)
{
	unregister_netdevice_notifier(&lower_states);
	let_go();
	stop();
}
module_exit(end);

MODULE_DESCRIPTION("Testing aid: RDMA devices without a data path");
MODULE_LICENSE("GPL");
