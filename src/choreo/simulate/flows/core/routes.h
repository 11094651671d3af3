/* Routes between nodes: found by a hash of the two ends, and added when a row needs them. */

static uint64_t mixed(uint64_t key) {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
    return key ^ (key >> 31);
}

static int32_t find_route(const Core *core, int64_t key) {
    const Routes *routes = &core->routes;
    if (!routes->table_size) return NONE;
    uint64_t mask = (uint64_t)routes->table_size - 1, at = mixed((uint64_t)key) & mask;
    while (routes->table[at] != NONE) {
        if (routes->key[routes->table[at]] == key) return routes->table[at];
        at = (at + 1) & mask;
    }
    return NONE;
}

static int insert_routes(Core *core, int64_t first) {
    Routes *routes = &core->routes;
    if (routes->table_size < 2 * routes->key_count) {
        int64_t size = routes->table_size ? routes->table_size : 64;
        while (size < 2 * routes->key_count) size *= 2;
        int32_t *table = malloc((size_t)size * sizeof(int32_t));
        if (!table) { PyErr_NoMemory(); return -1; }
        memset(table, 0xFF, (size_t)size * sizeof(int32_t));
        free(routes->table);
        routes->table = table;
        routes->table_size = size;
        first = 0;
    }
    uint64_t mask = (uint64_t)routes->table_size - 1;
    for (int64_t route = first; route < routes->key_count; route++) {
        uint64_t at = mixed((uint64_t)routes->key[route]) & mask;
        while (routes->table[at] != NONE) at = (at + 1) & mask;
        routes->table[at] = (int32_t)route;
    }
    return 0;
}

static PyObject *core_missing(Core *core, PyObject *args) {
    /* The pairs of nodes, as src * nodes + dst, that have no route yet; each once, in the order they appear. */
    PyObject *objects[2], *answer = NULL;
    if (!PyArg_ParseTuple(args, "OO", &objects[0], &objects[1])) return NULL;
    Column in[2];
    memset(in, 0, sizeof(in));
    Py_ssize_t count = -1;
    int64_t *src = column(objects[0], &in[0], INT64, &count);
    int64_t *dst = src ? column(objects[1], &in[1], INT64, &count) : NULL;
    if (dst && !inside(core, src, dst, count)) {
        int64_t *found = NULL, num_found = 0, room = 0, size = 64, failed = 0;
        int64_t *seen = malloc((size_t)size * 8);
        if (!seen) failed = 1;
        else memset(seen, 0xFF, (size_t)size * 8);
        for (Py_ssize_t row = 0; row < count && !failed; row++) {
            int64_t key = core->job.place[src[row]] * core->routes.num_nodes + core->job.place[dst[row]];
            if (find_route(core, key) != NONE) continue;
            uint64_t mask = (uint64_t)size - 1, at = mixed((uint64_t)key) & mask;
            while (seen[at] != NONE && seen[at] != key) at = (at + 1) & mask;
            if (seen[at] == key) continue;
            if (grow((void **)&found, &room, num_found + 1, 8)) { failed = 1; break; }
            found[num_found++] = key;
            seen[at] = key;
            if (2 * num_found >= size) {
                free(seen);
                size *= 4;
                seen = malloc((size_t)size * 8);
                if (!seen) { failed = 1; break; }
                memset(seen, 0xFF, (size_t)size * 8);
                for (int64_t i = 0; i < num_found; i++) {
                    at = mixed((uint64_t)found[i]) & ((uint64_t)size - 1);
                    while (seen[at] != NONE) at = (at + 1) & ((uint64_t)size - 1);
                    seen[at] = found[i];
                }
            }
        }
        if (failed) PyErr_NoMemory();
        else answer = PyBytes_FromStringAndSize((char *)found, num_found * 8);
        free(found);
        free(seen);
    }
    release(in, 2);
    return answer;
}

/* Whether routes are made of links that there are, each route after the one before, and leave by some of their own. */
static int routes_fit(const Core *core, const int64_t *offset, const int64_t *leaving, Py_ssize_t count,
                      const int32_t *link, Py_ssize_t hops) {
    int bad = offset[0] != 0 || offset[count] != hops || core->routes.key_count + count >= INT32_MAX;
    for (Py_ssize_t i = 0; i < count; i++) {
        bad |= offset[i] > offset[i + 1] || leaving[i] < (offset[i] < offset[i + 1]);
        bad |= leaving[i] > offset[i + 1] - offset[i] || leaving[i] > INT32_MAX;
    }
    for (Py_ssize_t i = 0; i < hops; i++) bad |= link[i] < 0 || link[i] >= core->num_links;
    return bad ? refuse("a route is not made of links that are there") : 0;
}

