/* DCQCN: the rate of each connection. Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015. Timers
 * that have expired are applied when the rate is asked for, so an idle connection costs no events. */

static void raise_rate(const Core *core, Control *control) {
    int32_t stages = control->timer_stage < control->byte_stage ? control->timer_stage : control->byte_stage;
    int32_t most = control->timer_stage > control->byte_stage ? control->timer_stage : control->byte_stage;
    int32_t fast = (int32_t)core->set.fast_stages;
    if (stages > fast) control->target += core->set.hyper * control->line * (double)(stages - fast);
    else if (most > fast) control->target += core->set.additive * control->line;
    if (control->target > control->line) control->target = control->line;
    control->rate = (control->target + control->rate) / 2;
    if (control->rate > control->line) control->rate = control->line;
}

static void catch_up(const Core *core, Control *control) {
    if (!control->slowed) return;
    for (; control->alpha_at <= core->now; control->alpha_at += core->set.alpha_ps) control->alpha *= 1 - core->set.gain;
    for (; control->timer_at <= core->now; control->timer_at += core->set.timer_ps) {
        control->timer_stage++;
        raise_rate(core, control);
    }
}

static void slow_down(const Core *core, Control *control) {
    catch_up(core, control);
    control->target = control->rate;
    control->rate *= 1 - control->alpha / 2;
    if (control->rate < core->set.least_rate * control->line) control->rate = core->set.least_rate * control->line;
    control->alpha = (1 - core->set.gain) * control->alpha + core->set.gain;
    control->timer_stage = control->byte_stage = 0;
    control->bytes = 0;
    control->alpha_at = core->now + core->set.alpha_ps;
    control->timer_at = core->now + core->set.timer_ps;
    control->slowed = 1;
}

static void was_sent(const Core *core, Control *control, int64_t size) {
    catch_up(core, control);
    if (!control->slowed) return;
    control->bytes += size;
    if (control->bytes >= core->set.byte_counter) {
        control->bytes -= core->set.byte_counter;
        control->byte_stage++;
        raise_rate(core, control);
    }
    int64_t from = control->next_send > core->now ? control->next_send : core->now;
    control->next_send = from + (int64_t)((double)size * (1e12 / control->rate) + 0.5);
}
