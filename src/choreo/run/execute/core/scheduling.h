/* What a thread tells the processor and the scheduler while it waits. */
#ifndef CHOREO_SCHEDULING_H
#define CHOREO_SCHEDULING_H
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the shortest slice that Linux gives */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Ask the scheduler to run this thread soon after it wakes up: a thread with a shorter slice preempts one with a longer slice
 * (Linux 6.12 and later; others ignore it). Its share of the core stays the same. */
static void ask_for_short_slice(void) {
    static _Thread_local int asked;
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } attributes = {0};
    if (asked) return;
    asked = 1;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) || attributes.policy != SCHED_OTHER) return;
    attributes.runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}
#endif
