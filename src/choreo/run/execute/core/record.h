/* Sealed records on a stream between hosts, with AES-128-OCB or -GCM from OpenSSL's libcrypto, which is found at run time.
 *
 * A range of bytes is cut into records of RECORD_BYTES; only its last may be shorter. A record is encrypted, and a tag of 16
 * bytes follows it. Its number on this connection is the nonce, and each direction of each connection has a key of its own. So
 * a record that is changed, repeated, left out or moved does not open. Both sides know how long every record is: no length is
 * sent. After so many records a key is replaced by its HMAC-SHA256. `transport/records.py` has the same in Python.
 */
#include <dlfcn.h>

#define RECORD_BYTES ((size_t)64 << 10)
#define TAG_BYTES 16
#define KEY_BYTES 32 /* AES takes the first half */
#define REKEY_RECORDS ((uint64_t)1 << 20)
#define SEALED_ROOM (4 * (RECORD_BYTES + TAG_BYTES)) /* of a buffer: four records, or many short ones */
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
    Py_RETURN_NONE;
}

/* One direction of a connection. */
typedef struct {
    void *context;
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

static int begin_record(Cipher *cipher, int encrypts) {
    unsigned char nonce[12] = {0};
    if (cipher->number && cipher->number % cipher->rekey_records == 0) {
        unsigned char next[KEY_BYTES];
        if (!libcrypto.hmac(libcrypto.sha256(), cipher->key, KEY_BYTES, (const unsigned char *)NEXT_KEY, sizeof(NEXT_KEY) - 1, next, NULL)) return 0;
        memcpy(cipher->key, next, KEY_BYTES);
        if (libcrypto.init(cipher->context, NULL, NULL, cipher->key, NULL, encrypts) <= 0) return 0;
    }
    for (int i = 0; i < 8; i++) nonce[i] = (unsigned char)(cipher->number >> 8 * i);
    cipher->number++;
    return libcrypto.init(cipher->context, NULL, NULL, NULL, nonce, encrypts) > 0;
}

/* Seal one record; `out` has room for its tag. 0: libcrypto has failed. */
static int seal_record(Cipher *cipher, const void *data, size_t length, char *out) {
    unsigned char *to = (unsigned char *)out;
    int done, rest;
    return begin_record(cipher, 1) && libcrypto.update(cipher->context, to, &done, data, (int)length) > 0 &&
           libcrypto.final(cipher->context, to + done, &rest) > 0 &&
           libcrypto.control(cipher->context, GET_TAG, TAG_BYTES, to + length) > 0;
}

/* Open one record of this length, to where it belongs. 0: it is not what was sent. */
static int open_record(Cipher *cipher, char *record, size_t length, void *into) {
    int done, rest;
    return begin_record(cipher, 0) && libcrypto.update(cipher->context, into, &done, (unsigned char *)record, (int)length) > 0 &&
           libcrypto.control(cipher->context, SET_TAG, TAG_BYTES, record + length) > 0 &&
           libcrypto.final(cipher->context, (unsigned char *)into + done, &rest) > 0;
}

static int open_cipher(Cipher *cipher, int which, const char *key, uint64_t rekey_records, int encrypts) {
    memcpy(cipher->key, key, KEY_BYTES);
    cipher->rekey_records = rekey_records;
    cipher->context = libcrypto.context_new();
    return cipher->context && libcrypto.init(cipher->context, libcrypto.ciphers[which](), NULL, cipher->key, NULL, encrypts) > 0;
}

static void free_seal(Seal *seal) {
    if (!seal) return;
    if (seal->seals.context) libcrypto.context_free(seal->seals.context);
    if (seal->opens.context) libcrypto.context_free(seal->opens.context);
    explicit_bzero(seal->seals.key, KEY_BYTES);
    explicit_bzero(seal->opens.key, KEY_BYTES);
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
