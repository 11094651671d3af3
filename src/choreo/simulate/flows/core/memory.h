/* Memory: vectors that grow, and large zeroed tables. */

/* A vector of a struct: its values, how many there are, and for how many there is room. */
#define VECTOR(type, name) type *name; int64_t name##_count, name##_room
/* Make room in the vector `name` of the struct `of`; 0, or -1 with an error set. */
#define ROOM(of, name, need) \
    grow((void **)&(of)->name, &(of)->name##_room, (need), sizeof(*(of)->name))
/* Append to it; likewise. */
#define PUSH(of, name, value) \
    (ROOM(of, name, (of)->name##_count + 1) ? -1 : ((of)->name[(of)->name##_count++] = (value), 0))

/* Zeroed memory that is read here and there: in large pages where the system has them, so that finding a page is cheap. */
static void *zeroed(size_t count, size_t size) {
#ifdef MADV_HUGEPAGE
    const size_t page = 2 << 20;
    if (count && size > SIZE_MAX / 2 / count) return NULL;
    if (count * size >= 4 * page) {
        size_t bytes = (count * size + page - 1) / page * page;
        void *memory = aligned_alloc(page, bytes);
        if (!memory) return NULL;
        madvise(memory, bytes, MADV_HUGEPAGE);
        return memset(memory, 0, bytes);
    }
#endif
    return calloc(count, size);
}

/* Ask for large pages for what is about to be filled: the first touch of a small one costs as much as writing it. */
static void in_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2 << 20;
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page, last = ((uintptr_t)memory + bytes) / page * page;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

static int grow(void **data, int64_t *room, int64_t need, size_t size) {
    if (need <= *room) return 0;
    int64_t wanted = *room < 16 ? 16 : *room;
    while (wanted < need) wanted *= 2;
    void *larger = realloc(*data, (size_t)wanted * size);
    if (!larger) { PyErr_NoMemory(); return -1; }
    in_large_pages(larger, (size_t)wanted * size);
    *data = larger;
    *room = wanted;
    return 0;
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

static void free_all(void **owned, size_t count) {
    for (size_t i = 0; i < count; i++) free(owned[i]);
}
#define FREE_ALL(...) \
    do { void *owned[] = {__VA_ARGS__}; free_all(owned, sizeof(owned) / sizeof(*owned)); } while (0)
