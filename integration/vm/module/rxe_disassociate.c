// SPDX-License-Identifier: GPL-2.0
// SPDX-FileCopyrightText: The roce-cni authors

/*
 * A testing aid, never for a real machine: lets Soft-RoCE devices be moved
 * between network namespaces, as those of real NICs can be.
 *
 * rdma_dev_change_netns() refuses a device that has no disassociate_ucontext
 * (EOPNOTSUPP), because the device is taken from processes that have it open.
 * rdma_rxe has none. It maps no hardware into processes, but the queues, and a
 * mapping reads the context when it ends (rxe_mmap_release), which is freed by
 * then: the process spins or crashes in the kernel when it exits. So the
 * mappings end here, as uverbs_user_mmap_disassociate() does for drivers that
 * map hardware. The operations point into this module: it must stay loaded, so
 * it has no exit.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <rdma/ib_verbs.h>

static const struct vm_operations_struct taken;

static void take_from(struct mm_struct *mm, struct ib_ucontext *context)
{
	struct vm_area_struct *vma;
	VMA_ITERATOR(vmi, mm, 0);

	mmap_write_lock(mm);
	for_each_vma(vmi, vma) {
		if (!vma->vm_file || vma->vm_file->private_data != context->ufile || vma->vm_ops == &taken)
			continue;
		vma->vm_ops->close(vma);
		vma->vm_ops = &taken;
	}
	mmap_write_unlock(mm);
}

static void disassociate(struct ib_ucontext *context)
{
	struct mm_struct *mms[64];
	struct task_struct *p;
	int n = 0;

	rcu_read_lock();
	for_each_process(p) {
		struct mm_struct *mm = get_task_mm(p);

		if (mm && !WARN_ON(n == ARRAY_SIZE(mms)))
			mms[n++] = mm;
	}
	rcu_read_unlock();
	while (n--) {
		take_from(mms[n], context);
		mmput(mms[n]);
	}
}

static const struct ib_device_ops ops = {
	.disassociate_ucontext = disassociate,
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
