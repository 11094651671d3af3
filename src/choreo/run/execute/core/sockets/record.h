/* Sealed records on a stream between hosts, with AES-128-OCB or -GCM from OpenSSL's libcrypto, which is found at run time. If
 * libgcrypt's OCB is faster, that is used (`libgcrypt.h`).
 *
 * A range of bytes is cut into records of RECORD_BYTES; only its last may be shorter. A record is encrypted, and a tag of 16
 * bytes follows it. Its number on this connection is the nonce, and each direction of each connection has its own key. So a
 * record that was changed, repeated, left out or moved does not open. Both sides know how long every record is: no length is
 * sent. After a fixed number of records, a key is replaced by its HMAC-SHA256. `transport/records.py` has the same in Python.
 */
#include "libgcrypt.h"

#define RECORD_BYTES ((size_t)64 << 10)
#define TAG_BYTES 16
#define KEY_BYTES 32 /* AES takes the first half */
#define REKEY_RECORDS ((uint64_t)1 << 20)
#define SEALED_ROOM (4 * (RECORD_BYTES + TAG_BYTES)) /* of a buffer: four records, or many short ones */
#define SEAL_TRIALS 8 /* with each library, to find the faster one */
#define NEXT_KEY "choreo: the next key"
enum { GET_TAG = 0x10, SET_TAG = 0x11 }; /* EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG */

/* What is used of libcrypto, as <openssl/evp.h> and <openssl/hmac.h> declare it. */
static struct {
    void *library;
    void *(*context_new)(void);
    void (*context_free)(void *context);
    const void *(*ciphers[2])(void); /* AES-128-OCB, which may be missing, and AES-128-GCM */
    int (*init)(void *context, const void *cipher, void *engine, const unsigned char *key, const unsigned char *nonce, int encrypts);
    int (*update)(void *context, unsigned char *out, int *length, const unsigned char *data, int data_length);
    int (*final)(void *context, unsigned char *out, int *length);
    int (*control)(void *context, int kind, int number, void *pointer);
    const void *(*sha256)(void);
    unsigned char *(*hmac)(const void *digest, const void *key, int key_length, const unsigned char *data, size_t length, unsigned char *out, unsigned int *out_length);
} libcrypto;

static void choose_library(void);