/* The link that limits a message which has all of its links to itself. */
static int32_t narrowest(const Core *core, int32_t route) {
    const Routes *routes = &core->routes;
    double rate = INFINITY;
    int32_t narrow = NONE;
    for (int64_t h = routes->first_hop[route]; h < routes->first_hop[route + 1]; h++) {
        int32_t link = routes->hop_link[h];
        double most = core->bandwidth[link] / routes->hop_share[h];
        if (most < rate || (most == rate && link < narrow)) { rate = most; narrow = link; }
    }
    return narrow;
}

static PyObject *core_add_routes(Core *core, PyObject *args) {
    Routes *routes = &core->routes;
    /* keys, offsets, number of links that leave the sender, links, share, latency and lone bandwidth of new routes, and what
     * a message costs its ends: see Cost */
    PyObject *o[11], *answer = NULL;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7], &o[8], &o[9], &o[10]))
        return NULL;
    Column in[11];
    memset(in, 0, sizeof(in));
    Py_ssize_t count = -1, more = -1, hops = -1;
    int64_t *key = column(o[0], &in[0], INT64, &count), *offset = NULL, *leaving = NULL;
    int32_t *link = NULL;
    double *share = NULL, *latency = NULL, *alone = NULL;
    if (key) { more = count + 1; offset = column(o[1], &in[1], INT64, &more); }
    if (offset) leaving = column(o[2], &in[2], INT64, &count);
    if (leaving) link = column(o[3], &in[3], INT32, &hops);
    if (link) share = column(o[4], &in[4], FLOAT64, &hops);
    if (share) latency = column(o[5], &in[5], FLOAT64, &count);
    if (latency) alone = column(o[6], &in[6], FLOAT64, &count);
    double *cost[4] = {alone, NULL, NULL, NULL};
    for (int i = 0; i < 4 && cost[i ? i - 1 : 0]; i++) cost[i] = column(o[7 + i], &in[7 + i], FLOAT64, &count);
    if (cost[0] && cost[1] && cost[2] && cost[3] && !routes_fit(core, offset, leaving, count, link, hops)) {
        int64_t first = routes->key_count, base = routes->hop_link_count, total = first + count;
        int bad = ROOM(routes, key, total) || ROOM(routes, first_hop, total + 1) ||
                  ROOM(routes, latency, total) || ROOM(routes, alone, total) || ROOM(routes, cost, total) ||
                  ROOM(routes, leaving, total) || ROOM(routes, narrow, total) || ROOM(routes, hop_link, base + hops) ||
                  ROOM(routes, hop_share, base + hops);
        if (!bad) {
            for (int64_t i = 0; i < count; i++) {
                routes->key[first + i] = key[i];
                routes->first_hop[first + i] = base + offset[i];
                routes->latency[first + i] = latency[i];
                routes->alone[first + i] = alone[i];
                routes->leaving[first + i] = (int32_t)leaving[i];
                Cost one = {cost[0][i], cost[1][i], cost[2][i], cost[3][i]};
                routes->cost[first + i] = one;
                routes->charge |= one.send_busy > 0 || one.receive_busy > 0;
            }
            routes->first_hop[total] = base + hops;
            memcpy(routes->hop_link + base, link, (size_t)hops * 4);
            memcpy(routes->hop_share + base, share, (size_t)hops * 8);
            routes->key_count = routes->first_hop_count = routes->latency_count = routes->alone_count = total;
            routes->leaving_count = routes->cost_count = routes->narrow_count = total;
            routes->hop_link_count = routes->hop_share_count = base + hops;
            for (int64_t route = first; route < total; route++) routes->narrow[route] = narrowest(core, (int32_t)route);
            if (!insert_routes(core, first)) answer = Py_NewRef(Py_None);
        }
    }
    release(in, 11);
    return answer;
}

static void free_routes(Routes *routes) {
    FREE_ALL(routes->key, routes->first_hop, routes->latency, routes->alone, routes->cost, routes->leaving, routes->narrow,
             routes->hop_link, routes->hop_share, routes->table);
}