static PyObject *load_libcrypto(PyObject *Py_UNUSED(self), PyObject *args) {
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
    if (libcrypto.library) Py_RETURN_NONE;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct { const char *name; void **function; } wanted[] = {
        {"EVP_CIPHER_CTX_new", (void **)&libcrypto.context_new}, {"EVP_CIPHER_CTX_free", (void **)&libcrypto.context_free},
        {"EVP_aes_128_gcm", (void **)&libcrypto.ciphers[1]}, {"EVP_CipherInit_ex", (void **)&libcrypto.init},
        {"EVP_CipherUpdate", (void **)&libcrypto.update}, {"EVP_CipherFinal_ex", (void **)&libcrypto.final},
        {"EVP_CIPHER_CTX_ctrl", (void **)&libcrypto.control}, {"EVP_sha256", (void **)&libcrypto.sha256},
        {"HMAC", (void **)&libcrypto.hmac}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (!library || !(*wanted[i].function = dlsym(library, wanted[i].name))) {
            PyErr_Format(PyExc_OSError, "%s has no %s", path, wanted[i].name);
            return NULL;
        }
    *(void **)&libcrypto.ciphers[0] = dlsym(library, "EVP_aes_128_ocb");
    libcrypto.library = library;
    choose_library();
    Py_RETURN_NONE;
}

/* One direction of a connection. */
typedef struct {
    void *context;
    void *faster; /* libgcrypt's context; NULL: libcrypto's is used */
    unsigned char key[KEY_BYTES];
    uint64_t number; /* of the next record */
    uint64_t rekey_records;
} Cipher;

/* A stream's two directions, and the sealed bytes that wait to be sent, or to be opened. */
typedef struct {
    Cipher seals, opens;
    char *out, *in;
    size_t out_at, out_end, in_at, in_end;
} Seal;

/* The next record's nonce, under the next key if it is time. */
static int number_record(Cipher *cipher, unsigned char nonce[12], int encrypts) {
    if (cipher->number && cipher->number % cipher->rekey_records == 0) {
        unsigned char next[KEY_BYTES];
        if (!libcrypto.hmac(libcrypto.sha256(), cipher->key, KEY_BYTES, (const unsigned char *)NEXT_KEY, sizeof(NEXT_KEY) - 1, next, NULL)) return 0;
        memcpy(cipher->key, next, KEY_BYTES);
        if (cipher->faster ? libgcrypt.set_key(cipher->faster, cipher->key, 16) : libcrypto.init(cipher->context, NULL, NULL, cipher->key, NULL, encrypts) <= 0) return 0;
    }
    memset(nonce, 0, 12);
    for (int i = 0; i < 8; i++) nonce[i] = (unsigned char)(cipher->number >> 8 * i);
    cipher->number++;
    return 1;
}

/* Seal one record; `out` has room for its tag. 0: libcrypto has failed. */
static int seal_record(Cipher *cipher, const void *data, size_t length, char *out) {
    unsigned char *to = (unsigned char *)out, nonce[12];
    int done, rest;
    if (!number_record(cipher, nonce, 1)) return 0;
    if (cipher->faster) return seal_with_libgcrypt(cipher->faster, nonce, data, length, out);
    return libcrypto.init(cipher->context, NULL, NULL, NULL, nonce, 1) > 0 && libcrypto.update(cipher->context, to, &done, data, (int)length) > 0 &&
           libcrypto.final(cipher->context, to + done, &rest) > 0 &&
           libcrypto.control(cipher->context, GET_TAG, TAG_BYTES, to + length) > 0;
}

/* Open one record of this length, to where it belongs. 0: it is not what was sent. */
static int open_record(Cipher *cipher, char *record, size_t length, void *into) {
    unsigned char nonce[12];
    int done, rest;
    if (!number_record(cipher, nonce, 0)) return 0;
    if (cipher->faster) return open_with_libgcrypt(cipher->faster, nonce, record, length, into);
    return libcrypto.init(cipher->context, NULL, NULL, NULL, nonce, 0) > 0 && libcrypto.update(cipher->context, into, &done, (unsigned char *)record, (int)length) > 0 &&
           libcrypto.control(cipher->context, SET_TAG, TAG_BYTES, record + length) > 0 &&
           libcrypto.final(cipher->context, (unsigned char *)into + done, &rest) > 0;
}

static int open_cipher(Cipher *cipher, int which, const char *key, uint64_t rekey_records, int encrypts) {
    memcpy(cipher->key, key, KEY_BYTES);
    cipher->rekey_records = rekey_records;
    cipher->faster = !which && libgcrypt.library ? open_libgcrypt(cipher->key) : NULL;
    if (cipher->faster) return 1;
    cipher->context = libcrypto.context_new();
    return cipher->context && libcrypto.init(cipher->context, libcrypto.ciphers[which](), NULL, cipher->key, NULL, encrypts) > 0;
}

static void free_cipher(Cipher *cipher) {
    if (cipher->faster) libgcrypt.close(cipher->faster);
    if (cipher->context) libcrypto.context_free(cipher->context);
    explicit_bzero(cipher, sizeof(*cipher));
}

/* The least ns in which a record was sealed; it is sealed a few times, because another program may have the core. */
static int64_t time_to_seal(char *record) {
    const char key[KEY_BYTES] = {0};
    Cipher cipher = {0};
    int64_t least = INT64_MAX;
    int works = open_cipher(&cipher, 0, key, REKEY_RECORDS, 1);
    for (int i = 0; i < SEAL_TRIALS && works; i++) {
        int64_t began = now_ns(), took;
        works = seal_record(&cipher, record, RECORD_BYTES, record);
        if ((took = now_ns() - began) < least) least = took;
    }
    free_cipher(&cipher);
    return works ? least : INT64_MAX;
}

/* Take libgcrypt for OCB if it is faster. */
static void choose_library(void) {
    char *record = libcrypto.ciphers[0] ? calloc(1, RECORD_BYTES + TAG_BYTES) : NULL;
    if (!record) return;
    int64_t libcrypto_ns = time_to_seal(record);
    if (find_libgcrypt() && time_to_seal(record) >= libcrypto_ns) libgcrypt.library = NULL;
    free(record);
}

static void free_seal(Seal *seal) {
    if (!seal) return;
    free_cipher(&seal->seals);
    free_cipher(&seal->opens);
    free(seal->out);
    free(seal->in);
    free(seal);
}

static Seal *new_seal(int which, const char *seals, const char *opens, uint64_t rekey_records) {
    Seal *seal = calloc(1, sizeof(*seal));
    if (!seal) return NULL;
    seal->out = malloc(SEALED_ROOM);
    seal->in = malloc(SEALED_ROOM);
    if (seal->out && seal->in && open_cipher(&seal->seals, which, seals, rekey_records, 1) &&
        open_cipher(&seal->opens, which, opens, rekey_records, 0))
        return seal;
    free_seal(seal);
    return NULL;
}

/* How many bytes a range takes when it is sealed. */
static size_t sealed_bytes(size_t length) { return length + (length + RECORD_BYTES - 1) / RECORD_BYTES * TAG_BYTES; }
