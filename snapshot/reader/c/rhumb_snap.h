/*
 * rhumb_snap.h: reads the snapshot that a Rhumb node publishes in shared memory.
 *
 * One header for C11 and C++. In exactly one source file write
 *
 *     #define RHUMB_SNAP_IMPLEMENTATION
 *     #include "rhumb_snap.h"
 *
 * and include it plainly elsewhere; link with -lm (and -pthread before glibc 2.34). Linux, little-endian; x86-64 and
 * arm64 have vector code, other machines plain C. docs/formats/snapshot.md describes the layout of the files.
 *
 * Model. A client attaches to an image, the directory <shm>/rhumb/<cluster>/<node>. A view, taken by rs_lock, is one
 * fixed version of everything in the image: data read through it does not change, and pointers into it stay valid until
 * rs_unlock. Locking, reading and unlocking allocate no memory and make no system call, unless the publisher has
 * replaced a generation since the last lock: then rs_lock maps the new files. Readers never write to the image.
 *
 * Threads. A client may be used by any number of threads. A view may be read by several threads at a time; it must be
 * unlocked once, after all threads are done. Attach after fork, not before: a child has no timer thread.
 *
 * Errors. Functions return RS_OK (0) or a negative rs_status; rs_last_error then returns the cause, the file and the
 * offset for this thread. Every offset in a file is checked when the file is mapped, and every reference before it is
 * followed, so a damaged image results in RS_CORRUPT and never in a fault.
 */
#ifndef RHUMB_SNAP_H
#define RHUMB_SNAP_H

#include <stddef.h>
#include <stdint.h>

#ifndef RS_API
#define RS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ---- */

typedef enum rs_status {
	RS_OK = 0,
	RS_NOT_FOUND = 1,      /* the key has no visible value; not an error */
	RS_INVALID = -1,       /* an argument is wrong, or the view is not locked */
	RS_CORRUPT = -2,       /* the image is damaged, or the files are not an image */
	RS_INCOMPATIBLE = -3,  /* a later or foreign version wrote it */
	RS_UNAVAILABLE = -4,   /* temporary: no closed timestamp, or the publisher is replacing generations; try again */
	RS_EXPIRED = -5,       /* the view is older than the greatest lock age: unlock and lock again */
	RS_IO = -6,            /* a system call failed: see the message */
	RS_NO_MEMORY = -7,
	RS_BUSY = -8,          /* RS_SETS_MAX generations are pinned by views: unlock some */
	RS_UNSUPPORTED = -9    /* the table has no order or no spatial index */
} rs_status;

/* rs_strerror names a status in a few words. */
RS_API const char *rs_strerror(int status);

typedef struct rs_error {
	int status;
	char message[256];
	char file[64];    /* "root", "seg.3.17", or "" */
	uint64_t offset;  /* in the file, bytes; 0 when it does not apply */
} rs_error;

/* rs_last_error returns the last error of this thread. Success does not reset it. */
RS_API const rs_error *rs_last_error(void);

/* ---- Clients ---- */

typedef struct rs_client rs_client;

enum {
	RS_POPULATE = 1, /* map all pages at attach, so that first reads do not fault */
	RS_HUGE = 2,     /* ask for huge pages */
	RS_VERIFY = 4,   /* check the checksums of the base's sections when a file is mapped: reads all of it */
	RS_NO_TIMER = 8  /* start no thread; only rs_lock and rs_tick then check lock ages */
};

#define RS_TABLES_MAX 32
#define RS_SHARDS_MAX 256
#define RS_SETS_MAX 64                            /* generations of the whole image that views of one client can pin */
#define RS_MAX_LOCK_AGE INT64_C(60000000000)      /* default greatest age of a view, ns */

RS_API int rs_attach(rs_client **out, const char *dir, unsigned flags);

/* rs_detach unmaps everything. It fails with RS_BUSY while views are locked. */
RS_API int rs_detach(rs_client *client);

/* rs_set_max_lock_age sets the age in ns beyond which reads of a view fail with RS_EXPIRED, for views locked from
 * now on; 0 means no limit. A view may exceed the limit by about an eighth (10 ms to 1 s). */
RS_API void rs_set_max_lock_age(rs_client *client, int64_t ns);

/* rs_tick does the work of the timer thread, for clients attached with RS_NO_TIMER. */
RS_API void rs_tick(rs_client *client);

/* rs_refresh maps the generations that are live now, ahead of the next rs_lock. */
RS_API int rs_refresh(rs_client *client);

typedef struct rs_info {
	uint8_t image[16];       /* the image's UUID */
	uint32_t minor;          /* of the format */
	uint32_t state;          /* of the publisher: 1 it publishes, 2 it stopped cleanly */
	uint32_t pid;
	uint64_t life;           /* starts of the publisher */
	int64_t heartbeat_age;   /* ns since the publisher was last alive; meaningless for a saved image */
	uint64_t committed;      /* the newest version */
	uint32_t views;          /* locked by this client now */
	uint64_t mapped_bytes;
	uint64_t pinned_bytes;   /* of mapped_bytes, in superseded generations that views hold */
} rs_info;

RS_API int rs_client_info(rs_client *client, rs_info *out);

/* rs_huge_bytes measures how much of the mappings is backed by huge pages, from /proc/self/smaps. */
RS_API int rs_huge_bytes(rs_client *client, uint64_t *mapped, uint64_t *huge);

/* ---- Views ---- */

struct rs_set;

/* A view is in the caller's memory; its fields are private. Do not copy a view: unlock the one that was locked. */
typedef struct rs_view {
	rs_client *client; /* NULL when unlocked */
	const struct rs_set *set;
	uint64_t version;
	uint64_t plain;  /* a record below this version is shown at the first look; 0 when none is */
	uint64_t closed; /* timestamp of a closed view, else UINT64_MAX */
	int64_t now;     /* ns since 1970, for expiry */
	uint64_t locked; /* CLOCK_MONOTONIC, ns */
	uint64_t deadline;
	uint32_t slot;
	unsigned char ring[64];
} rs_view;

/* rs_lock locks the newest version. */
RS_API int rs_lock(rs_client *client, rs_view *view);

/* rs_lock_closed locks the newest closed timestamp: a cut that is consistent across ranges. It fails with
 * RS_UNAVAILABLE if the image has none. */
RS_API int rs_lock_closed(rs_client *client, rs_view *view);

/* rs_lock_version locks an earlier version, so that several processes can read the same one. It fails with
 * RS_UNAVAILABLE if the version is not committed yet, or is older than the base of a generation. */
RS_API int rs_lock_version(rs_client *client, rs_view *view, uint64_t version);

/* rs_unlock ends the view; all pointers obtained through it become invalid. Unlocking twice does nothing. */
RS_API void rs_unlock(rs_view *view);

RS_API uint64_t rs_version(const rs_view *view);
/* rs_closed returns the closed timestamp (HLC) of a view locked by rs_lock_closed, else 0. */
RS_API uint64_t rs_closed(const rs_view *view);
/* rs_age returns how long the view has been locked, in ns. */
RS_API int64_t rs_age(const rs_view *view);

typedef struct rs_commit {
	uint64_t version;
	uint64_t closed;  /* timestamp up to which every range is complete; 0 unknown */
	int64_t event;    /* time of the newest event in it, ns since 1970; 0 unknown */
	int64_t wall;     /* when it was committed: ns since 1970 */
	uint64_t mono;    /* the same by CLOCK_MONOTONIC */
	uint32_t records; /* record versions in the commit */
} rs_commit;

/* rs_view_commit returns the commit that the view shows, or RS_NOT_FOUND if the ring had wrapped around before the
 * view was locked. */
RS_API int rs_view_commit(const rs_view *view, rs_commit *out);

/* rs_staleness returns the ns since the view's version was committed, by the monotonic clock. */
RS_API int rs_staleness(const rs_view *view, int64_t *ns);

typedef struct rs_position_t {
	uint64_t epoch, seq, hlc;
} rs_position_t;

/* rs_position returns the log position of a range that the view covers. */
RS_API int rs_position(const rs_view *view, uint32_t region, uint32_t slot, rs_position_t *out);

/* ---- Tables ---- */

enum { RS_KEY_NUMBER = 0, RS_KEY_NAME = 1, RS_KEY_SHARD = 2 };
enum { RS_TABLE_ORDERED = 2, RS_TABLE_SPATIAL = 4, RS_TABLE_SUMMED = 8 };

struct rs_seg;
struct rs__shard;

/* A table of a view; valid until the view is unlocked. Read-only. */
typedef struct rs_table {
	const char *name;           /* ends in 0 */
	const char *location_field; /* "" without one */
	uint32_t id;
	uint16_t flags;
	uint8_t kind; /* RS_KEY_NUMBER or RS_KEY_NAME */
	uint8_t checked; /* each record is compared with its checksum when it is read */
	uint16_t shard_count;
	uint64_t seed0, seed1;
	struct rs_seg *const *segs;
	const struct rs__shard *shards;
} rs_table;

/* rs_table_by_name returns RS_NOT_FOUND if the image has no such table. */
RS_API int rs_table_by_name(const rs_view *view, const char *name, const rs_table **out);
/* rs_table_at lists the tables: NULL from the number of tables on. */
RS_API const rs_table *rs_table_at(const rs_view *view, unsigned i);
/* rs_table_live returns the number of keys with a value, as of the last commits. */
RS_API uint64_t rs_table_live(const rs_view *view, const rs_table *table);

/* ---- Reading by key ---- */

/* The result of a look-up. Pointers are valid until the view is unlocked. */
typedef struct rs_value {
	const uint8_t *data; /* the stored value: see rs_field_by_name; NULL when not found */
	uint32_t len;
	int32_t status;      /* RS_OK, RS_NOT_FOUND or an error: of this key in a batch */
	uint64_t version;    /* of the image in which the value was written; that of the base for older values */
	const void *record;  /* for rs_value_item */
} rs_value;

/* rs_get returns RS_OK, RS_NOT_FOUND or an error. */
RS_API int rs_get(const rs_view *view, const rs_table *table, uint64_t key, rs_value *out);
RS_API int rs_get_name(const rs_view *view, const rs_table *table, const void *name, size_t len, rs_value *out);
/* rs_get_shard_key finds a server-named record by its 16-byte shard key. */
RS_API int rs_get_shard_key(const rs_view *view, const rs_table *table, const void *key16, rs_value *out);

typedef struct rs_name {
	const void *data;
	uint32_t len;
	uint32_t kind; /* RS_KEY_NAME or RS_KEY_SHARD */
} rs_name;

/* rs_mget reads many keys at once, in groups of 32 whose memory accesses overlap: about four times as fast as one by
 * one. out has n elements. rs_mget returns the number found, or the first error. */
RS_API int64_t rs_mget(const rs_view *view, const rs_table *table, const uint64_t *keys, size_t n, rs_value *out);
RS_API int64_t rs_mget_names(const rs_view *view, const rs_table *table, const rs_name *keys, size_t n, rs_value *out);

/* ---- Items ---- */

/* A rectangle in units of 1e-7 degrees; x is longitude. min_x > max_x crosses the antimeridian. */
typedef struct rs_box32 {
	int32_t min_x, min_y, max_x, max_y;
} rs_box32;

/* A rectangle in degrees. min_lon > max_lon crosses the antimeridian. */
typedef struct rs_box {
	double min_lat, min_lon, max_lat, max_lon;
} rs_box;

typedef struct rs_point {
	double lat, lon;
} rs_point;

#define RS_UNITS_PER_DEGREE 10000000

/* A whole record, as queries return it. Pointers are valid until the view is unlocked. */
typedef struct rs_item {
	const uint8_t *value;
	uint32_t value_len;
	uint8_t key_kind;
	uint8_t has_box;
	uint64_t number;     /* RS_KEY_NUMBER */
	const uint8_t *name; /* RS_KEY_NAME, RS_KEY_SHARD */
	uint32_t name_len;
	rs_box32 box;
	uint64_t hlc;     /* timestamp of the write; 0 unknown */
	int64_t expiry;   /* ns since 1970; 0 never */
	uint64_t version; /* as in rs_value */
	double distance;  /* metres; set by rs_radius and rs_nearest */
} rs_item;

/* rs_value_item fills in the whole record of a value that was found. */
RS_API int rs_value_item(const rs_view *view, const rs_table *table, const rs_value *value, rs_item *out);
RS_API rs_box rs_box_degrees(rs_box32 box);
/* rs_box_units rounds outwards, by less than a unit. */
RS_API rs_box32 rs_box_units(rs_box box);

/* ---- Spatial queries ---- */

/* A visitor returns 0 to continue; any other number ends the query, which returns that number. The item is valid
 * until the visitor returns, and the memory that it points to until the view is unlocked. Return positive numbers,
 * which cannot be confused with errors. */
typedef int (*rs_visitor)(void *context, const rs_item *item);

/* rs_bbox visits every record whose box touches the query's, each once, in no order. Longitudes 180 and -180 are one
 * meridian. */
RS_API int rs_bbox(const rs_view *view, const rs_table *table, rs_box box, rs_visitor visit, void *context);
/* rs_radius visits every record whose box is within metres of the centre, on a sphere of 6 371 008.8 m. */
RS_API int rs_radius(const rs_view *view, const rs_table *table, rs_point centre, double metres, rs_visitor visit, void *context);
/* A ring of a polygon: n >= 3 corners; the last corner is joined to the first. */
typedef struct rs_ring {
	const rs_point *corners;
	size_t n;
} rs_ring;

/* rs_polygon visits every record whose box touches the polygon within the rings, edges included: a ring within
 * another ring is a hole, a ring next to it is a second part, and where edges cross, the even-odd rule applies. */
RS_API int rs_polygon(const rs_view *view, const rs_table *table, const rs_ring *rings, size_t n, rs_visitor visit, void *context);
/* rs_nearest returns up to k records nearest to the centre and not farther than metres (INFINITY: any), nearest first; it
 * returns how many, or an error. out has room for k. */
RS_API int64_t rs_nearest(const rs_view *view, const rs_table *table, rs_point centre, size_t k, double metres, rs_item *out);

#define RS_TREE_STACK 512
#define RS_TREE_BATCH 16

/* An iterator over a box, for callers that prefer a loop to a callback. It takes 5 KiB of the caller's memory and
 * need not be closed; it must not outlive the view. */
typedef struct rs_iter {
	const rs_view *view;
	const rs_table *table;
	rs_box32 part[4]; /* of the query */
	uint32_t parts, at_part;
	uint32_t shard;
	uint32_t phase;
	uint32_t planted; /* shards whose root was taken for this part */
	uint32_t waiting, leaves;
	uint32_t entry, count, steps;
	uint32_t cx, cy, cx0, cx1, cy0, cy1;
	int status;
	struct {
		uint32_t shard, node, mask;
	} leaf[RS_TREE_BATCH];
	uint64_t stack[RS_TREE_STACK];
} rs_iter;

RS_API int rs_bbox_begin(rs_iter *it, const rs_view *view, const rs_table *table, rs_box box);
/* rs_bbox_next returns 1 and an item, 0 at the end, or an error. */
RS_API int rs_bbox_next(rs_iter *it, rs_item *out);

/* ---- Scans in the order of keys ---- */

typedef struct rs_cursor {
	const uint8_t *key;
	uint64_t number;
	const uint8_t *record;
	uint32_t len;
	uint32_t at; /* position in the base's order, or word of the skip list */
	uint16_t shard;
	uint8_t delta, kind;
} rs_cursor;

/* A scan by prefix, in 20 KiB of memory that the caller provides. It must not outlive the view, and the prefix must
 * outlive it. */
typedef struct rs_scan {
	const rs_view *view;
	const rs_table *table;
	const uint8_t *prefix;
	size_t prefix_len;
	uint64_t last; /* greatest number wanted */
	int status;
	uint32_t live;
	rs_cursor cursor[2 * RS_SHARDS_MAX];
	uint16_t heap[2 * RS_SHARDS_MAX];
} rs_scan;

/* rs_scan_begin begins a scan over the keys that begin with prefix, in order: names bytewise; a number counts as its eight
 * bytes, most significant first. Without a prefix it covers all keys, shard keys after all names. */
RS_API int rs_scan_begin(rs_scan *scan, const rs_view *view, const rs_table *table, const void *prefix, size_t len);
/* rs_scan_next returns 1 and an item, 0 at the end, or an error. */
RS_API int rs_scan_next(rs_scan *scan, rs_item *out);

/* ---- Values ---- */

enum {
	RS_FIELD_STRING = 1,
	RS_FIELD_BYTES = 2,
	RS_FIELD_INT64 = 3,
	RS_FIELD_FLOAT64 = 4,
	RS_FIELD_BOOL = 5,
	RS_FIELD_TIMESTAMP = 6,
	RS_FIELD_POINT = 7,
	RS_FIELD_BOX = 8
};

typedef struct rs_field {
	const char *name; /* does not end in 0 */
	uint32_t name_len;
	uint32_t kind;
	const uint8_t *data; /* encoded; the bytes themselves of strings and bytes */
	uint32_t len;
} rs_field;

/* rs_opaque returns the bytes of a value that is not a record, or RS_INVALID if the value is a record. */
RS_API int rs_opaque(const uint8_t *value, size_t len, const uint8_t **data, size_t *data_len);

typedef struct rs_fields {
	const uint8_t *at, *end;
	uint64_t left;
	const uint8_t *last;
	uint32_t last_len;
} rs_fields;

/* rs_fields_begin begins to walk the fields of a record, in the order of their names. */
RS_API int rs_fields_begin(rs_fields *it, const uint8_t *value, size_t len);
/* rs_fields_next returns 1 and a field, 0 at the end, or RS_CORRUPT. */
RS_API int rs_fields_next(rs_fields *it, rs_field *out);
/* rs_field_by_name returns RS_OK, RS_NOT_FOUND, RS_INVALID if the value is not a record, or RS_CORRUPT. */
RS_API int rs_field_by_name(const uint8_t *value, size_t len, const char *name, rs_field *out);

/* The typed getters return RS_OK, RS_NOT_FOUND if there is no such field, or RS_INVALID if the field has another
 * type. */
RS_API int rs_field_int64(const uint8_t *value, size_t len, const char *name, int64_t *out);
RS_API int rs_field_float64(const uint8_t *value, size_t len, const char *name, double *out);
RS_API int rs_field_bool(const uint8_t *value, size_t len, const char *name, int *out);
RS_API int rs_field_timestamp(const uint8_t *value, size_t len, const char *name, int64_t *microseconds);
RS_API int rs_field_string(const uint8_t *value, size_t len, const char *name, const char **text, size_t *text_len);
RS_API int rs_field_bytes(const uint8_t *value, size_t len, const char *name, const uint8_t **data, size_t *data_len);
RS_API int rs_field_point(const uint8_t *value, size_t len, const char *name, rs_point *out);
RS_API int rs_field_box(const uint8_t *value, size_t len, const char *name, rs_box *out);
/* The value of a field of this kind; 0 for other kinds. */
RS_API int64_t rs_as_int64(const rs_field *field);
RS_API double rs_as_float64(const rs_field *field);
RS_API rs_point rs_as_point(const rs_field *field);
RS_API rs_box rs_as_box(const rs_field *field);

#ifdef __cplusplus
}
#endif
#endif /* RHUMB_SNAP_H */

/* ==== Implementation ==== */

#if defined(RHUMB_SNAP_IMPLEMENTATION) && !defined(RHUMB_SNAP_IMPLEMENTED)
#define RHUMB_SNAP_IMPLEMENTED

#if defined(__STRICT_ANSI__) && !defined(_GNU_SOURCE) && (!defined(_POSIX_C_SOURCE) || _POSIX_C_SOURCE < 200809L)
#error "with -std=c11, define _GNU_SOURCE (or use -std=gnu11) where RHUMB_SNAP_IMPLEMENTATION is defined"
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rhumb_snap.h reads images on little-endian machines only"
#endif

#ifdef __cplusplus
#define RS__THREAD thread_local
extern "C" {
#else
#define RS__THREAD _Thread_local
#endif

/* glibc shows these only with _GNU_SOURCE, which an includer may not have set. */
#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif
#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS 0x20
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0x4000
#endif
#ifndef O_CLOEXEC
#define O_CLOEXEC 02000000
#endif

/* The layout, as in docs/formats/snapshot.md. */
enum {
	RS__ROOT_SIZE = 32768,
	RS__MAJOR = 2,
	RS__COMMITTED = 64,
	RS__TABLE_SEQ = 128,
	RS__LIFE = 192,
	RS__HEARTBEAT = 200,
	RS__PID = 208,
	RS__STATE = 212,
	RS__RING = 256,
	RS__RING_SIZE = 16,
	RS__CLOSED_TRIES = 1000, /* tries of a closed view while commits overtake it */
	RS__TABLES = 4096,
	RS__TABLE_ENTRY = 256,
	RS__SHARDS = 12288,
	RS__SHARD_ENTRY = 64,
	RS__TABLE_USED = 1,
	RS__SEG_HEADER = 8192,
	RS__SEG_SECTIONS = 128,
	RS__SECTION = 40,
	RS__SECTIONS_MAX = 32,
	RS__SEG_SUM = 4092,
	RS__SEG_STATE = 4096,
	RS__SEG_LIVE = 4232,
	RS__SEG_DELTA = 4288,
	RS__UNIT = 64,
	RS__HEAD = 24,
	RS__FLAGS = 18,
	RS__SLOTS = 10,
	RS__NODE = 256,
	RS__TREE_HEADER = 256,
	RS__LEVELS_MAX = 8,
	RS__DELTA_ENTRY = 32,
	RS__DELTA_SHIFT = 18,
	RS__ORDER_HEAD = 1,
	RS__ORDER_HEIGHT = 12,
	RS__SHARD_KEY = 255,
	RS__GROUP = 32,
	RS__PLAIN_UNITS = (RS__UNIT + 1 + 255 + 65535) / RS__UNIT + 1 /* fixed parts, name and a value that is not long */
};
enum {
	RS__TOMBSTONE = 1,
	RS__BOX = 2,
	RS__EXPIRY = 4,
	RS__MOVED = 8,
	RS__HLC = 16
};
enum {
	RS__SEC_INDEX = 1,
	RS__SEC_HEAP = 2,
	RS__SEC_NODES = 3,
	RS__SEC_REFS = 4,
	RS__SEC_CHANGED = 5,
	RS__SEC_DELTA = 6,
	RS__SEC_CELLS = 7,
	RS__SEC_ORDER = 8,
	RS__SEC_ORDER_DELTA = 9,
	RS__SEC_END = 10
};
#define RS__NONE UINT32_MAX
#define RS__ABORTED UINT32_MAX /* the version of an aborted record */
#define RS__LONG UINT16_MAX
#define RS__HUGE ((size_t)2 << 20)
#define RS__LON_MAX 1800000000
#define RS__LAT_MAX 900000000
#define RS__EARTH 6371008.8
#define RS__PI 3.14159265358979323846
#define RS__NEVER UINT64_MAX

#define rs__likely(x) __builtin_expect(!!(x), 1)
#define rs__unlikely(x) __builtin_expect(!!(x), 0)
#define rs__inline static inline __attribute__((always_inline, unused))
#define rs__cold __attribute__((noinline, cold, unused))
#define rs__prefetch(p) __builtin_prefetch((p), 0, 3)
/* rs__prefetch_many is for dozens of random lines at a time. The L1 cache tracks only few outstanding lines, 24 on
 * Zen 4, and the L2 cache more: prefetching into L2 fetches 1.5 times as many records, measured. A later read then
 * takes 14 cycles from L2; with few lines, rs__prefetch avoids that. */
#if defined(__x86_64__)
#define rs__prefetch_many(p) __builtin_prefetch((p), 0, 2)
#else
#define rs__prefetch_many(p) rs__prefetch(p)
#endif

/* ---- Words ---- */

rs__inline uint16_t rs__u16(const void *p) {
	uint16_t v;
	memcpy(&v, p, 2);
	return v;
}
rs__inline uint32_t rs__u32(const void *p) {
	uint32_t v;
	memcpy(&v, p, 4);
	return v;
}
rs__inline uint64_t rs__u64(const void *p) {
	uint64_t v;
	memcpy(&v, p, 8);
	return v;
}
rs__inline uint32_t rs__load32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); }
rs__inline uint64_t rs__load64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE); }
rs__inline uint64_t rs__be64(const uint8_t *p) { return __builtin_bswap64(rs__u64(p)); }

__extension__ typedef unsigned __int128 rs__u128;

rs__inline uint64_t rs__mum(uint64_t a, uint64_t b) {
	rs__u128 m = (rs__u128)a * b;
	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* ---- Errors ---- */

static RS__THREAD rs_error rs__error;

RS_API const rs_error *rs_last_error(void) { return &rs__error; }

RS_API const char *rs_strerror(int status) {
	switch (status) {
	case RS_OK: return "ok";
	case RS_NOT_FOUND: return "not found";
	case RS_INVALID: return "invalid argument";
	case RS_CORRUPT: return "corrupt image";
	case RS_INCOMPATIBLE: return "incompatible image";
	case RS_UNAVAILABLE: return "unavailable";
	case RS_EXPIRED: return "view expired";
	case RS_IO: return "input/output error";
	case RS_NO_MEMORY: return "out of memory";
	case RS_BUSY: return "busy";
	case RS_UNSUPPORTED: return "not supported by the table";
	}
	return "unknown status";
}

__attribute__((format(printf, 4, 5))) rs__cold static int rs__fail(int status, const char *file, uint64_t offset, const char *form, ...) {
	va_list args;
	rs__error.status = status;
	rs__error.offset = offset;
	snprintf(rs__error.file, sizeof rs__error.file, "%s", file);
	va_start(args, form);
	vsnprintf(rs__error.message, sizeof rs__error.message, form, args);
	va_end(args);
	return status;
}

#define RS__POSITIONS "_positions"

/* ---- CRC-32C (RFC 3720, appendix B.4) ---- */

static uint32_t rs__crc_plain(uint32_t c, const uint8_t *p, size_t n) {
	static const uint32_t nibble[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
	for (size_t i = 0; i < n; i++) {
		c ^= p[i];
		c = c >> 4 ^ nibble[c & 15];
		c = c >> 4 ^ nibble[c & 15];
	}
	return c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t rs__crc_sse(uint32_t c, const uint8_t *p, size_t n) {
	uint64_t w = c;
	for (; n >= 8; n -= 8, p += 8) w = _mm_crc32_u64(w, rs__u64(p));
	c = (uint32_t)w;
	for (; n > 0; n--, p++) c = _mm_crc32_u8(c, *p);
	return c;
}
#endif

static uint32_t rs__crc_more(uint32_t c, const void *p, size_t n) {
#if defined(__x86_64__)
	if (__builtin_cpu_supports("sse4.2")) return rs__crc_sse(c, (const uint8_t *)p, n);
#endif
	return rs__crc_plain(c, (const uint8_t *)p, n);
}

static uint32_t rs__crc(const void *p, size_t n) { return ~rs__crc_more(~0u, p, n); }

/* rs__record_sum covers the whole record: a CRC of the key word, the length, the flags but RS__MOVED, and the payload, which a
 * roll keeps, and apart from it the version, the predecessor and RS__MOVED, which it changes. */
static uint32_t rs__record_sum(const uint8_t *rec, size_t size) {
	uint8_t fixed[12];
	memcpy(fixed, rec, 8);
	memcpy(fixed + 8, rec + 16, 4);
	fixed[10] &= (uint8_t)~RS__MOVED;
	uint32_t sum = ~rs__crc_more(rs__crc_more(~0u, fixed, sizeof fixed), rec + RS__HEAD, size - RS__HEAD);
	return sum ^ rs__u32(rec + 8) * 0x9E3779B1u ^ rs__u32(rec + 12) * 0x85EBCA77u ^ (rs__u16(rec + 18) & RS__MOVED) * 0xC2B2AE3Du;
}

/* ---- Mapped files ---- */

/* A root that is mapped; it changes when the publisher makes a new image in the same place. */
typedef struct rs__root {
	uint8_t *p;
	uint64_t dev, ino;
	uint64_t seed0, seed1;
	uint32_t minor;
	uint32_t holders; /* sets, under the client's mutex */
} rs__root;

/* A generation of a shard that is mapped. All but holders is set once. */
typedef struct rs_seg {
	const uint8_t *index, *heap;
	uint64_t base;
	uint64_t heap_bytes;
	uint32_t buckets, buckets_max;
	uint32_t units, base_units;
	uint8_t kind;
	/* the tree */
	const uint8_t *nodes, *refs;
	uint32_t levels, items;
	uint32_t first[RS__LEVELS_MAX], nodes_at[RS__LEVELS_MAX];
	/* what came after the base */
	const uint8_t *changed;
	const uint8_t *delta, *cells;
	uint32_t delta_max, heads;
	const uint8_t *order, *words;
	uint32_t ordered, words_max;

	uint8_t *p;
	uint64_t size;
	void *reserved;
	size_t reserved_size;
	uint64_t generation, closed;
	uint32_t holders; /* sets, under the client's mutex */
	char file[48];
} rs_seg;

/* The fields of a shard that a first look needs, in one cache line. */
typedef struct rs__shard {
	const uint8_t *index, *heap;
	uint64_t base;
	uint32_t buckets;
	uint32_t units; /* records below this unit end within the heap, unless their value is long */
	uint32_t flags; /* of the first record, assumed for most others, as in the word at 16: see rs__plain */
	uint32_t at;    /* where their value begins, or their name */
	uint32_t overflows; /* buckets after the primary ones */
	char pad[20];
} rs__shard;

/* All generations that were live at one value of table_seq. */
typedef struct rs_set {
	rs__root *root;
	uint64_t seq;
	uint64_t base, closed; /* the greatest of the segments */
	uint64_t least;        /* the least base */
	uint64_t committed;    /* when it was loaded */
	unsigned tables;
	rs_table table[RS_TABLES_MAX];
	char names[RS_TABLES_MAX][2][RS__TABLE_ENTRY / 2 + 1];
	rs_seg *seg[RS_SHARDS_MAX];
	rs__shard shard[RS_SHARDS_MAX];
} rs_set;

/* A slot counts the views of a set. Slots are never freed, so that a view may count itself in one that has just been
 * superseded; it looks again, and counts itself out. */
typedef struct rs__slot {
	uint32_t views;
	rs_set *set;   /* under the client's mutex, or counted */
	uint64_t seen; /* the newest version known to be wholly in the set */
	char pad[40];
} rs__slot;

struct rs_client {
	uint64_t tick;         /* CLOCK_MONOTONIC, ns, as of the last tick */
	int64_t max_age;
	uint32_t stale;        /* root was replaced */
	char pad[40];
	uint32_t current;      /* slot */
	char pad2[60];
	rs__slot slot[RS_SETS_MAX];
	pthread_mutex_t mutex; /* over the mapping of files */
	char *dir;
	unsigned flags;
	int timed, stopping;
	pthread_t timer;
	pthread_mutex_t timer_mutex;
	pthread_cond_t timer_cond;
};

rs__inline int64_t rs__clock(clockid_t id) {
	struct timespec t;
	clock_gettime(id, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int rs__head(const char *file, const uint8_t *p, const char *magic, uint32_t size, uint32_t sum, uint32_t want) {
	if (memcmp(p, magic, 8) != 0) return rs__fail(RS_CORRUPT, file, 0, "it does not begin with %s: this is another kind of file", magic);
	if (rs__u32(p + 16) != 0x01020304)
		return rs__fail(RS_INCOMPATIBLE, file, 16, "byte order tag %#x: written on a machine of another byte order", rs__u32(p + 16));
	if (rs__u32(p + 8) != RS__MAJOR) return rs__fail(RS_INCOMPATIBLE, file, 8, "format %u, this reader reads %d", rs__u32(p + 8), RS__MAJOR);
	if (sum != want) return rs__fail(RS_CORRUPT, file, 0, "the header's checksum is %#x, counted %#x", want, sum);
	if (rs__u32(p + 20) != size) return rs__fail(RS_CORRUPT, file, 20, "header of %u bytes, want %u", rs__u32(p + 20), size);
	return RS_OK;
}

static int rs__path(const rs_client *c, const char *file, char *out, size_t size) {
	int n = snprintf(out, size, "%s/%s", c->dir, file);
	if (n < 0 || (size_t)n >= size) return rs__fail(RS_INVALID, file, 0, "the directory's name is too long");
	return RS_OK;
}

static int rs__open(const rs_client *c, const char *file, int *fd, struct stat *st) {
	char path[PATH_MAX];
	int status = rs__path(c, file, path, sizeof path);
	if (status != RS_OK) return status;
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0) {
		int missing = errno == ENOENT;
		return rs__fail(missing ? RS_UNAVAILABLE : RS_IO, file, 0, "cannot open %.150s: %s", path, strerror(errno));
	}
	if (fstat(*fd, st) != 0) {
		status = rs__fail(RS_IO, file, 0, "cannot stat: %s", strerror(errno));
		close(*fd);
	}
	return status;
}

static int rs__map_root(rs_client *c, rs__root **out) {
	int fd = -1;
	struct stat st;
	int status = rs__open(c, "root", &fd, &st);
	if (status != RS_OK) return status;
	if (st.st_size < RS__ROOT_SIZE) {
		close(fd);
		return rs__fail(RS_CORRUPT, "root", 0, "root has %lld bytes, want %d", (long long)st.st_size, (int)RS__ROOT_SIZE);
	}
	void *p = mmap(NULL, RS__ROOT_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED) return rs__fail(RS_IO, "root", 0, "cannot map: %s", strerror(errno));
	const uint8_t *b = (const uint8_t *)p;
	status = rs__head("root", b, "RHBROOT1", RS__ROOT_SIZE, rs__crc(b, 60), rs__u32(b + 60));
	if (status == RS_OK && rs__u32(b + 56) != 0)
		status = rs__fail(RS_INCOMPATIBLE, "root", 56, "root needs features %#x that this reader lacks; use a newer one", rs__u32(b + 56));
	rs__root *r = status == RS_OK ? (rs__root *)calloc(1, sizeof *r) : NULL;
	if (status == RS_OK && r == NULL) status = rs__fail(RS_NO_MEMORY, "root", 0, "out of memory");
	if (status != RS_OK) {
		munmap(p, RS__ROOT_SIZE);
		return status;
	}
	r->p = (uint8_t *)p;
	r->dev = (uint64_t)st.st_dev;
	r->ino = (uint64_t)st.st_ino;
	r->minor = rs__u32(b + 12);
	r->seed0 = rs__u64(b + 40);
	r->seed1 = rs__u64(b + 48);
	*out = r;
	return RS_OK;
}

static void rs__drop_root(rs__root *r) {
	if (r != NULL && --r->holders == 0) {
		munmap(r->p, RS__ROOT_SIZE);
		free(r);
	}
}

/* rs__unmap_seg unmaps the whole reserved address range in one call. Between two calls another thread might map a
 * part of it. */
static void rs__unmap_seg(rs_seg *s) {
	if (s->reserved != NULL) munmap(s->reserved, s->reserved_size);
	else if (s->p != NULL) munmap(s->p, (size_t)s->size);
	free(s);
}

static void rs__drop_seg(rs_seg *s) {
	if (s != NULL && --s->holders == 0) rs__unmap_seg(s);
}

/* rs__map maps fd, at an address congruent to the file's offset modulo the size of a huge page: otherwise the kernel uses
 * small pages and does not say so. */
static int rs__map(rs_client *c, rs_seg *s, int fd) {
	size_t size = (size_t)s->size;
	void *p;
	if (size >= RS__HUGE) {
		s->reserved_size = size + 2 * RS__HUGE;
		s->reserved = mmap(NULL, s->reserved_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (s->reserved == MAP_FAILED) {
			s->reserved = NULL;
			return rs__fail(RS_IO, s->file, 0, "cannot reserve addresses: %s", strerror(errno));
		}
		uintptr_t at = ((uintptr_t)s->reserved + RS__HUGE - 1) & ~(uintptr_t)(RS__HUGE - 1);
		p = mmap((void *)at, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
	} else {
		p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	}
	if (p == MAP_FAILED) return rs__fail(RS_IO, s->file, 0, "cannot map: %s", strerror(errno));
	s->p = (uint8_t *)p;
	if (c->flags & RS_HUGE) madvise(p, size, MADV_HUGEPAGE);
	if (c->flags & RS_POPULATE) madvise(p, size, MADV_POPULATE_READ); /* a hint: pages come later else */
	return RS_OK;
}

typedef struct rs__section {
	uint64_t offset, size, items;
	uint32_t item, sum;
	int found;
} rs__section;

static int rs__parse_tree(rs_seg *s, const rs__section *nodes, const rs__section *refs) {
	static const uint32_t empty[4] = {0x7fffffff, 0x7fffffff, 0x80000000, 0x80000000};
	const uint8_t *h = s->p + nodes->offset;
	uint32_t items = rs__u32(h + 4), levels = 0, at = 0;
	for (uint64_t n = items; n > 1 || (n == 1 && levels == 0); levels++) {
		n = (n + 15) / 16;
		if (levels == RS__LEVELS_MAX) return rs__fail(RS_CORRUPT, s->file, nodes->offset + 4, "a tree of %u items", items);
		if (rs__u32(h + 16 + 8 * levels) != at || rs__u32(h + 20 + 8 * levels) != n)
			return rs__fail(RS_CORRUPT, s->file, nodes->offset + 16 + 8 * levels, "level %u of the tree has %u nodes from %u, want %u from %u", levels,
				rs__u32(h + 20 + 8 * levels), rs__u32(h + 16 + 8 * levels), (unsigned)n, at);
		s->first[levels] = at;
		s->nodes_at[levels] = (uint32_t)n;
		at += (uint32_t)n;
	}
	if (rs__u32(h) != levels) return rs__fail(RS_CORRUPT, s->file, nodes->offset, "%u levels for %u items, want %u", rs__u32(h), items, levels);
	uint64_t leaves = levels > 0 ? s->nodes_at[0] : 0;
	if ((nodes->size - RS__TREE_HEADER) / RS__NODE < at || refs->size < leaves * 64)
		return rs__fail(RS_CORRUPT, s->file, nodes->offset, "a tree of %u items does not fit its sections", items);
	s->levels = levels;
	s->items = items;
	s->nodes = h + RS__TREE_HEADER;
	s->refs = s->p + refs->offset;
	uint32_t children = items; /* lanes without a child must match no query */
	for (uint32_t l = 0; l < levels; children = s->nodes_at[l++]) {
		uint32_t last = s->nodes_at[l] - 1;
		const uint8_t *node = s->nodes + (uint64_t)(s->first[l] + last) * RS__NODE;
		for (uint32_t lane = children - last * 16; lane < 16; lane++)
			for (uint32_t side = 0; side < 4; side++)
				if (rs__u32(node + 64 * side + 4 * lane) != empty[side])
					return rs__fail(RS_CORRUPT, s->file, (uint64_t)(node - s->p), "lane %u of the last node of level %u has no child and is not empty", lane, l);
	}
	return RS_OK;
}

static int rs__parse_sections(rs_seg *s, rs__section *sec) {
	uint32_t n = rs__u32(s->p + 88);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = RS__SEG_SECTIONS + (uint64_t)i * RS__SECTION;
		const uint8_t *q = s->p + at;
		uint32_t type = rs__u32(q);
		rs__section x = {rs__u64(q + 8), rs__u64(q + 16), rs__u64(q + 24), rs__u32(q + 32), rs__u32(q + 36), 1};
		if (x.offset % 4096 != 0 || x.offset < RS__SEG_HEADER || x.offset > s->size || x.size > s->size - x.offset)
			return rs__fail(RS_CORRUPT, s->file, at, "section %u lies at %" PRIu64 " with %" PRIu64 " bytes in a file of %" PRIu64, i, x.offset, x.size, s->size);
		if (type >= RS__SEC_END) continue;
		if (sec[type].found) return rs__fail(RS_CORRUPT, s->file, at, "two sections of type %u", type);
		uint64_t least = 0;
		switch (type) {
		case RS__SEC_INDEX: least = (uint64_t)s->buckets_max * 64; break;
		case RS__SEC_HEAP: least = (uint64_t)s->base_units * RS__UNIT; break;
		case RS__SEC_NODES: least = RS__TREE_HEADER; break;
		case RS__SEC_REFS:
		case RS__SEC_ORDER: least = x.items > UINT32_MAX ? UINT64_MAX : x.items * 4; break;
		case RS__SEC_CHANGED: least = ((uint64_t)s->base_units + 63) / 64 * 8; break;
		case RS__SEC_CELLS: least = 8; break;
		}
		if (x.items > x.size || x.size < least)
			return rs__fail(RS_CORRUPT, s->file, at, "section of type %u has %" PRIu64 " bytes and %" PRIu64 " items", type, x.size, x.items);
		sec[type] = x;
	}
	if (!sec[RS__SEC_INDEX].found || !sec[RS__SEC_HEAP].found) return rs__fail(RS_CORRUPT, s->file, 88, "the index or the heap is missing");
	return RS_OK;
}

static int rs__verify_sections(rs_seg *s, const rs__section *sec) {
	static const int types[] = {RS__SEC_HEAP, RS__SEC_NODES, RS__SEC_REFS, RS__SEC_ORDER};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		const rs__section *x = &sec[types[i]];
		if (!x->found || x->sum == 0) continue;
		uint64_t n = types[i] == RS__SEC_HEAP ? (uint64_t)s->base_units * RS__UNIT : x->items * x->item;
		if (x->item != 0 && types[i] != RS__SEC_HEAP && x->items > x->size / x->item) n = x->size + 1;
		if (n > x->size) return rs__fail(RS_CORRUPT, s->file, x->offset, "section of type %d is shorter than its items", types[i]);
		uint32_t sum = rs__crc(s->p + x->offset, (size_t)n);
		if (sum != x->sum) return rs__fail(RS_CORRUPT, s->file, x->offset, "section of type %d has the checksum %#x, counted %#x", types[i], x->sum, sum);
	}
	return RS_OK;
}

/* rs__parse_seg checks the header and everything that reads rely on without a further look. */
static int rs__parse_seg(rs_client *c, rs_seg *s, const rs__root *root, const uint8_t *entry, uint32_t shard) {
	const uint8_t *p = s->p;
	rs__section sec[RS__SEC_END];
	memset(sec, 0, sizeof sec);
	int status = rs__head(s->file, p, "RHBSEG01", RS__SEG_HEADER, rs__crc(p, RS__SEG_SUM), rs__u32(p + RS__SEG_SUM));
	if (status != RS_OK) return status;
	if (memcmp(p + 64, root->p + 24, 16) != 0) return rs__fail(RS_CORRUPT, s->file, 64, "the segment is of another image");
	if (rs__u64(p + 48) != s->size)
		return rs__fail(RS_CORRUPT, s->file, 48, "the header says %" PRIu64 " bytes, the root %" PRIu64, rs__u64(p + 48), s->size);
	if (rs__u32(p + 32) != shard || rs__u32(p + 36) != rs__u32(entry + 32) || rs__u64(p + 40) != s->base)
		return rs__fail(RS_CORRUPT, s->file, 32, "the segment's shard, table or base is not what the root says");
	if (rs__u32(p + 80) > RS_KEY_NAME) return rs__fail(RS_INCOMPATIBLE, s->file, 80, "keys of kind %u, which this reader does not know", rs__u32(p + 80));
	if (rs__u32(p + 88) > RS__SECTIONS_MAX) return rs__fail(RS_CORRUPT, s->file, 88, "%u sections, at most %d are possible", rs__u32(p + 88), (int)RS__SECTIONS_MAX);
	s->kind = (uint8_t)rs__u32(p + 80);
	s->buckets = rs__u32(p + 84);
	s->buckets_max = rs__u32(p + 92);
	s->closed = rs__u64(p + 96);
	s->base_units = rs__u32(p + 104);
	if (s->buckets == 0 || s->buckets_max < s->buckets)
		return rs__fail(RS_CORRUPT, s->file, 84, "%u primary buckets of %u", s->buckets, s->buckets_max);
	status = rs__parse_sections(s, sec);
	if (status != RS_OK) return status;
	s->index = p + sec[RS__SEC_INDEX].offset;
	s->heap = p + sec[RS__SEC_HEAP].offset;
	uint64_t units = sec[RS__SEC_HEAP].size / RS__UNIT;
	s->units = units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
	s->heap_bytes = (uint64_t)s->units * RS__UNIT;
	if (sec[RS__SEC_CHANGED].found) s->changed = p + sec[RS__SEC_CHANGED].offset;
	if (sec[RS__SEC_NODES].found && sec[RS__SEC_REFS].found) status = rs__parse_tree(s, &sec[RS__SEC_NODES], &sec[RS__SEC_REFS]);
	if (status != RS_OK) return status;
	if (sec[RS__SEC_DELTA].found && sec[RS__SEC_CELLS].found) {
		uint64_t n = sec[RS__SEC_DELTA].size / RS__DELTA_ENTRY, heads = sec[RS__SEC_CELLS].size / 4;
		if (sec[RS__SEC_CELLS].items > 0 && sec[RS__SEC_CELLS].items <= heads) heads = sec[RS__SEC_CELLS].items;
		if (n > UINT32_MAX - 1 || heads > UINT32_MAX) return rs__fail(RS_CORRUPT, s->file, sec[RS__SEC_DELTA].offset, "the spatial delta is too large");
		s->delta = p + sec[RS__SEC_DELTA].offset;
		s->cells = p + sec[RS__SEC_CELLS].offset;
		s->delta_max = (uint32_t)n;
		s->heads = (uint32_t)heads;
	}
	if (sec[RS__SEC_ORDER].found) {
		s->order = p + sec[RS__SEC_ORDER].offset;
		s->ordered = (uint32_t)sec[RS__SEC_ORDER].items;
	}
	if (sec[RS__SEC_ORDER_DELTA].found && sec[RS__SEC_ORDER_DELTA].size >= 4 * (RS__ORDER_HEAD + 2 + RS__ORDER_HEIGHT)) {
		uint64_t n = sec[RS__SEC_ORDER_DELTA].size / 4;
		s->words = p + sec[RS__SEC_ORDER_DELTA].offset;
		s->words_max = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
	}
	return c->flags & RS_VERIFY ? rs__verify_sections(s, sec) : RS_OK;
}

/* rs__map_seg maps the generation that a shard entry names. RS_UNAVAILABLE means that it has gone meanwhile. The read lock on
 * byte 0 belongs to the open file, which the mapping keeps: so it stands until the mapping ends, without a descriptor. */
static int rs__map_seg(rs_client *c, const rs__root *root, const uint8_t *entry, uint32_t shard, rs_seg **out) {
	rs_seg *s = (rs_seg *)calloc(1, sizeof *s);
	if (s == NULL) return rs__fail(RS_NO_MEMORY, "", 0, "out of memory");
	s->generation = rs__u64(entry);
	s->base = rs__u64(entry + 8);
	s->size = rs__u64(entry + 16);
	snprintf(s->file, sizeof s->file, "seg.%u.%" PRIu64, shard, s->generation);
	int fd = -1;
	struct stat st;
	int status = rs__open(c, s->file, &fd, &st);
	if (status == RS_OK) {
		struct flock lock;
		memset(&lock, 0, sizeof lock);
		lock.l_type = F_RDLCK;
		lock.l_whence = SEEK_SET;
		lock.l_len = 1;
		if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
			int taken = errno == EAGAIN || errno == EACCES;
			status = rs__fail(taken ? RS_UNAVAILABLE : RS_IO, s->file, 0, "cannot lock byte 0: %s", strerror(errno));
		} else if (st.st_size < RS__SEG_HEADER || (uint64_t)st.st_size < s->size || s->size < RS__SEG_HEADER) {
			status = rs__fail(RS_CORRUPT, s->file, 0, "the file has %lld bytes, the root says %" PRIu64, (long long)st.st_size, s->size);
		} else {
			status = rs__map(c, s, fd);
		}
		close(fd);
	}
	if (status == RS_OK && rs__u64(s->p + 24) != s->generation)
		status = rs__fail(RS_UNAVAILABLE, s->file, 24, "the file was given to generation %" PRIu64, rs__u64(s->p + 24));
	if (status == RS_OK) status = rs__parse_seg(c, s, root, entry, shard);
	if (status != RS_OK) {
		rs__unmap_seg(s);
		return status;
	}
	*out = s;
	return RS_OK;
}

/* ---- Sets ---- */

static void rs__drop_set(rs_set *set) {
	if (set == NULL) return;
	for (int i = 0; i < RS_SHARDS_MAX; i++) rs__drop_seg(set->seg[i]);
	rs__drop_root(set->root);
	free(set);
}

static int rs__load_tables(const rs_client *c, rs_set *set) {
	for (uint32_t i = 0; i < RS_TABLES_MAX; i++) {
		uint64_t at = RS__TABLES + (uint64_t)i * RS__TABLE_ENTRY;
		uint8_t b[RS__TABLE_ENTRY];
		memcpy(b, set->root->p + at, sizeof b);
		if (!(rs__u16(b + 4) & RS__TABLE_USED)) continue;
		uint32_t sum = rs__u32(b + 12);
		memset(b + 12, 0, 4);
		if (rs__crc(b, sizeof b) != sum) return rs__fail(RS_CORRUPT, "root", at, "a table entry does not match its checksum");
		rs_table *t = &set->table[set->tables];
		uint32_t n = b[7], f = b[144], first = rs__u16(b + 8), count = rs__u16(b + 10);
		if (n == 0 || n > 128 || f > 63 || b[6] > RS_KEY_NAME || count == 0 || (count & (count - 1)) != 0 || first + count > RS_SHARDS_MAX)
			return rs__fail(RS_CORRUPT, "root", at, "table entry %u is out of its bounds", i);
		char *name = set->names[set->tables][0], *field = set->names[set->tables][1];
		memcpy(name, b + 16, n);
		memcpy(field, b + 145, f);
		t->name = name;
		t->location_field = field;
		t->id = rs__u32(b);
		t->flags = rs__u16(b + 4) & (RS_TABLE_ORDERED | RS_TABLE_SPATIAL | RS_TABLE_SUMMED);
		t->kind = b[6];
		int positions = strcmp(name, RS__POSITIONS) == 0;
		if (positions && !(t->flags & RS_TABLE_SUMMED))
			return rs__fail(RS_INCOMPATIBLE, "root", at, "the table %s has no checksums; the node rebuilds the image when it starts", RS__POSITIONS);
		t->checked = (c->flags & RS_VERIFY || positions) && t->flags & RS_TABLE_SUMMED;
		t->shard_count = (uint16_t)count;
		t->seed0 = set->root->seed0;
		t->seed1 = set->root->seed1;
		t->segs = set->seg + first;
		t->shards = set->shard + first;
		set->tables++;
	}
	return RS_OK;
}

rs__inline uint32_t rs__flags(const uint8_t *rec) { return rs__u16(rec + RS__FLAGS); }

/* rs__plain_at returns the offset of the value, or of the name, for a record's flags; 0 if there is no value or the
 * value expires. */
static const uint8_t rs__plain_at[256] = {24, 0, 40, 0, 0, 0, 0, 0, 24, 0, 40, 0, 0, 0, 0, 0, 32, 0, 48, 0, 0, 0, 0, 0, 32, 0, 48};

/* rs__describe copies the fields that a first look needs. The first record of the base is taken as typical, even if
 * it is deleted. In tables with verified checksums a first look finds nothing. */
static void rs__describe(const rs_seg *s, int checked, rs__shard *d) {
	d->index = s->index;
	d->heap = s->heap;
	d->base = s->base;
	d->buckets = s->buckets;
	d->overflows = s->buckets_max - s->buckets;
	d->units = !checked && s->units > RS__PLAIN_UNITS ? s->units - RS__PLAIN_UNITS : 0;
	uint32_t flags = s->base_units > 0 ? rs__flags(s->heap) & ~(uint32_t)RS__TOMBSTONE : 0;
	if (rs__plain_at[flags & 0xff] == 0) flags = 0;
	d->flags = flags << 16;
	d->at = rs__plain_at[flags & 0xff];
}

/* rs__load_shard maps a shard of a table. Entries of shards that no table has mean nothing. */
static int rs__load_shard(rs_client *c, rs_set *set, const rs_set *old, const rs_table *t, uint32_t k) {
	uint32_t shard = (uint32_t)(t->segs - set->seg) + k;
	uint64_t at = RS__SHARDS + (uint64_t)shard * RS__SHARD_ENTRY;
	uint8_t e[RS__SHARD_ENTRY];
	memcpy(e, set->root->p + at, sizeof e);
	if (rs__crc(e, 44) != rs__u32(e + 44)) return rs__fail(RS_CORRUPT, "root", at, "a shard entry does not match its checksum");
	if (rs__u64(e) == 0 || rs__u32(e + 32) != t->id || rs__u32(e + 36) != k || set->seg[shard] != NULL)
		return rs__fail(RS_CORRUPT, "root", at, "the entry of shard %u is not that of shard %u of table %s", shard, k, t->name);
	rs_seg *s = old != NULL && old->root == set->root ? old->seg[shard] : NULL;
	if (s == NULL || s->generation != rs__u64(e)) {
		int status = rs__map_seg(c, set->root, e, shard, &s);
		if (status != RS_OK) return status;
	}
	s->holders++;
	set->seg[shard] = s;
	if (s->kind != t->kind) return rs__fail(RS_CORRUPT, s->file, 80, "table %s has another kind of keys than its shard %u", t->name, k);
	rs__describe(s, t->checked, &set->shard[shard]);
	if (s->base > set->base) set->base = s->base;
	if (s->base < set->least) set->least = s->base;
	uint64_t closed = rs__u64(e + 24);
	if (closed > set->closed) set->closed = closed;
	return RS_OK;
}

/* rs__load_set maps the live generations. The caller retries on RS_UNAVAILABLE. */
static int rs__load_set(rs_client *c, const rs_set *old, int fresh, rs_set **out) {
	rs_set *set = (rs_set *)calloc(1, sizeof *set);
	int status = RS_OK;
	if (set == NULL) return rs__fail(RS_NO_MEMORY, "", 0, "out of memory");
	if (old != NULL && !fresh) set->root = old->root;
	else status = rs__map_root(c, &set->root);
	if (status != RS_OK) {
		free(set);
		return status;
	}
	set->root->holders++;
	set->least = UINT64_MAX;
	set->seq = rs__load64(set->root->p + RS__TABLE_SEQ);
	if (set->seq & 1) status = rs__fail(RS_UNAVAILABLE, "root", RS__TABLE_SEQ, "the publisher exchanges generations, and does not finish");
	if (status == RS_OK) status = rs__load_tables(c, set);
	for (unsigned i = 0; status == RS_OK && i < set->tables; i++)
		for (uint32_t k = 0; status == RS_OK && k < set->table[i].shard_count; k++) status = rs__load_shard(c, set, old, &set->table[i], k);
	set->committed = rs__load64(set->root->p + RS__COMMITTED);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (rs__load64(set->root->p + RS__TABLE_SEQ) != set->seq)
		status = rs__fail(RS_UNAVAILABLE, "root", RS__TABLE_SEQ, "the publisher exchanged generations meanwhile");
	if (status != RS_OK) {
		rs__drop_set(set);
		return status;
	}
	*out = set;
	return RS_OK;
}

/* rs__serves reports whether a set is the newest that can be had: while table_seq is odd, an exchange is under way. */
rs__inline int rs__serves(const rs_set *set) { return (rs__load64(set->root->p + RS__TABLE_SEQ) | 1) == (set->seq | 1); }

/* rs__sweep drops sets that are neither current nor counted. Under the mutex. */
static void rs__sweep(rs_client *c) {
	uint32_t current = __atomic_load_n(&c->current, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < RS_SETS_MAX; i++)
		if (i != current && c->slot[i].set != NULL && __atomic_load_n(&c->slot[i].views, __ATOMIC_SEQ_CST) == 0) {
			rs__drop_set(c->slot[i].set);
			c->slot[i].set = NULL;
		}
}

/* rs__publish makes a set current. A slot is free when it has no set: a view counts itself in before it looks whether the
 * slot is current, and a slot that is being filled is not. */
static int rs__publish(rs_client *c, rs_set *set) {
	for (uint32_t i = 0; i < RS_SETS_MAX; i++)
		if (c->slot[i].set == NULL) {
			c->slot[i].set = set;
			__atomic_store_n(&c->slot[i].seen, set->committed, __ATOMIC_RELAXED);
			__atomic_store_n(&c->current, i, __ATOMIC_SEQ_CST);
			rs__sweep(c);
			return RS_OK;
		}
	return rs__fail(RS_BUSY, "", 0, "views pin %d generations of the image; unlock some", RS_SETS_MAX);
}

static void rs__pause(int64_t ns) {
	struct timespec t;
	t.tv_sec = 0;
	t.tv_nsec = (long)ns;
	nanosleep(&t, NULL);
}

/* rs__remap maps the live generations, unless another thread already has. It waits up to 2 s for a publisher that is
 * replacing generations. */
static int rs__remap(rs_client *c) {
	int status = RS_OK;
	pthread_mutex_lock(&c->mutex);
	rs__sweep(c);
	for (int try_ = 0; try_ < 400; try_++) {
		uint32_t current = __atomic_load_n(&c->current, __ATOMIC_SEQ_CST);
		rs_set *old = current < RS_SETS_MAX ? c->slot[current].set : NULL;
		int fresh = __atomic_load_n(&c->stale, __ATOMIC_SEQ_CST) != 0;
		if (old != NULL && !fresh && rs__serves(old)) {
			status = RS_OK;
			break;
		}
		rs_set *set = NULL;
		status = rs__load_set(c, old, fresh, &set);
		if (status == RS_OK) {
			status = rs__publish(c, set);
			if (status != RS_OK) rs__drop_set(set);
			else if (fresh) __atomic_store_n(&c->stale, 0, __ATOMIC_SEQ_CST);
			break;
		}
		if (status != RS_UNAVAILABLE || (old == NULL && try_ > 40)) break;
		rs__pause(try_ < 20 ? 50000 : 5000000);
	}
	pthread_mutex_unlock(&c->mutex);
	return status;
}

RS_API int rs_refresh(rs_client *c) {
	if (c == NULL) return rs__fail(RS_INVALID, "", 0, "no client");
	return rs__remap(c);
}

/* ---- The timer ---- */

RS_API void rs_tick(rs_client *c) {
	char path[PATH_MAX];
	struct stat st;
	__atomic_store_n(&c->tick, (uint64_t)rs__clock(CLOCK_MONOTONIC), __ATOMIC_RELAXED);
	if (rs__path(c, "root", path, sizeof path) != RS_OK || stat(path, &st) != 0) return;
	pthread_mutex_lock(&c->mutex);
	uint32_t current = c->current;
	const rs__root *r = current < RS_SETS_MAX && c->slot[current].set != NULL ? c->slot[current].set->root : NULL;
	if (r != NULL && (r->dev != (uint64_t)st.st_dev || r->ino != (uint64_t)st.st_ino)) __atomic_store_n(&c->stale, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&c->mutex);
}

rs__inline int64_t rs__period(int64_t max_age) {
	int64_t p = max_age > 0 ? max_age / 8 : 1000000000;
	return p < 10000000 ? 10000000 : p > 1000000000 ? 1000000000 : p;
}

static void *rs__timer(void *arg) {
	rs_client *c = (rs_client *)arg;
	pthread_mutex_lock(&c->timer_mutex);
	while (!c->stopping) {
		struct timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		int64_t at = t.tv_nsec + rs__period(__atomic_load_n(&c->max_age, __ATOMIC_RELAXED));
		t.tv_sec += (time_t)(at / 1000000000);
		t.tv_nsec = (long)(at % 1000000000);
		pthread_cond_timedwait(&c->timer_cond, &c->timer_mutex, &t);
		if (c->stopping) break;
		pthread_mutex_unlock(&c->timer_mutex);
		rs_tick(c);
		pthread_mutex_lock(&c->timer_mutex);
	}
	pthread_mutex_unlock(&c->timer_mutex);
	return NULL;
}

RS_API void rs_set_max_lock_age(rs_client *c, int64_t ns) {
	__atomic_store_n(&c->max_age, ns < 0 ? 0 : ns, __ATOMIC_RELAXED);
	pthread_mutex_lock(&c->timer_mutex);
	pthread_cond_signal(&c->timer_cond);
	pthread_mutex_unlock(&c->timer_mutex);
}

/* ---- Attach ---- */

static void rs__free(rs_client *c) {
	c->current = RS_SETS_MAX;
	rs__sweep(c);
	pthread_cond_destroy(&c->timer_cond);
	pthread_mutex_destroy(&c->timer_mutex);
	pthread_mutex_destroy(&c->mutex);
	free(c->dir);
	free(c);
}

RS_API int rs_attach(rs_client **out, const char *dir, unsigned flags) {
	if (out == NULL || dir == NULL || *dir == 0) return rs__fail(RS_INVALID, "", 0, "no directory");
	*out = NULL;
	rs_client *c = (rs_client *)calloc(1, sizeof *c);
	char *copy = (char *)malloc(strlen(dir) + 1);
	if (c == NULL || copy == NULL) {
		free(c);
		free(copy);
		return rs__fail(RS_NO_MEMORY, "", 0, "out of memory");
	}
	memcpy(copy, dir, strlen(dir) + 1);
	c->dir = copy;
	c->flags = flags;
	c->max_age = RS_MAX_LOCK_AGE;
	c->current = RS_SETS_MAX;
	c->tick = (uint64_t)rs__clock(CLOCK_MONOTONIC);
	pthread_mutex_init(&c->mutex, NULL);
	pthread_mutex_init(&c->timer_mutex, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->timer_cond, &attr);
	pthread_condattr_destroy(&attr);
	int status = rs__remap(c);
	if (status == RS_OK && !(flags & RS_NO_TIMER)) {
		int e = pthread_create(&c->timer, NULL, rs__timer, c);
		if (e != 0) status = rs__fail(RS_IO, "", 0, "cannot start the timer thread: %s", strerror(e));
		else c->timed = 1;
	}
	if (status != RS_OK) {
		rs__free(c);
		return status;
	}
	*out = c;
	return RS_OK;
}

static uint32_t rs__locked(rs_client *c) {
	uint32_t n = 0;
	for (int i = 0; i < RS_SETS_MAX; i++) n += __atomic_load_n(&c->slot[i].views, __ATOMIC_SEQ_CST);
	return n;
}

RS_API int rs_detach(rs_client *c) {
	if (c == NULL) return RS_OK;
	uint32_t n = rs__locked(c);
	if (n > 0) return rs__fail(RS_BUSY, "", 0, "%u views are locked; unlock them first", n);
	if (c->timed) {
		pthread_mutex_lock(&c->timer_mutex);
		c->stopping = 1;
		pthread_cond_signal(&c->timer_cond);
		pthread_mutex_unlock(&c->timer_mutex);
		pthread_join(c->timer, NULL);
	}
	rs__free(c);
	return RS_OK;
}

RS_API int rs_client_info(rs_client *c, rs_info *out) {
	if (c == NULL || out == NULL) return rs__fail(RS_INVALID, "", 0, "no client");
	memset(out, 0, sizeof *out);
	pthread_mutex_lock(&c->mutex);
	const rs_set *now = c->slot[c->current].set;
	const uint8_t *p = now->root->p;
	memcpy(out->image, p + 24, 16);
	out->minor = now->root->minor;
	out->state = rs__load32(p + RS__STATE);
	out->pid = rs__load32(p + RS__PID);
	out->life = rs__load64(p + RS__LIFE);
	out->heartbeat_age = rs__clock(CLOCK_MONOTONIC) - (int64_t)rs__load64(p + RS__HEARTBEAT);
	out->committed = rs__load64(p + RS__COMMITTED);
	out->views = rs__locked(c);
	for (int i = 0; i < RS_SETS_MAX; i++) {
		const rs_set *set = c->slot[i].set;
		for (int k = 0; set != NULL && k < RS_SHARDS_MAX; k++) {
			const rs_seg *s = set->seg[k];
			int seen = s == NULL;
			for (int j = 0; j < i && !seen; j++) seen = c->slot[j].set != NULL && c->slot[j].set->seg[k] == s;
			if (seen) continue;
			out->mapped_bytes += s->size;
			if (now->seg[k] != s) out->pinned_bytes += s->size;
		}
	}
	pthread_mutex_unlock(&c->mutex);
	return RS_OK;
}

RS_API int rs_huge_bytes(rs_client *c, uint64_t *mapped, uint64_t *huge) {
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	int ours = 0;
	*mapped = *huge = 0;
	if (f == NULL) return rs__fail(RS_IO, "", 0, "cannot read /proc/self/smaps: %s", strerror(errno));
	pthread_mutex_lock(&c->mutex);
	const rs_set *set = c->slot[c->current].set;
	while (fgets(line, sizeof line, f) != NULL) {
		unsigned long long from, to, kb;
		if (sscanf(line, "%llx-%llx", &from, &to) == 2) {
			ours = 0;
			for (int k = 0; k < RS_SHARDS_MAX && !ours; k++) ours = set->seg[k] != NULL && (uintptr_t)set->seg[k]->p == (uintptr_t)from;
			if (ours) *mapped += to - from;
		} else if (ours && (sscanf(line, "ShmemPmdMapped: %llu", &kb) == 1 || sscanf(line, "FilePmdMapped: %llu", &kb) == 1)) {
			*huge += kb * 1024;
		}
	}
	pthread_mutex_unlock(&c->mutex);
	fclose(f);
	return RS_OK;
}

/* ---- Lock ---- */

rs__inline void rs__count_out(rs_client *c, uint32_t slot) {
	uint32_t left = __atomic_sub_fetch(&c->slot[slot].views, 1, __ATOMIC_SEQ_CST);
	if (rs__unlikely(left == 0 && __atomic_load_n(&c->current, __ATOMIC_SEQ_CST) != slot)) {
		pthread_mutex_lock(&c->mutex);
		rs__sweep(c);
		pthread_mutex_unlock(&c->mutex);
	}
}

static int rs__decode_ring(const uint8_t *p, uint64_t version, rs_commit *out) {
	if (rs__u64(p) != version || rs__crc(p, 44) != rs__u32(p + 44)) return 0;
	out->version = version;
	out->closed = rs__u64(p + 8);
	out->event = (int64_t)rs__u64(p + 16);
	out->wall = (int64_t)rs__u64(p + 24);
	out->mono = rs__u64(p + 32);
	out->records = rs__u32(p + 40);
	return 1;
}

rs__inline const uint8_t *rs__ring_at(const rs_set *set, uint64_t version) { return set->root->p + RS__RING + version % RS__RING_SIZE * 64; }

/* rs__closed_at finds the closed timestamp of the newest commit at or below version that has one; 0 when none has. */
static uint64_t rs__closed_at(const rs_set *set, uint64_t version) {
	for (uint64_t v = version; v > 0 && v + RS__RING_SIZE > version; v--) {
		uint8_t entry[64];
		rs_commit commit;
		memcpy(entry, rs__ring_at(set, v), sizeof entry);
		if (rs__decode_ring(entry, v, &commit) && commit.closed != 0) return commit.closed;
	}
	return 0;
}

rs__inline void rs__relax(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* rs__newest returns the newest version that a set can show completely: committed, if table_seq afterwards shows
 * that no exchange of generations has begun, since an exchange may commit too. An exchange takes microseconds, so
 * rs__newest waits for it a little. If the exchange does not end, the newest version seen before is used. 0 means
 * that the caller must load another set. */
rs__inline int rs__newest(rs__slot *slot, const rs_set *set, uint64_t *version) {
	for (int spin = 0;; spin++) {
		uint64_t v = rs__load64(set->root->p + RS__COMMITTED), seq = rs__load64(set->root->p + RS__TABLE_SEQ);
		uint64_t seen = __atomic_load_n(&slot->seen, __ATOMIC_RELAXED);
		if (rs__likely(seq == set->seq)) {
			/* A concurrent lock may have stored a newer one; an older one does no harm but to be older. */
			if (v > seen) __atomic_store_n(&slot->seen, v, __ATOMIC_RELAXED);
			*version = v;
			return 1;
		}
		if (seq != set->seq + 1) return 0;
		if (spin == 2000) {
			*version = seen;
			return 1;
		}
		rs__relax();
	}
}

/* rs__settle sets the version of a view. First looks are disabled if the version is so far from a base that an
 * aborted record would compare as older. */
static void rs__settle(rs_view *v, uint64_t version) {
	v->version = version;
	v->plain = version - v->set->least < RS__ABORTED ? version + 1 : 0;
	memcpy(v->ring, rs__ring_at(v->set, version), sizeof v->ring);
}

RS_API int rs_lock(rs_client *c, rs_view *v) {
	if (rs__unlikely(c == NULL || v == NULL)) return rs__fail(RS_INVALID, "", 0, "no client or no view");
	v->client = NULL;
	for (;;) {
		uint32_t slot = __atomic_load_n(&c->current, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&c->slot[slot].views, 1, __ATOMIC_SEQ_CST);
		if (rs__unlikely(__atomic_load_n(&c->current, __ATOMIC_SEQ_CST) != slot)) {
			rs__count_out(c, slot);
			continue;
		}
		const rs_set *set = c->slot[slot].set;
		uint64_t version = 0;
		if (rs__unlikely(__atomic_load_n(&c->stale, __ATOMIC_RELAXED) || !rs__newest(&c->slot[slot], set, &version))) {
			rs__count_out(c, slot);
			int status = rs__remap(c);
			if (status != RS_OK) return status;
			continue;
		}
		if (rs__unlikely(version < set->base)) {
			rs__count_out(c, slot);
			return rs__fail(RS_CORRUPT, "root", RS__COMMITTED, "version %" PRIu64 " lies before the base %" PRIu64 " of a generation", version, set->base);
		}
		v->set = set;
		v->slot = slot;
		rs__settle(v, version);
		break;
	}
	v->closed = UINT64_MAX;
	v->now = rs__clock(CLOCK_REALTIME_COARSE);
	v->locked = (uint64_t)rs__clock(CLOCK_MONOTONIC_COARSE);
	int64_t age = __atomic_load_n(&c->max_age, __ATOMIC_RELAXED);
	v->deadline = age > 0 ? v->locked + (uint64_t)age : RS__NEVER;
	if (c->flags & RS_NO_TIMER) __atomic_store_n(&c->tick, v->locked, __ATOMIC_RELAXED);
	v->client = c;
	return RS_OK;
}

RS_API int rs_lock_closed(rs_client *c, rs_view *v) {
	uint64_t have = 0, want = 0;
	int overtaken = 1; /* the ring may have gone round since the version was read */
	for (int try_ = 0; overtaken && try_ < RS__CLOSED_TRIES; try_++) {
		int status = rs_lock(c, v);
		if (status != RS_OK) return status;
		have = rs__closed_at(v->set, v->version);
		want = v->set->closed;
		if (have != 0 && have >= want) {
			v->plain = 0;
			v->closed = have;
			return RS_OK;
		}
		overtaken = rs__load64(v->set->root->p + RS__COMMITTED) != v->version;
		rs_unlock(v);
	}
	if (have == 0) return rs__fail(RS_UNAVAILABLE, "root", RS__RING, "none of the last %d commits has a closed timestamp; use rs_lock", (int)RS__RING_SIZE);
	return rs__fail(RS_UNAVAILABLE, "root", RS__RING, "a generation was built at closed timestamp %" PRIu64 ", the newest commit has %" PRIu64, want, have);
}

RS_API int rs_lock_version(rs_client *c, rs_view *v, uint64_t version) {
	int status = rs_lock(c, v);
	if (status != RS_OK) return status;
	uint64_t newest = v->version, oldest = v->set->base;
	if (version > newest || version < oldest) {
		rs_unlock(v);
		return rs__fail(RS_UNAVAILABLE, "root", RS__COMMITTED, "version %" PRIu64 " cannot be had: the image has %" PRIu64 " to %" PRIu64, version, oldest, newest);
	}
	rs__settle(v, version);
	return RS_OK;
}

RS_API void rs_unlock(rs_view *v) {
	if (v == NULL || v->client == NULL) return;
	rs_client *c = v->client;
	v->client = NULL;
	rs__count_out(c, v->slot);
}

rs__cold static int rs__refuse(const rs_view *v) {
	if (v == NULL || v->client == NULL) return rs__fail(RS_INVALID, "", 0, "the view is not locked");
	return rs__fail(RS_EXPIRED, "", 0, "the view is older than %g s, the greatest lock age; unlock it and lock another",
		(double)__atomic_load_n(&v->client->max_age, __ATOMIC_RELAXED) / 1e9);
}

/* rs__usable reports whether the view may be read: one load, of a word that the timer thread writes now and then. */
rs__inline int rs__usable(const rs_view *v) {
	return rs__likely(v != NULL && v->client != NULL && __atomic_load_n(&v->client->tick, __ATOMIC_RELAXED) <= v->deadline);
}

RS_API uint64_t rs_version(const rs_view *v) { return v->version; }
RS_API uint64_t rs_closed(const rs_view *v) { return v->closed == UINT64_MAX ? 0 : v->closed; }
RS_API int64_t rs_age(const rs_view *v) {
	return v->client == NULL ? 0 : rs__clock(CLOCK_MONOTONIC) - (int64_t)v->locked;
}

RS_API int rs_view_commit(const rs_view *v, rs_commit *out) {
	if (!rs__usable(v)) return rs__refuse(v);
	return rs__decode_ring(v->ring, v->version, out) ? RS_OK : RS_NOT_FOUND;
}

RS_API int rs_staleness(const rs_view *v, int64_t *ns) {
	rs_commit commit;
	memset(&commit, 0, sizeof commit);
	int status = rs_view_commit(v, &commit);
	if (status == RS_OK) *ns = rs__clock(CLOCK_MONOTONIC) - (int64_t)commit.mono;
	return status;
}

RS_API int rs_table_by_name(const rs_view *v, const char *name, const rs_table **out) {
	if (!rs__usable(v)) return rs__refuse(v);
	for (unsigned i = 0; i < v->set->tables; i++)
		if (strcmp(v->set->table[i].name, name) == 0) {
			*out = &v->set->table[i];
			return RS_OK;
		}
	*out = NULL;
	rs__fail(RS_NOT_FOUND, "root", RS__TABLES, "the image has no table %.100s; was it created to be published?", name);
	return RS_NOT_FOUND;
}

RS_API const rs_table *rs_table_at(const rs_view *v, unsigned i) {
	return v != NULL && v->client != NULL && i < v->set->tables ? &v->set->table[i] : NULL;
}

RS_API uint64_t rs_table_live(const rs_view *v, const rs_table *t) {
	uint64_t n = 0;
	if (v == NULL || v->client == NULL) return 0;
	for (uint32_t i = 0; i < t->shard_count; i++) n += rs__load64(t->segs[i]->p + RS__SEG_LIVE);
	return n;
}

/* ---- Records ---- */

rs__cold static int rs__bad(const rs_seg *s, const void *at, const char *what) {
	return rs__fail(RS_CORRUPT, s->file, (uint64_t)((const uint8_t *)at - s->p), "%s; restart the node to check and rebuild the image", what);
}

rs__inline uint32_t rs__ver(const uint8_t *rec) { return __atomic_load_n((const uint32_t *)(const void *)(rec + 8), __ATOMIC_RELAXED); }
rs__inline uint32_t rs__prev(const uint8_t *rec) { return rs__u32(rec + 12); }
rs__inline uint32_t rs__box_at(uint32_t flags) { return RS__HEAD + (flags & RS__HLC) / 2 + (flags & RS__EXPIRY) * 2; }
rs__inline uint32_t rs__name_at(uint32_t flags) { return rs__box_at(flags) + (flags & RS__BOX) * 8; }
rs__inline uint64_t rs__hlc(const uint8_t *rec) { return rs__flags(rec) & RS__HLC ? rs__u64(rec + RS__HEAD) : 0; }

rs__inline rs_box32 rs__box(const uint8_t *rec, uint32_t flags) {
	rs_box32 b;
	memcpy(&b, rec + rs__box_at(flags), sizeof b);
	return b;
}

/* rs__room returns the number of bytes from a record to the end of the heap. */
rs__inline uint64_t rs__room(const rs_seg *s, const uint8_t *rec) { return s->heap_bytes - (uint64_t)(rec - s->heap); }

/* rs__name returns the key of a record of a KeyName table, or NULL if it runs past the heap. The fixed parts of a
 * record, 64 bytes at most, are always in the heap, since records begin at multiples of 64. */
rs__inline const uint8_t *rs__name(const rs_seg *s, const uint8_t *rec, uint32_t *len, int *shard_key) {
	uint32_t at = rs__name_at(rs__flags(rec));
	uint64_t room = rs__room(s, rec);
	if (rs__unlikely(at >= room)) return NULL;
	uint32_t n = rec[at];
	*shard_key = n == RS__SHARD_KEY;
	if (*shard_key) n = 16;
	if (rs__unlikely(n + 1 > room - at)) return NULL;
	*len = n;
	return rec + at + 1;
}

/* The key of a look-up: word is the number, or the hash of the name. */
typedef struct rs__key {
	uint64_t word;
	const uint8_t *name;
	uint32_t len;
	int named, shard_key;
} rs__key;

rs__inline int rs__same(const rs_seg *s, const uint8_t *rec, const rs__key *key) {
	if (rs__u64(rec) != key->word) return 0;
	if (!key->named) return 1;
	uint32_t len = 0;
	int shard_key = 0;
	const uint8_t *name = rs__name(s, rec, &len, &shard_key);
	return name != NULL && len == key->len && shard_key == key->shard_key && memcmp(name, key->name, len) == 0;
}

static uint64_t rs__hash_name(const rs_table *t, const uint8_t *p, uint32_t len, int shard_key) {
	uint64_t h = rs__mum(t->seed0 ^ (shard_key ? (uint32_t)RS__SHARD_KEY : len), t->seed1), w = 0;
	for (; len >= 8; len -= 8, p += 8) h = rs__mum(h ^ rs__u64(p), t->seed1);
	if (len > 0) {
		memcpy(&w, p, len);
		h = rs__mum(h ^ w, t->seed1);
	}
	return rs__mum(h ^ UINT64_C(0x2d358dccaa6c78a5), t->seed1);
}

rs__inline uint64_t rs__hash_number(const rs_table *t, uint64_t key) { return rs__mum(key ^ t->seed0, t->seed1); }
rs__inline uint16_t rs__fingerprint(uint64_t hash) { return (uint16_t)((uint16_t)hash + ((uint16_t)hash == 0)); }
rs__inline const rs_seg *rs__seg_of(const rs_table *t, uint64_t hash) { return t->segs[(hash >> 16) & (t->shard_count - 1u)]; }
rs__inline const uint8_t *rs__bucket_of(const rs_seg *s, uint64_t hash) {
	return s->index + (uint64_t)(((rs__u128)hash * s->buckets) >> 64) * 64;
}

/* rs__match returns the slots of a bucket that have a fingerprint, one bit each. The words may change meanwhile: a
 * visible fingerprint was stored after its reference, and the record is compared with the key anyway. */
rs__inline uint32_t rs__match(const uint8_t *bucket, uint16_t fp) {
#if defined(__x86_64__) /* after the ten there are zeros, which are not a fingerprint */
	__m128i want = _mm_set1_epi16((short)fp);
	__m128i a = _mm_cmpeq_epi16(_mm_load_si128((const __m128i *)(const void *)bucket), want);
	__m128i b = _mm_cmpeq_epi16(_mm_cvtsi32_si128((int)rs__u32(bucket + 16)), want);
	return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(a, b));
#elif defined(__aarch64__)
	static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
	uint16x8_t a = vceqq_u16(vld1q_u16((const uint16_t *)(const void *)bucket), vdupq_n_u16(fp));
	uint32_t m = vaddvq_u16(vandq_u16(a, vld1q_u16(bit)));
	m |= (uint32_t)(rs__u16(bucket + 16) == fp) << 8 | (uint32_t)(rs__u16(bucket + 18) == fp) << 9;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return m;
#else
	uint32_t m = 0;
	for (uint32_t i = 0; i < RS__SLOTS; i++) m |= (uint32_t)(rs__u16(bucket + 2 * i) == fp) << i;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return m;
#endif
}

rs__inline uint32_t rs__slot_ref(const uint8_t *bucket, uint64_t slot) { return rs__load32((const uint32_t *)(const void *)(bucket + 20) + slot); }

/* rs__find returns the newest record of a key; NULL, with *status RS_NOT_FOUND or an error. */
rs__inline const uint8_t *rs__find(const rs_seg *s, uint64_t hash, const rs__key *key, int *status) {
	const uint8_t *b = rs__bucket_of(s, hash);
	uint16_t fp = rs__fingerprint(hash);
	for (uint32_t steps = 0; steps < s->buckets_max; steps++) {
		for (uint32_t m = rs__match(b, fp); m != 0; m &= m - 1) {
			uint32_t ref = rs__slot_ref(b, (uint32_t)__builtin_ctz(m));
			if (rs__unlikely(ref >= s->units)) {
				*status = rs__bad(s, b, "a reference points past the heap");
				return NULL;
			}
			const uint8_t *rec = s->heap + (uint64_t)ref * RS__UNIT;
			rs__prefetch(rec + 64); /* most records end there */
			if (rs__likely(rs__same(s, rec, key))) return rec;
		}
		uint32_t next = rs__load32(b + 60);
		if (rs__likely(next == 0)) {
			*status = RS_NOT_FOUND;
			return NULL;
		}
		if (rs__unlikely(next < s->buckets || next >= s->buckets_max)) {
			*status = rs__bad(s, b, "a bucket is followed by one that does not exist");
			return NULL;
		}
		b = s->index + (uint64_t)next * 64;
	}
	*status = rs__bad(s, b, "a chain of buckets runs in a circle");
	return NULL;
}

/* rs__limit is the view's version relative to a generation. */
rs__inline uint32_t rs__limit(const rs_view *v, const rs_seg *s) {
	uint64_t d = v->version - s->base; /* not negative: see rs_lock */
	return d < UINT32_MAX ? (uint32_t)d : UINT32_MAX - 1;
}

rs__inline int rs__shown(const rs_view *v, const uint8_t *rec, uint32_t limit) {
	return rs__ver(rec) <= limit && rs__likely(v->closed == UINT64_MAX || rs__hlc(rec) <= v->closed);
}

/* rs__visible follows the chain of versions to the one that the view shows; tombstones and expired ones too. NULL, with
 * *status RS_NOT_FOUND or an error. */
rs__inline const uint8_t *rs__visible(const rs_view *v, const rs_seg *s, const uint8_t *rec, int *status) {
	uint32_t limit = rs__limit(v, s);
	while (rs__unlikely(!rs__shown(v, rec, limit))) {
		uint32_t prev = rs__prev(rec);
		if (prev == RS__NONE) {
			*status = RS_NOT_FOUND;
			return NULL;
		}
		const uint8_t *before = s->heap + (uint64_t)prev * RS__UNIT;
		if (rs__unlikely(before >= rec)) { /* earlier versions lie lower, so that every chain ends */
			*status = rs__bad(s, rec, "a chain of versions leads upwards");
			return NULL;
		}
		rec = before;
	}
	return rec;
}

rs__inline int rs__gone(const rs_view *v, const uint8_t *rec) {
	uint32_t flags = rs__flags(rec);
	if (rs__likely(!(flags & (RS__TOMBSTONE | RS__EXPIRY)))) return 0;
	return flags & RS__TOMBSTONE || (int64_t)rs__u64(rec + RS__HEAD + (flags & RS__HLC) / 2) <= v->now;
}

/* rs__extent returns the offset and the length of the value, or an error. */
rs__inline int rs__extent(const rs_seg *s, const uint8_t *rec, uint32_t *at, uint32_t *len) {
	uint64_t room = rs__room(s, rec);
	uint32_t n = rs__u16(rec + 16), from = rs__name_at(rs__flags(rec));
	if (s->kind == RS_KEY_NAME) {
		uint32_t name_len = 0;
		int shard_key = 0;
		if (rs__unlikely(rs__name(s, rec, &name_len, &shard_key) == NULL)) return rs__bad(s, rec, "a key runs past the heap");
		from += 1 + name_len;
	}
	if (rs__unlikely(n == RS__LONG)) { /* the length stands before the value */
		if (from + 4 > room) return rs__bad(s, rec, "a value runs past the heap");
		n = rs__u32(rec + from);
		from += 4;
	}
	if (rs__unlikely(from > room || n > room - from)) return rs__bad(s, rec, "a value runs past the heap");
	*at = from;
	*len = n;
	return RS_OK;
}

rs__cold static int rs__check_sum(const rs_seg *s, const uint8_t *rec, uint32_t size) {
	if (rs__record_sum(rec, size) == rs__u32(rec + 20)) return RS_OK;
	return rs__ver(rec) == RS__ABORTED ? RS_OK : rs__bad(s, rec, "a record does not match its checksum"); /* it has that of before */
}

rs__cold static int rs__check_record(const rs_seg *s, const uint8_t *rec) {
	uint32_t at = 0, len = 0;
	int status = rs__extent(s, rec, &at, &len);
	return status == RS_OK ? rs__check_sum(s, rec, at + len) : status;
}

rs__inline int rs__checked(const rs_table *t) { return rs__unlikely(t->checked); }

/* rs__check_chain checks the records from the newest of a key to the one that the view shows, NULL for none: a damaged version
 * number, link or tombstone would lead to another version, or to none. rs__visible has been through, so that the chain ends. */
rs__cold static int rs__check_chain(const rs_seg *s, const uint8_t *newest, const uint8_t *shown) {
	for (const uint8_t *rec = newest;; rec = s->heap + (uint64_t)rs__prev(rec) * RS__UNIT) {
		int status = rs__check_record(s, rec);
		if (status != RS_OK || rec == shown || rs__prev(rec) == RS__NONE) return status;
	}
}

/* rs__absent ends the search for a key that the index does not have. In a table whose checksums are checked it checks the
 * records that have the fingerprint of the key: one of them may be the key's, with a damaged key. */
rs__cold static int rs__absent(const rs_table *t, const rs_seg *s, uint64_t hash) {
	const uint8_t *b = rs__bucket_of(s, hash);
	while (t->checked) { /* rs__find has been through, so that the chain ends */
		for (uint32_t m = rs__match(b, rs__fingerprint(hash)); m != 0; m &= m - 1) {
			uint32_t ref = rs__slot_ref(b, (uint32_t)__builtin_ctz(m));
			int status = ref < s->units ? rs__check_record(s, s->heap + (uint64_t)ref * RS__UNIT) : RS_OK;
			if (status != RS_OK) return status;
		}
		uint32_t next = rs__load32(b + 60);
		if (next < s->buckets || next >= s->buckets_max) break;
		b = s->index + (uint64_t)next * 64;
	}
	return RS_NOT_FOUND;
}

rs__inline int rs__fill(const rs_table *t, const rs_seg *s, const uint8_t *rec, rs_value *out) {
	uint32_t at = 0, len = 0;
	int status = rs__extent(s, rec, &at, &len);
	if (rs__likely(status == RS_OK) && rs__checked(t)) status = rs__check_sum(s, rec, at + len);
	if (rs__unlikely(status != RS_OK)) {
		memset(out, 0, sizeof *out);
		return out->status = status;
	}
	out->data = rec + at;
	out->len = len;
	out->version = s->base + rs__ver(rec);
	out->record = rec;
	return out->status = RS_OK;
}

rs__inline int rs__miss(rs_value *out, int status) {
	memset(out, 0, sizeof *out);
	return out->status = status;
}

/* rs__lost is for a key whose record was not found. */
rs__inline int rs__lost(const rs_table *t, const rs_seg *s, uint64_t hash, int status, rs_value *out) {
	return rs__miss(out, status == RS_NOT_FOUND && rs__checked(t) ? rs__absent(t, s, hash) : status);
}

rs__inline int rs__emit(const rs_view *v, const rs_table *t, const rs_seg *s, const uint8_t *newest, rs_value *out) {
	int status = RS_OK;
	const uint8_t *rec = rs__visible(v, s, newest, &status);
	if (rs__checked(t) && (rec != NULL || status == RS_NOT_FOUND)) {
		int damage = rs__check_chain(s, newest, rec);
		if (damage != RS_OK) return rs__miss(out, damage);
	}
	if (rec == NULL) return rs__miss(out, status);
	if (rs__gone(v, rec)) return rs__miss(out, RS_NOT_FOUND);
	return rs__fill(t, s, rec, out);
}

rs__cold static int rs__wrong_kind(const rs_table *t) {
	return rs__fail(RS_INVALID, "", 0, "table %.128s is read by %s", t->name, t->kind == RS_KEY_NUMBER ? "number" : "name");
}

/* ---- The first look ----
 *
 * Nearly every look-up finds its record in the first slot that has its fingerprint, in the version that the view shows,
 * with a value that does not expire. While it waits for memory, the processor starts the following look-ups, as many as
 * fit into its queues. So a first look has few instructions, no loop and no call, and waits for nothing that it can
 * predict; all other keys take the slow path. */

rs__inline const rs__shard *rs__shard_of(const rs_table *t, uint64_t hash) { return t->shards + ((hash >> 16) & (t->shard_count - 1u)); }

rs__inline const uint8_t *rs__first_bucket(const rs__shard *d, uint64_t hash) {
	return d->index + (uint64_t)(((rs__u128)hash * d->buckets) >> 64) * 64;
}

/* rs__guess returns the record of the first slot that has the fingerprint; NULL if there is none, or if it is so
 * close to the end of the heap that its length needs a check. */
rs__inline const uint8_t *rs__guess(const rs__shard *d, const uint8_t *bucket, uint64_t hash) {
	uint32_t m = rs__match(bucket, rs__fingerprint(hash));
	if (rs__unlikely(m == 0)) return NULL;
	uint32_t ref = rs__slot_ref(bucket, (uint64_t)__builtin_ctzll(m));
	return rs__likely(ref < d->units) ? d->heap + (uint64_t)ref * RS__UNIT : NULL;
}

rs__inline int rs__same_name(const uint8_t *name, const rs__key *key) {
	return name[0] == (key->shard_key ? (uint32_t)RS__SHARD_KEY : key->len) && memcmp(name + 1, key->name, key->len) == 0;
}

/* rs__plain returns the value of a record that needs no second look. Expected flags are only compared, together with
 * the adjacent length, so the address of the value does not depend on the loaded flags. */
rs__inline int rs__plain(const rs_view *v, const rs__shard *d, const uint8_t *rec, const rs__key *key, rs_value *out) {
	uint64_t version = d->base + rs__ver(rec);
	uint32_t len = rs__u32(rec + 16) - d->flags, at = d->at;
	if (rs__unlikely(rs__u64(rec) != key->word || version >= v->plain)) return 0;
	if (rs__unlikely(len >= RS__LONG)) {
		len = rs__u16(rec + 16);
		at = rs__plain_at[rs__flags(rec) & 0xff];
		if (at == 0 || len == RS__LONG) return 0;
	}
	if (key->named) {
		if (rs__unlikely(!rs__same_name(rec + at, key))) return 0;
		at += 1 + key->len;
	}
	out->data = rec + at;
	out->len = len;
	out->status = RS_OK;
	out->version = version;
	out->record = rec;
	return 1;
}

/* rs__look takes a first look. */
rs__inline int rs__look(const rs_view *v, const rs_table *t, uint64_t hash, const rs__key *key, rs_value *out) {
	const rs__shard *d = rs__shard_of(t, hash);
	const uint8_t *rec = rs__guess(d, rs__first_bucket(d, hash), hash);
	if (rs__unlikely(rec == NULL)) return 0;
	rs__prefetch(rec + RS__UNIT); /* most records end there */
	return rs__likely(rs__plain(v, d, rec, key, out));
}

/* rs__look_on looks a key up the long way. */
rs__inline int rs__look_on(const rs_view *v, const rs_table *t, uint64_t hash, const rs__key *key, rs_value *out) {
	const rs_seg *s = rs__seg_of(t, hash);
	int status = RS_OK;
	const uint8_t *rec = rs__find(s, hash, key, &status);
	return rec != NULL ? rs__emit(v, t, s, rec, out) : rs__lost(t, s, hash, status, out);
}

/* rs__get continues when a first look was not enough, or not allowed. It is separate from rs_get, which would
 * otherwise have to save registers. */
static __attribute__((noinline)) int rs__get(const rs_view *v, const rs_table *t, uint64_t number, rs_value *out) {
	if (!rs__usable(v)) return rs__miss(out, rs__refuse(v));
	if (rs__unlikely(t->kind != RS_KEY_NUMBER)) return rs__miss(out, rs__wrong_kind(t));
	rs__key key = {number, NULL, 0, 0, 0};
	return rs__look_on(v, t, rs__hash_number(t, number), &key, out);
}

RS_API int rs_get(const rs_view *v, const rs_table *t, uint64_t number, rs_value *out) {
	rs__key key = {number, NULL, 0, 0, 0};
	if (rs__usable(v) && rs__likely(t->kind == RS_KEY_NUMBER) && rs__look(v, t, rs__hash_number(t, number), &key, out)) return RS_OK;
	return rs__get(v, t, number, out);
}

static int rs__get_name(const rs_view *v, const rs_table *t, const void *name, size_t len, int shard_key, rs_value *out) {
	if (!rs__usable(v)) return rs__miss(out, rs__refuse(v));
	if (rs__unlikely(t->kind != RS_KEY_NAME)) return rs__miss(out, rs__wrong_kind(t));
	if (rs__unlikely(!shard_key && (len == 0 || len > 254))) return rs__miss(out, rs__fail(RS_INVALID, "", 0, "a name has 1 to 254 bytes, this one %zu", len));
	uint64_t hash = rs__hash_name(t, (const uint8_t *)name, (uint32_t)len, shard_key);
	rs__key key = {hash, (const uint8_t *)name, (uint32_t)len, 1, shard_key};
	return rs__look(v, t, hash, &key, out) ? RS_OK : rs__look_on(v, t, hash, &key, out);
}

RS_API int rs_get_name(const rs_view *v, const rs_table *t, const void *name, size_t len, rs_value *out) {
	return rs__get_name(v, t, name, len, 0, out);
}

RS_API int rs_get_shard_key(const rs_view *v, const rs_table *t, const void *key16, rs_value *out) {
	return rs__get_name(v, t, key16, 16, 1, out);
}

/* ---- Many keys ---- */

/* A group of look-ups whose accesses overlap. */
typedef struct rs__batch {
	uint64_t hash[RS__GROUP];
	const rs__shard *shard[RS__GROUP];
	const uint8_t *at[RS__GROUP]; /* the bucket, then the record; NULL for none */
	uint8_t late[RS__GROUP]; /* those that take a second look */
	size_t n, lates;
} rs__batch;

rs__inline void rs__depart(const rs_table *t, uint64_t hash, rs__batch *r, size_t j) {
	const rs__shard *d = rs__shard_of(t, hash);
	const uint8_t *bucket = rs__first_bucket(d, hash);
	rs__prefetch_many(bucket);
	r->hash[j] = hash;
	r->shard[j] = d;
	r->at[j] = bucket;
}

/* rs__first finds the records from the buckets. About one key in a hundred is in an overflow bucket: rs__first waits
 * for that bucket, while the processor starts the following look-ups. */
rs__inline void rs__first(rs__batch *r) {
	for (size_t j = 0; j < r->n; j++) {
		const rs__shard *d = r->shard[j];
		const uint8_t *bucket = r->at[j], *rec = rs__guess(d, bucket, r->hash[j]);
		if (rs__unlikely(rec == NULL)) {
			uint32_t next = rs__load32(bucket + 60);
			if (next - d->buckets < d->overflows) rec = rs__guess(d, d->index + (uint64_t)next * 64, r->hash[j]);
		}
		r->at[j] = rec;
		if (rs__likely(rec != NULL)) {
			rs__prefetch_many(rec);
			rs__prefetch_many(rec + RS__UNIT);
		}
	}
	r->lates = 0;
}

/* rs__land ends a look-up, or begins to fetch the version before where the newest is not the one shown. */
rs__inline int rs__land(const rs_view *v, rs__batch *r, size_t j, const rs__key *key, rs_value *out) {
	const rs__shard *d = r->shard[j];
	const uint8_t *rec = r->at[j];
	if (rs__likely(rec != NULL)) {
		if (rs__likely(rs__plain(v, d, rec, key, out))) return 1;
		uint32_t prev = rs__prev(rec);
		if (prev < d->units) {
			rs__prefetch_many(d->heap + (uint64_t)prev * RS__UNIT);
			rs__prefetch_many(d->heap + (uint64_t)prev * RS__UNIT + RS__UNIT);
		}
	}
	r->late[r->lates++] = (uint8_t)j;
	return 0;
}

/* rs__count adds up what came of the keys of a batch. */
rs__inline void rs__count(int status, int64_t *found, int64_t *failed) {
	*found += status == RS_OK;
	if (rs__unlikely(status < 0) && *failed == 0) *failed = status;
}

RS_API int64_t rs_mget(const rs_view *v, const rs_table *t, const uint64_t *keys, size_t n, rs_value *out) {
	rs__batch r;
	int64_t found = 0, failed = 0;
	if (!rs__usable(v)) return rs__refuse(v);
	if (rs__unlikely(t->kind != RS_KEY_NUMBER)) return rs__wrong_kind(t);
	for (; n > 0; n -= r.n, keys += r.n, out += r.n) {
		r.n = n < RS__GROUP ? n : (size_t)RS__GROUP;
		for (size_t j = 0; j < r.n; j++) rs__depart(t, rs__hash_number(t, keys[j]), &r, j);
		rs__first(&r);
		for (size_t j = 0; j < r.n; j++) {
			rs__key key = {keys[j], NULL, 0, 0, 0};
			found += rs__land(v, &r, j, &key, &out[j]);
		}
		for (size_t i = 0; i < r.lates; i++) {
			size_t j = r.late[i];
			rs__count(rs__get(v, t, keys[j], &out[j]), &found, &failed);
		}
	}
	return failed != 0 ? failed : found;
}

RS_API int64_t rs_mget_names(const rs_view *v, const rs_table *t, const rs_name *keys, size_t n, rs_value *out) {
	rs__batch r;
	int64_t found = 0, failed = 0;
	if (!rs__usable(v)) return rs__refuse(v);
	if (rs__unlikely(t->kind != RS_KEY_NAME)) return rs__wrong_kind(t);
	for (size_t j = 0; j < n; j++)
		if (keys[j].kind == RS_KEY_SHARD ? keys[j].len != 16 : keys[j].len == 0 || keys[j].len > 254)
			return rs__fail(RS_INVALID, "", 0, "name %zu has %u bytes; names have 1 to 254, shard keys 16", j, keys[j].len);
	for (; n > 0; n -= r.n, keys += r.n, out += r.n) {
		r.n = n < RS__GROUP ? n : (size_t)RS__GROUP;
		for (size_t j = 0; j < r.n; j++) rs__depart(t, rs__hash_name(t, (const uint8_t *)keys[j].data, keys[j].len, keys[j].kind == RS_KEY_SHARD), &r, j);
		rs__first(&r);
		for (size_t j = 0; j < r.n; j++) {
			rs__key key = {r.hash[j], (const uint8_t *)keys[j].data, keys[j].len, 1, keys[j].kind == RS_KEY_SHARD};
			found += rs__land(v, &r, j, &key, &out[j]);
		}
		for (size_t i = 0; i < r.lates; i++) {
			size_t j = r.late[i];
			rs__key key = {r.hash[j], (const uint8_t *)keys[j].data, keys[j].len, 1, keys[j].kind == RS_KEY_SHARD};
			rs__count(rs__look_on(v, t, r.hash[j], &key, &out[j]), &found, &failed);
		}
	}
	return failed != 0 ? failed : found;
}

RS_API int rs_position(const rs_view *v, uint32_t region, uint32_t slot, rs_position_t *out) {
	const rs_table *t = NULL;
	rs_value value;
	int status = rs_table_by_name(v, RS__POSITIONS, &t);
	if (status == RS_OK) status = rs_get(v, t, (uint64_t)region << 32 | slot, &value);
	if (status != RS_OK) return status;
	if (value.len != 24) return rs__fail(RS_CORRUPT, "", 0, "the position of range %u/%u has %u bytes, want 24", region, slot, value.len);
	out->epoch = rs__u64(value.data);
	out->seq = rs__u64(value.data + 8);
	out->hlc = rs__u64(value.data + 16);
	return RS_OK;
}

/* ---- Items ---- */

/* rs__item fills in an item from a visible record. */
static int rs__item(const rs_table *t, const rs_seg *s, const uint8_t *rec, rs_item *out) {
	uint32_t flags = rs__flags(rec), at = 0, len = 0;
	int status = rs__extent(s, rec, &at, &len);
	if (status == RS_OK && rs__checked(t)) status = rs__check_sum(s, rec, at + len);
	if (rs__unlikely(status != RS_OK)) return status;
	memset(out, 0, sizeof *out);
	out->value = rec + at;
	out->value_len = len;
	out->version = s->base + rs__ver(rec);
	out->hlc = rs__hlc(rec);
	if (flags & RS__EXPIRY) out->expiry = (int64_t)rs__u64(rec + RS__HEAD + (flags & RS__HLC) / 2);
	if (flags & RS__BOX) {
		out->has_box = 1;
		out->box = rs__box(rec, flags);
	}
	if (s->kind == RS_KEY_NUMBER) {
		out->key_kind = RS_KEY_NUMBER;
		out->number = rs__u64(rec);
		return RS_OK;
	}
	int shard_key = 0;
	out->name = rs__name(s, rec, &out->name_len, &shard_key);
	out->key_kind = shard_key ? RS_KEY_SHARD : RS_KEY_NAME;
	return RS_OK;
}

RS_API int rs_value_item(const rs_view *v, const rs_table *t, const rs_value *value, rs_item *out) {
	if (!rs__usable(v)) return rs__refuse(v);
	if (value->record == NULL) return rs__fail(RS_INVALID, "", 0, "the value was not found");
	const uint8_t *rec = (const uint8_t *)value->record;
	for (uint32_t i = 0; i < t->shard_count; i++) {
		const rs_seg *s = t->segs[i];
		if (rec >= s->heap && rec < s->heap + s->heap_bytes) return rs__item(t, s, rec, out);
	}
	return rs__fail(RS_INVALID, "", 0, "the value is not of this view of table %.128s", t->name);
}

/* rs__current returns the version that the view shows of the key of a record; NULL, with *status RS_OK, if there is
 * none. */
static const uint8_t *rs__current(const rs_view *v, const rs_table *t, const rs_seg *s, const uint8_t *rec, int *status) {
	rs__key key = {rs__u64(rec), NULL, 0, s->kind == RS_KEY_NAME, 0};
	uint64_t hash = key.word;
	*status = rs__checked(t) ? rs__check_record(s, rec) : RS_OK; /* a damaged key would lead to another one's records */
	if (*status != RS_OK) return NULL;
	if (key.named) key.name = rs__name(s, rec, &key.len, &key.shard_key);
	else hash = rs__hash_number(t, key.word);
	if (key.named && key.name == NULL) {
		*status = rs__bad(s, rec, "a key runs past the heap");
		return NULL;
	}
	const uint8_t *newest = rs__find(s, hash, &key, status);
	if (newest == NULL && *status == RS_NOT_FOUND) { /* of a commit that was never finished, unless something is damaged */
		if (rec < s->heap + (uint64_t)s->base_units * RS__UNIT) *status = rs__bad(s, rec, "the key of a base record is not in the index");
		else if (rs__checked(t)) *status = rs__absent(t, s, hash);
	}
	const uint8_t *now = newest != NULL ? rs__visible(v, s, newest, status) : NULL;
	if (rs__checked(t) && newest != NULL && (now != NULL || *status == RS_NOT_FOUND)) {
		int damage = rs__check_chain(s, newest, now);
		if (damage != RS_OK) {
			*status = damage;
			return NULL;
		}
	}
	if (*status == RS_NOT_FOUND) *status = RS_OK;
	return now;
}

/* rs__changed reports whether a base record may have a newer version; without a bitmap it may. */
rs__inline int rs__changed(const rs_seg *s, uint32_t ref) {
	if (s->changed == NULL || ref >= s->base_units) return 1;
	return (int)(rs__load64(s->changed + (uint64_t)(ref / 64) * 8) >> (ref % 64) & 1);
}

/* rs__of_base returns the version that the view shows of the key of a base record, or NULL; a closed view may show
 * an older version. */
static const uint8_t *rs__of_base(const rs_view *v, const rs_table *t, const rs_seg *s, uint32_t ref, int *status) {
	const uint8_t *rec = s->heap + (uint64_t)ref * RS__UNIT;
	*status = RS_OK;
	if (rs__likely(v->closed == UINT64_MAX && !rs__changed(s, ref))) return rec;
	return rs__current(v, t, s, rec, status);
}

/* ---- Boxes ---- */

rs__inline int32_t rs__clamp(double x, int32_t limit) { return (int32_t)(x < -limit ? -limit : x > limit ? limit : x); }

RS_API rs_box rs_box_degrees(rs_box32 b) {
	rs_box d;
	d.min_lat = (double)b.min_y / RS_UNITS_PER_DEGREE;
	d.min_lon = (double)b.min_x / RS_UNITS_PER_DEGREE;
	d.max_lat = (double)b.max_y / RS_UNITS_PER_DEGREE;
	d.max_lon = (double)b.max_x / RS_UNITS_PER_DEGREE;
	return d;
}

RS_API rs_box32 rs_box_units(rs_box d) {
	rs_box32 b;
	b.min_x = rs__clamp(floor(d.min_lon * RS_UNITS_PER_DEGREE), RS__LON_MAX);
	b.min_y = rs__clamp(floor(d.min_lat * RS_UNITS_PER_DEGREE), RS__LAT_MAX);
	b.max_x = rs__clamp(ceil(d.max_lon * RS_UNITS_PER_DEGREE), RS__LON_MAX);
	b.max_y = rs__clamp(ceil(d.max_lat * RS_UNITS_PER_DEGREE), RS__LAT_MAX);
	return b;
}

/* rs__split returns the one or two plain boxes of b: east of min_x, then west of max_x. */
rs__inline uint32_t rs__split(rs_box32 b, rs_box32 part[2]) {
	part[0] = b;
	if (b.min_x <= b.max_x) return 1;
	part[1] = b;
	part[0].max_x = RS__LON_MAX;
	part[1].min_x = -RS__LON_MAX;
	return 2;
}

/* rs__add_meridian adds to the n boxes of a query the edge of the world opposite to the one that they reach: longitudes 180
 * and -180 are one meridian. */
static uint32_t rs__add_meridian(rs_box32 part[4], uint32_t n) {
	uint32_t all = n;
	for (uint32_t i = 0; i < n; i++) {
		rs_box32 edge = part[i];
		if (part[i].max_x == RS__LON_MAX) {
			edge.min_x = edge.max_x = -RS__LON_MAX;
			part[all++] = edge;
		}
		if (part[i].min_x == -RS__LON_MAX) {
			edge.min_x = edge.max_x = RS__LON_MAX;
			part[all++] = edge;
		}
	}
	return all;
}

rs__inline int rs__touch(rs_box32 a, rs_box32 b) { return a.min_x <= b.max_x && b.min_x <= a.max_x && a.min_y <= b.max_y && b.min_y <= a.max_y; }

rs__inline int rs__valid_point(rs_point p) { return p.lat >= -90 && p.lat <= 90 && p.lon >= -180 && p.lon <= 180; }

static int rs__valid_box(rs_box b) {
	rs_point lo = {b.min_lat, b.min_lon}, hi = {b.max_lat, b.max_lon};
	if (rs__valid_point(lo) && rs__valid_point(hi) && b.min_lat <= b.max_lat) return RS_OK;
	return rs__fail(RS_INVALID, "", 0, "%g,%g,%g,%g is no box: south-west and north-east corner, latitude to 90, longitude to 180", b.min_lat, b.min_lon, b.max_lat, b.max_lon);
}

/* ---- The tree ---- */

/* A kernel returns the lanes of a node that touch a box, one bit each. */
typedef uint32_t (*rs__kernel)(const uint8_t *node, const rs_box32 *q);

#if defined(__x86_64__)
/* The four comparisons do not wait for each other, as they would under masks. */
__attribute__((target("avx512f"))) static uint32_t rs__lanes_avx512(const uint8_t *node, const rs_box32 *q) {
	__mmask16 a = _mm512_cmple_epi32_mask(_mm512_loadu_si512(node), _mm512_set1_epi32(q->max_x));
	__mmask16 b = _mm512_cmple_epi32_mask(_mm512_loadu_si512(node + 64), _mm512_set1_epi32(q->max_y));
	__mmask16 c = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(node + 128), _mm512_set1_epi32(q->min_x));
	__mmask16 d = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(node + 192), _mm512_set1_epi32(q->min_y));
	return _mm512_kand(_mm512_kand(a, b), _mm512_kand(c, d));
}

__attribute__((target("avx2"))) static uint32_t rs__lanes_avx2(const uint8_t *node, const rs_box32 *q) {
	uint32_t miss = 0;
	for (int half = 0; half < 2; half++) {
		const uint8_t *p = node + 32 * half;
		__m256i a = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p), _mm256_set1_epi32(q->max_x));
		__m256i b = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p + 64)), _mm256_set1_epi32(q->max_y));
		__m256i c = _mm256_cmpgt_epi32(_mm256_set1_epi32(q->min_x), _mm256_loadu_si256((const __m256i *)(const void *)(p + 128)));
		__m256i d = _mm256_cmpgt_epi32(_mm256_set1_epi32(q->min_y), _mm256_loadu_si256((const __m256i *)(const void *)(p + 192)));
		__m256i any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
		miss |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(any)) << (8 * half);
	}
	return ~miss & 0xffff;
}
#endif

#if defined(__aarch64__)
__attribute__((unused)) static uint32_t rs__lanes_neon(const uint8_t *node, const rs_box32 *q) {
	static const uint32_t bit[4] = {1, 2, 4, 8};
	const int32_t *n = (const int32_t *)(const void *)node;
	uint32_t m = 0;
	for (int i = 0; i < 4; i++) {
		uint32x4_t a = vcleq_s32(vld1q_s32(n + 4 * i), vdupq_n_s32(q->max_x));
		uint32x4_t b = vcleq_s32(vld1q_s32(n + 16 + 4 * i), vdupq_n_s32(q->max_y));
		uint32x4_t c = vcgeq_s32(vld1q_s32(n + 32 + 4 * i), vdupq_n_s32(q->min_x));
		uint32x4_t d = vcgeq_s32(vld1q_s32(n + 48 + 4 * i), vdupq_n_s32(q->min_y));
		m |= vaddvq_u32(vandq_u32(vandq_u32(vandq_u32(a, b), vandq_u32(c, d)), vld1q_u32(bit))) << (4 * i);
	}
	return m;
}
#endif

__attribute__((unused)) static uint32_t rs__lanes_plain(const uint8_t *node, const rs_box32 *q) {
	const int32_t *n = (const int32_t *)(const void *)node;
	uint32_t m = 0;
	for (uint32_t i = 0; i < 16; i++)
		m |= (uint32_t)((n[i] <= q->max_x) & (n[16 + i] <= q->max_y) & (n[32 + i] >= q->min_x) & (n[48 + i] >= q->min_y)) << i;
	return m;
}

rs__inline rs__kernel rs__pick_kernel(void) {
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) return rs__lanes_avx512;
	if (__builtin_cpu_supports("avx2")) return rs__lanes_avx2;
	return rs__lanes_plain;
#elif defined(__aarch64__)
	return rs__lanes_neon;
#else
	return rs__lanes_plain;
#endif
}

static rs_box32 rs__lane(const uint8_t *node, uint32_t lane) {
	rs_box32 b;
	b.min_x = (int32_t)rs__u32(node + 4 * lane);
	b.min_y = (int32_t)rs__u32(node + 64 + 4 * lane);
	b.max_x = (int32_t)rs__u32(node + 128 + 4 * lane);
	b.max_y = (int32_t)rs__u32(node + 192 + 4 * lane);
	return b;
}

/* rs__first_match reports whether a hit is the first of its record: in the order by part of the query, then by part of the
 * record's box. So a record that is found in several ways is given once, and no hit has to be remembered. */
static int rs__first_match(const rs_iter *it, rs_box32 record, int32_t hit_min_x) {
	rs_box32 part[2];
	uint32_t n = rs__split(record, part);
	for (uint32_t i = 0; i < it->at_part; i++)
		for (uint32_t k = 0; k < n; k++)
			if (rs__touch(it->part[i], part[k])) return 0;
	/* The part west of the antimeridian begins at it, which the part east of it cannot do. */
	return n == 1 || hit_min_x != -RS__LON_MAX || !rs__touch(part[0], it->part[it->at_part]);
}

enum { RS__TREE, RS__DELTA, RS__CELL, RS__CHAIN, RS__LARGE, RS__LINEAR, RS__NEXT, RS__END };

static void rs__iter_init(rs_iter *it, const rs_view *v, const rs_table *t, uint32_t parts) {
	it->view = v;
	it->table = t;
	it->parts = parts;
	it->at_part = 0;
	it->shard = it->planted = 0;
	it->waiting = it->leaves = 0;
	it->phase = RS__TREE;
	it->status = RS_OK;
}

/* The trees of all shards are walked together, so that the memory accesses of one do not wait for those of another: a small
 * query takes few nodes of each. A word of the stack is the shard (16 bits), the level (16) and the node; lower levels lie
 * on top. Within the last RS__TREE_RESERVE words nodes are tested one at a time, which needs no more than that. */
#define RS__TREE_RESERVE (RS__LEVELS_MAX * 15)

static const uint8_t *rs__tree_node(const rs_iter *it, uint64_t place) {
	const rs_seg *s = it->table->segs[place >> 48];
	return s->nodes + (uint64_t)(s->first[place >> 32 & 0xffff] + (uint32_t)place) * RS__NODE;
}

/* rs__tree_push puts the children of a node on the stack that the query touches, the first on top, and asks for them. */
rs__inline void rs__tree_push(rs_iter *it, uint64_t place, uint32_t touch) {
	uint64_t first = (place & ~(uint64_t)UINT32_MAX) - ((uint64_t)1 << 32) + (uint32_t)place * 16;
	const rs_seg *s = it->table->segs[place >> 48];
	uint32_t below = s->nodes_at[(place >> 32 & 0xffff) - 1] - (uint32_t)first;
	if (rs__unlikely(below < 16)) touch &= (1u << below) - 1; /* lanes without a child touch nothing, unless they were damaged */
	while (touch != 0) {
		uint32_t lane = 31 - (uint32_t)__builtin_clz(touch);
		const uint8_t *node = rs__tree_node(it, first + lane);
		touch &= ~(1u << lane);
		it->stack[it->waiting++] = first + lane;
		for (int line = 0; line < RS__NODE; line += 64) rs__prefetch(node + line);
		if ((place >> 32 & 0xffff) == 1) rs__prefetch(s->refs + (uint64_t)((uint32_t)place * 16 + lane) * 64);
	}
}

/* rs__tree_leaf keeps a leaf with hits, and asks for their records. */
rs__inline void rs__tree_leaf(rs_iter *it, uint64_t place, uint32_t touch) {
	if (touch == 0) return;
	const rs_seg *s = it->table->segs[place >> 48];
	it->leaf[it->leaves].shard = (uint32_t)(place >> 48);
	it->leaf[it->leaves].node = (uint32_t)place;
	it->leaf[it->leaves++].mask = touch;
	for (; touch != 0; touch &= touch - 1) {
		uint32_t ref = rs__u32(s->refs + 4 * ((uint64_t)(uint32_t)place * 16 + (uint32_t)__builtin_ctz(touch)));
		rs__prefetch_many(s->heap + (uint64_t)ref * RS__UNIT); /* a wrong one does no harm */
	}
}

/* rs__tree_step tests nodes of one level from the top of the stack. It begins with the lowest, so that the top of
 * the stack stays in order and the hits of a tree are found in order: the leaves are read from the last. */
static void rs__tree_step(rs_iter *it, rs__kernel lanes) {
	uint64_t batch[RS_TREE_BATCH];
	uint32_t mask[RS_TREE_BATCH], n = 0, used = it->waiting + RS__TREE_RESERVE + 15;
	uint32_t most = used > RS_TREE_STACK ? 1 : (RS_TREE_STACK - used) / 15 + 1;
	if (most > RS_TREE_BATCH) most = RS_TREE_BATCH;
	while (n < most && it->waiting > 0 && (n == 0 || ((it->stack[it->waiting - 1] ^ batch[0]) >> 32 & 0xffff) == 0)) {
		batch[n] = it->stack[--it->waiting];
		mask[n] = lanes(rs__tree_node(it, batch[n]), &it->part[it->at_part]);
		n++;
	}
	while (n-- > 0) {
		if ((batch[n] >> 32 & 0xffff) == 0) rs__tree_leaf(it, batch[n], mask[n]);
		else rs__tree_push(it, batch[n], mask[n]);
	}
}

/* rs__tree_plant takes the roots of more shards; 0 when all had their turn for this part of the query. */
static int rs__tree_plant(rs_iter *it) {
	while (it->waiting < RS_SHARDS_MAX && it->planted < it->table->shard_count) {
		uint64_t shard = it->planted++, levels = it->table->segs[shard]->levels;
		if (levels > 0) it->stack[it->waiting++] = shard << 48 | (levels - 1) << 32;
	}
	return it->waiting > 0;
}

/* rs__leaf_hit looks at a hit of a tree: 1 and a record, 0 for none, or an error. */
static int rs__leaf_hit(rs_iter *it, const rs_seg **seg, const uint8_t **out) {
	uint32_t node = it->leaf[it->leaves - 1].node, mask = it->leaf[it->leaves - 1].mask, lane = (uint32_t)__builtin_ctz(mask);
	const rs_seg *s = *seg = it->table->segs[it->leaf[it->leaves - 1].shard];
	if ((it->leaf[it->leaves - 1].mask = mask & (mask - 1)) == 0) it->leaves--;
	uint32_t ref = rs__u32(s->refs + 4 * ((uint64_t)node * 16 + lane));
	if (rs__unlikely(ref >= s->units)) return rs__bad(s, s->refs + 4 * ((uint64_t)node * 16 + lane), "a reference points past the heap");
	int status = RS_OK;
	const uint8_t *rec = rs__of_base(it->view, it->table, s, ref, &status);
	if (rec == NULL) return status;
	uint32_t flags = rs__flags(rec);
	if ((flags & (RS__MOVED | RS__BOX)) != RS__BOX || rs__gone(it->view, rec)) return 0;
	rs_box32 box = rs__box(rec, flags);
	if (rs__unlikely(it->parts > 1 || box.min_x > box.max_x)) {
		rs_box32 hit = rs__lane(s->nodes + (uint64_t)(s->first[0] + node) * RS__NODE, lane);
		if (!rs__first_match(it, box, hit.min_x)) return 0;
	}
	*out = rec;
	return 1;
}

rs__inline uint32_t rs__cell_x(int32_t x) { return (uint32_t)((int64_t)x + RS__LON_MAX) >> RS__DELTA_SHIFT; }
rs__inline uint32_t rs__cell_y(int32_t y) { return (uint32_t)((int64_t)y + RS__LAT_MAX) >> RS__DELTA_SHIFT; }

rs__inline uint32_t rs__cell_head(uint32_t cx, uint32_t cy, uint32_t heads) {
	uint32_t h = (cx * 0x9E3779B1u ^ cy * 0x85EBCA77u) * 0xC2B2AE3Du;
	return 1 + (uint32_t)((uint64_t)h * (heads - 1) >> 32);
}

/* rs__delta_begin decides how the delta is read: by the cells that the query covers, or from end to end if there are
 * more cells than entries. A box is in the cell of its lowest corner and is at most one cell wide and high, so the
 * next lower cells matter too; larger boxes are in the chain of head 0. */
static void rs__delta_begin(rs_iter *it, const rs_seg *s) {
	const rs_box32 *q = &it->part[it->at_part];
	uint64_t count = s->delta != NULL ? rs__load64(s->p + RS__SEG_DELTA) : 0;
	it->count = count < s->delta_max ? (uint32_t)count : s->delta_max;
	it->entry = it->steps = 0;
	if (it->count == 0) {
		it->phase = RS__NEXT;
		return;
	}
	it->cx0 = rs__cell_x(q->min_x);
	it->cy0 = rs__cell_y(q->min_y);
	it->cx0 -= it->cx0 > 0;
	it->cy0 -= it->cy0 > 0;
	it->cx1 = rs__cell_x(q->max_x);
	it->cy1 = rs__cell_y(q->max_y);
	it->cx = it->cx0;
	it->cy = it->cy0;
	uint64_t cells = (uint64_t)(it->cx1 - it->cx0 + 1) * (it->cy1 - it->cy0 + 1);
	it->phase = cells > it->count || s->heads < 2 ? RS__LINEAR : RS__LARGE;
	if (it->phase == RS__LARGE) it->entry = rs__load32(s->cells);
}

/* rs__is_part reports whether a plain box is one of the parts of a record's box. */
static int rs__is_part(rs_box32 record, rs_box32 plain) {
	rs_box32 part[2];
	uint32_t n = rs__split(record, part);
	return memcmp(&part[0], &plain, sizeof plain) == 0 || (n == 2 && memcmp(&part[1], &plain, sizeof plain) == 0);
}

/* rs__delta_hit looks at an entry: 1 and a record, 0 for none, or an error. The record's own box decides. */
static int rs__delta_hit(rs_iter *it, const rs_seg *s, const uint8_t *e, const uint8_t **out) {
	rs_box32 box;
	memcpy(&box, e, sizeof box);
	if (!rs__touch(box, it->part[it->at_part]) || rs__u32(e + 24) > rs__limit(it->view, s)) return 0;
	uint32_t ref = rs__u32(e + 16);
	if (rs__unlikely(ref >= s->units)) return rs__bad(s, e, "a reference points past the heap");
	int status = RS_OK;
	const uint8_t *entry = s->heap + (uint64_t)ref * RS__UNIT;
	const uint8_t *rec = rs__current(it->view, it->table, s, entry, &status);
	if (rec == NULL || rec != entry) return status;
	uint32_t flags = rs__flags(rec);
	if ((flags & (RS__MOVED | RS__BOX)) != (RS__MOVED | RS__BOX) || rs__gone(it->view, rec)) return 0;
	if (!rs__is_part(rs__box(rec, flags), box) || !rs__first_match(it, rs__box(rec, flags), box.min_x)) return 0;
	*out = rec;
	return 1;
}

/* rs__chain_step takes the next entry of a chain; several cells share a chain, and each takes only its own. */
static int rs__chain_step(rs_iter *it, const rs_seg *s, const uint8_t **out) {
	uint32_t n = it->entry - 1;
	if (rs__unlikely(n >= s->delta_max || ++it->steps > s->delta_max)) {
		int beyond = n >= s->delta_max;
		return rs__bad(s, s->cells, beyond ? "a chain of the spatial delta leaves it" : "a chain of the spatial delta runs in a circle");
	}
	const uint8_t *e = s->delta + (uint64_t)n * RS__DELTA_ENTRY;
	it->entry = rs__load32(e + 20);
	if (it->phase == RS__CHAIN && (rs__cell_x((int32_t)rs__u32(e)) != it->cx || rs__cell_y((int32_t)rs__u32(e + 4)) != it->cy)) return 0;
	return rs__delta_hit(it, s, e, out);
}

static void rs__next_cell(rs_iter *it) {
	it->phase = RS__CELL;
	if (it->cx++ < it->cx1) return;
	it->cx = it->cx0;
	if (it->cy++ == it->cy1) it->phase = RS__NEXT;
}

/* rs__tree_part advances to the next part of the query, and after the last part to the deltas. */
static void rs__tree_part(rs_iter *it) {
	it->planted = 0;
	if (++it->at_part < it->parts) return;
	it->at_part = 0;
	it->phase = it->table->shard_count > 0 ? RS__DELTA : RS__END;
}

/* rs__iter_next returns 1 and a record with its segment, 0 at the end, or an error. */
static int rs__iter_next(rs_iter *it, const rs_seg **seg, const uint8_t **out) {
	rs__kernel lanes = rs__pick_kernel();
	int status = it->status;
	if (!rs__usable(it->view)) status = rs__refuse(it->view);
	while (status == RS_OK && it->phase != RS__END) {
		const rs_seg *s = it->table->segs[it->shard];
		*seg = s;
		switch (it->phase) {
		case RS__TREE:
			if (it->leaves > 0) status = rs__leaf_hit(it, seg, out);
			else if (it->waiting > 0 || rs__tree_plant(it)) rs__tree_step(it, lanes);
			else rs__tree_part(it);
			break;
		case RS__DELTA:
			rs__delta_begin(it, s);
			break;
		case RS__LINEAR:
			if (it->entry < it->count) status = rs__delta_hit(it, s, s->delta + (uint64_t)it->entry++ * RS__DELTA_ENTRY, out);
			else it->phase = RS__NEXT;
			break;
		case RS__LARGE:
			if (it->entry != 0) status = rs__chain_step(it, s, out);
			else it->phase = RS__CELL;
			break;
		case RS__CELL:
			it->entry = rs__load32(s->cells + 4 * (uint64_t)rs__cell_head(it->cx, it->cy, s->heads));
			it->steps = 0;
			it->phase = RS__CHAIN;
			break;
		case RS__CHAIN:
			if (it->entry != 0) status = rs__chain_step(it, s, out);
			else rs__next_cell(it);
			break;
		case RS__NEXT:
			it->phase = RS__DELTA;
			if (++it->at_part < it->parts) break;
			it->at_part = 0;
			if (++it->shard >= it->table->shard_count) it->phase = RS__END;
			break;
		}
		if (status == 1) return 1;
	}
	it->status = status;
	return status;
}

static int rs__spatial(const rs_view *v, const rs_table *t) {
	if (!rs__usable(v)) return rs__refuse(v);
	if (!(t->flags & RS_TABLE_SPATIAL)) return rs__fail(RS_UNSUPPORTED, "", 0, "table %.128s has no spatial index", t->name);
	return RS_OK;
}

RS_API int rs_bbox_begin(rs_iter *it, const rs_view *v, const rs_table *t, rs_box box) {
	rs__iter_init(it, v, t, 0);
	int status = rs__spatial(v, t);
	if (status == RS_OK) status = rs__valid_box(box);
	if (status == RS_OK) it->parts = rs__add_meridian(it->part, rs__split(rs_box_units(box), it->part));
	if (status != RS_OK) it->phase = RS__END;
	return it->status = status;
}

RS_API int rs_bbox_next(rs_iter *it, rs_item *out) {
	const rs_seg *s = NULL;
	const uint8_t *rec = NULL;
	int more = rs__iter_next(it, &s, &rec);
	if (more != 1) return more;
	int status = rs__item(it->table, s, rec, out);
	return status == RS_OK ? 1 : (it->status = status);
}

RS_API int rs_bbox(const rs_view *v, const rs_table *t, rs_box box, rs_visitor visit, void *context) {
	rs_iter it;
	rs_item item;
	int status = rs_bbox_begin(&it, v, t, box);
	if (status != RS_OK) return status;
	while ((status = rs_bbox_next(&it, &item)) == 1) {
		int stop = visit(context, &item);
		if (stop != 0) return stop;
	}
	return status;
}

/* ---- Circles ---- */

rs__inline double rs__radians(double degrees) { return degrees * (RS__PI / 180); }

/* rs__great returns the great-circle distance in metres (R. W. Sinnott, Virtues of the Haversine, 1984). */
static double rs__great(rs_point a, rs_point b) {
	double sin_lat = sin(rs__radians(b.lat - a.lat) / 2), sin_lon = sin(rs__radians(b.lon - a.lon) / 2);
	double h = sin_lat * sin_lat + cos(rs__radians(a.lat)) * cos(rs__radians(b.lat)) * sin_lon * sin_lon;
	if (h > 1) h = 1;
	return RS__EARTH * (2 * atan2(sqrt(h), sqrt(1 - h)));
}

rs__inline double rs__turn(double degrees) { return degrees < 0 ? degrees + 360 : degrees >= 360 ? degrees - 360 : degrees; }

/* rs__distance returns the metres from a point to the nearest point of a box, which may cross the antimeridian. That
 * point is due north or south if the point is within the longitudes of the box. Otherwise it is on the nearer
 * meridian, at a corner or at the maximum of sin(p)*sin(y) + cos(p)*cos(dlon)*cos(y). */
static double rs__distance(rs_point p, rs_box32 box) {
	rs_box d = rs_box_degrees(box);
	double width = rs__turn(d.max_lon - d.min_lon);
	if (d.max_lon - d.min_lon == 360 || rs__turn(p.lon - d.min_lon) <= width) {
		double lat = p.lat < d.min_lat ? d.min_lat : p.lat > d.max_lat ? d.max_lat : p.lat;
		return RS__EARTH * rs__radians(fabs(p.lat - lat));
	}
	double west = rs__turn(d.min_lon - p.lon), east = rs__turn(p.lon - d.max_lon);
	double dlon = west < east ? west : east;
	rs_point q = {d.min_lat, west < east ? d.min_lon : d.max_lon};
	double nearest = rs__great(p, q), other;
	if (d.min_lat == d.max_lat) return nearest;
	q.lat = d.max_lat;
	other = rs__great(p, q);
	if (other < nearest) nearest = other;
	double top = atan2(sin(rs__radians(p.lat)), cos(rs__radians(p.lat)) * cos(rs__radians(dlon))) * (180 / RS__PI);
	if (top > d.min_lat && top < d.max_lat) {
		q.lat = top;
		other = rs__great(p, q);
		if (other < nearest) nearest = other;
	}
	return nearest;
}

/* rs__circle returns the one or two plain boxes around a circle (J. P. Snyder, Map Projections, 1987: at latitude p an angle d
 * reaches asin(sin(d)/cos(p)) to either side; over a pole, all round). */
static uint32_t rs__circle(rs_point p, double metres, rs_box32 part[2]) {
	const double margin = 1e-6;
	double angle = metres / RS__EARTH * (180 / RS__PI);
	rs_box b = {-90, -180, 90, 180};
	if (angle < 180) {
		double south = p.lat - angle - margin, north = p.lat + angle + margin;
		b.min_lat = south > -90 ? south : -90;
		b.max_lat = north < 90 ? north : 90;
		if (south > -90 && north < 90) {
			double q = sin(rs__radians(angle)) / cos(rs__radians(p.lat));
			double side = asin(q < 1 ? q : 1) * (180 / RS__PI) + margin;
			if (side < 180) {
				b.min_lon = p.lon - side < -180 ? p.lon - side + 360 : p.lon - side;
				b.max_lon = p.lon + side > 180 ? p.lon + side - 360 : p.lon + side;
			}
		}
	}
	return rs__split(rs_box_units(b), part);
}

static int rs__valid_circle(const rs_view *v, const rs_table *t, rs_point centre, double metres) {
	int status = rs__spatial(v, t);
	if (status != RS_OK) return status;
	if (!rs__valid_point(centre)) return rs__fail(RS_INVALID, "", 0, "%g,%g is no place: latitude to 90, longitude to 180", centre.lat, centre.lon);
	if (!(metres >= 0)) return rs__fail(RS_INVALID, "", 0, "a radius of %g metres", metres);
	return RS_OK;
}

RS_API int rs_radius(const rs_view *v, const rs_table *t, rs_point centre, double metres, rs_visitor visit, void *context) {
	rs_iter it;
	rs_item item;
	int status = rs__valid_circle(v, t, centre, metres);
	if (status != RS_OK) return status;
	rs__iter_init(&it, v, t, 0);
	it.parts = rs__circle(centre, metres, it.part);
	while ((status = rs_bbox_next(&it, &item)) == 1) {
		item.distance = rs__distance(centre, item.box);
		if (item.distance > metres) continue;
		int stop = visit(context, &item);
		if (stop != 0) return stop;
	}
	return status;
}

/* rs__nearer orders items by distance, then by key. */
static int rs__key_order(const rs_item *a, const rs_item *b) {
	if (a->key_kind != b->key_kind) return a->key_kind < b->key_kind ? -1 : 1;
	if (a->key_kind == RS_KEY_NUMBER) return a->number < b->number ? -1 : a->number > b->number;
	int c = memcmp(a->name, b->name, a->name_len < b->name_len ? a->name_len : b->name_len);
	return c != 0 ? c : a->name_len < b->name_len ? -1 : a->name_len > b->name_len;
}

static int rs__nearer(const rs_item *a, const rs_item *b) {
	if (a->distance != b->distance) return a->distance < b->distance;
	return rs__key_order(a, b) < 0;
}

/* rs__sink moves item i of a heap of n, farthest on top, to its place. */
static void rs__sink(rs_item *heap, size_t i, size_t n) {
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= n) return;
		if (child + 1 < n && rs__nearer(&heap[child], &heap[child + 1])) child++;
		if (!rs__nearer(&heap[i], &heap[child])) return;
		rs_item swap = heap[i];
		heap[i] = heap[child];
		heap[child] = swap;
		i = child;
	}
}

static void rs__rise(rs_item *heap, size_t i) {
	while (i > 0 && rs__nearer(&heap[(i - 1) / 2], &heap[i])) {
		rs_item swap = heap[i];
		heap[i] = heap[(i - 1) / 2];
		heap[(i - 1) / 2] = swap;
		i = (i - 1) / 2;
	}
}

/* rs__within keeps in out the k nearest items within a radius. */
static int64_t rs__within(const rs_view *v, const rs_table *t, rs_point centre, size_t k, double radius, rs_item *out) {
	rs_iter it;
	rs_item item;
	size_t n = 0;
	int more;
	rs__iter_init(&it, v, t, 0);
	it.parts = rs__circle(centre, radius, it.part);
	while ((more = rs_bbox_next(&it, &item)) == 1) {
		item.distance = rs__distance(centre, item.box);
		if (item.distance > radius) continue;
		if (n < k) {
			out[n] = item;
			rs__rise(out, n++);
		} else if (rs__nearer(&item, &out[0])) {
			out[0] = item;
			rs__sink(out, 0, n);
		}
	}
	return more < 0 ? more : (int64_t)n;
}

/* rs__start returns a radius that likely holds k items: that of the node nearest to the point with room for k in the
 * first shard that has a tree. A bad radius only costs time. */
static double rs__start(const rs_table *t, rs_point p, size_t k) {
	const rs_seg *s = NULL;
	for (uint32_t i = 0; i < t->shard_count && s == NULL; i++) s = t->segs[i]->levels > 0 ? t->segs[i] : NULL;
	if (s == NULL) return RS__PI * RS__EARTH;
	k = k / t->shard_count + 1;
	uint32_t level = s->levels - 1, node = 0;
	for (double leaves = pow(16, level + 1.0); level > 0 && leaves / 16 >= (double)k; level--, leaves /= 16) {
		const uint8_t *at = s->nodes + (uint64_t)(s->first[level] + node) * RS__NODE;
		uint32_t best = 0;
		double nearest = INFINITY;
		for (uint32_t lane = 0; lane < 16 && node * 16 + lane < s->nodes_at[level - 1]; lane++) {
			double d = rs__distance(p, rs__lane(at, lane));
			if (d < nearest) best = lane, nearest = d;
		}
		node = node * 16 + best;
	}
	double radius = 1;
	for (uint32_t lane = 0; lane < 16; lane++) {
		rs_box32 b = rs__lane(s->nodes + (uint64_t)(s->first[level] + node) * RS__NODE, lane);
		if (b.min_x > b.max_x) continue;
		rs_box d = rs_box_degrees(b);
		rs_point lo = {d.min_lat, d.min_lon}, hi = {d.max_lat, d.max_lon};
		radius = fmax(radius, fmax(rs__great(p, lo), rs__great(p, hi)));
	}
	return radius;
}

/* rs_nearest looks in a circle, and in a larger one until k items lie within: what lies outside is farther than they. */
RS_API int64_t rs_nearest(const rs_view *v, const rs_table *t, rs_point centre, size_t k, double metres, rs_item *out) {
	int status = rs__valid_circle(v, t, centre, metres);
	if (status != RS_OK) return status;
	if (k == 0) return 0;
	double limit = fmin(metres, RS__PI * RS__EARTH);
	int64_t n = 0;
	for (double radius = fmin(rs__start(t, centre, k), limit);; radius = fmin(radius, limit)) {
		n = rs__within(v, t, centre, k, radius, out);
		if (n < 0) return n;
		if ((size_t)n == k || radius >= limit) break;
		radius *= fmin(fmax(2, sqrt(2 * (double)k / (n > 0 ? (double)n : 1))), 16);
	}
	for (size_t left = (size_t)n; left > 1; left--) {
		rs_item swap = out[0];
		out[0] = out[left - 1];
		out[left - 1] = swap;
		rs__sink(out, 0, left - 1);
	}
	return n;
}

/* ---- Polygons ---- */

/* Edges are straight in longitude and latitude, as RFC 7946 defines; an edge that spans more than 180 degrees
 * crosses the antimeridian, an edge of exactly 360 degrees is used unchanged. Corners are rounded to units, and all
 * tests are exact in whole numbers. Rings are walked again for every test, so that none has to be stored. */
typedef struct rs__corner {
	int64_t x, y;
} rs__corner;

typedef struct rs__area {
	const rs_ring *rings;
	size_t n;
	rs__corner min, max;
	int64_t middle; /* twice the longitude in the middle of the first ring */
} rs__area;

/* rs__walk goes from corner to corner of a ring. */
typedef struct rs__walk {
	const rs_ring *ring;
	size_t i;
	rs__corner plain, at; /* unchanged, and with longitudes that continue beyond 180 degrees */
} rs__walk;

enum { RS__CORNERS_MAX = 65536 };

#define RS__FULL (INT64_C(2) * RS__LON_MAX)

rs__inline rs__corner rs__round(rs_point p) {
	rs__corner c;
	c.x = rs__clamp(round(p.lon * RS_UNITS_PER_DEGREE), RS__LON_MAX);
	c.y = rs__clamp(round(p.lat * RS_UNITS_PER_DEGREE), RS__LAT_MAX);
	return c;
}

/* rs__walk_begin moves to the first corner, shifted to within half a turn of the middle of the first ring. So all
 * rings are on the same side of the antimeridian, or continue across it in the same way. */
rs__inline rs__walk rs__walk_begin(const rs__area *a, const rs_ring *ring) {
	rs__walk w = {ring, 0, rs__round(ring->corners[0]), {0, 0}};
	w.at = w.plain;
	if (ring != a->rings) {
		if (2 * w.at.x - a->middle > RS__FULL) w.at.x -= RS__FULL;
		else if (2 * w.at.x - a->middle < -RS__FULL) w.at.x += RS__FULL;
	}
	return w;
}

/* rs__walk_next moves to the next corner, after the last to the first again, and then returns 0. */
rs__inline int rs__walk_next(rs__walk *w) {
	if (w->i == w->ring->n) return 0;
	w->i++;
	rs__corner c = rs__round(w->ring->corners[w->i == w->ring->n ? 0 : w->i]);
	int64_t step = c.x - w->plain.x;
	w->plain = c;
	if (step > RS__FULL / 2 && step != RS__FULL) step -= RS__FULL;
	else if (step < -RS__FULL / 2 && step != -RS__FULL) step += RS__FULL;
	w->at.x += step;
	w->at.y = c.y;
	return 1;
}

/* rs__area_add checks a ring and takes it into the bounds. */
static int rs__area_add(rs__area *a, const rs_ring *ring) {
	for (size_t i = 0; i < ring->n; i++)
		if (!rs__valid_point(ring->corners[i])) return rs__fail(RS_INVALID, "", 0, "corner %zu, %g,%g, is no place", i, ring->corners[i].lat, ring->corners[i].lon);
	rs__walk w = rs__walk_begin(a, ring);
	rs__corner first = w.at;
	if (ring == a->rings) a->min = a->max = first;
	do {
		if (w.at.x < a->min.x) a->min.x = w.at.x;
		if (w.at.y < a->min.y) a->min.y = w.at.y;
		if (w.at.x > a->max.x) a->max.x = w.at.x;
		if (w.at.y > a->max.y) a->max.y = w.at.y;
	} while (rs__walk_next(&w));
	if (ring == a->rings) a->middle = a->min.x + a->max.x;
	if (w.at.x != first.x) return rs__fail(RS_INVALID, "", 0, "a ring goes round a pole; cut it along a meridian, up to the pole and back");
	return RS_OK;
}

static int rs__area_make(rs__area *a, const rs_ring *rings, size_t n) {
	if (rings == NULL || n == 0) return rs__fail(RS_INVALID, "", 0, "a polygon without a ring");
	memset(a, 0, sizeof *a);
	a->rings = rings;
	a->n = n;
	size_t left = RS__CORNERS_MAX;
	for (size_t i = 0; i < n; i++) {
		const rs_point *p = rings[i].corners;
		size_t m = p == NULL ? 0 : rings[i].n;
		if (m > 1 && p[0].lat == p[m - 1].lat && p[0].lon == p[m - 1].lon) m--;
		if (m < 3 || m > left) return rs__fail(RS_INVALID, "", 0, "a ring of %zu corners, want 3 at least, and all rings together %d at most", m, (int)RS__CORNERS_MAX);
		left -= m;
		int status = rs__area_add(a, &rings[i]);
		if (status != RS_OK) return status;
	}
	if (a->max.x - a->min.x > RS__FULL) return rs__fail(RS_INVALID, "", 0, "the polygon is wider than 360 degrees of longitude; cut it along a meridian");
	return RS_OK;
}

rs__inline int32_t rs__wrap(int64_t x) {
	while (x > RS__LON_MAX) x -= RS__FULL;
	while (x < -RS__LON_MAX) x += RS__FULL;
	return (int32_t)x;
}

/* rs__area_boxes: one extra unit on either side also finds items on the antimeridian that are stored with the other
 * sign. */
static uint32_t rs__area_boxes(const rs__area *a, rs_box32 part[2]) {
	rs_box32 b = {-RS__LON_MAX, (int32_t)a->min.y, RS__LON_MAX, (int32_t)a->max.y};
	if (a->max.x - a->min.x + 2 < RS__FULL) {
		b.min_x = rs__wrap(a->min.x - 1);
		b.max_x = rs__wrap(a->max.x + 1);
	}
	return rs__split(b, part);
}

/* rs__side returns the side of the line from a to b on which a point is: 1 is left, 0 is on the line. */
rs__inline int rs__side(rs__corner a, rs__corner b, int64_t x, int64_t y) {
	int64_t l = (b.x - a.x) * (y - a.y), r = (x - a.x) * (b.y - a.y);
	return l < r ? -1 : l > r;
}

rs__inline int rs__edge_touches(rs__corner a, rs__corner b, rs__corner lo, rs__corner hi) {
	if ((a.x > b.x ? a.x : b.x) < lo.x || (a.x < b.x ? a.x : b.x) > hi.x || (a.y > b.y ? a.y : b.y) < lo.y || (a.y < b.y ? a.y : b.y) > hi.y) return 0;
	int s = rs__side(a, b, lo.x, lo.y);
	return s == 0 || rs__side(a, b, hi.x, hi.y) != s || rs__side(a, b, lo.x, hi.y) != s || rs__side(a, b, hi.x, lo.y) != s;
}

/* rs__area_touches reports whether a box within the bounds and the polygon have a point in common: either an edge
 * touches the box, or the whole box is on one side, which a ray from its lowest corner determines. */
static int rs__area_touches(const rs__area *area, rs__corner lo, rs__corner hi) {
	int in = 0;
	for (size_t i = 0; i < area->n; i++) {
		rs__walk w = rs__walk_begin(area, &area->rings[i]);
		for (rs__corner a = w.at, b; rs__walk_next(&w); a = b) {
			b = w.at;
			if (rs__edge_touches(a, b, lo, hi)) return 1;
			if ((a.y > lo.y) != (b.y > lo.y) && (rs__side(a, b, lo.x, lo.y) > 0) == (b.y > a.y)) in = !in;
		}
	}
	return in;
}

static int rs__area_meets(const rs__area *a, rs_box32 box) {
	rs_box32 part[2];
	uint32_t n = rs__split(box, part);
	for (uint32_t i = 0; i < n; i++)
		for (int64_t shift = -RS__FULL; shift <= RS__FULL; shift += RS__FULL) {
			rs__corner lo = {part[i].min_x + shift, part[i].min_y}, hi = {part[i].max_x + shift, part[i].max_y};
			if (lo.x < a->min.x) lo.x = a->min.x;
			if (lo.y < a->min.y) lo.y = a->min.y;
			if (hi.x > a->max.x) hi.x = a->max.x;
			if (hi.y > a->max.y) hi.y = a->max.y;
			if (lo.x <= hi.x && lo.y <= hi.y && rs__area_touches(a, lo, hi)) return 1;
		}
	return 0;
}

RS_API int rs_polygon(const rs_view *v, const rs_table *t, const rs_ring *rings, size_t n, rs_visitor visit, void *context) {
	rs_iter it;
	rs_item item;
	rs__area area;
	int status = rs__spatial(v, t);
	if (status == RS_OK) status = rs__area_make(&area, rings, n);
	if (status != RS_OK) return status;
	rs__iter_init(&it, v, t, 0);
	it.parts = rs__area_boxes(&area, it.part);
	while ((status = rs_bbox_next(&it, &item)) == 1) {
		if (!rs__area_meets(&area, item.box)) continue;
		int stop = visit(context, &item);
		if (stop != 0) return stop;
	}
	return status;
}

/* ---- Scans ---- */

/* rs__cursor_key reads the key of the record that a cursor is at. */
static int rs__cursor_key(const rs_seg *s, rs_cursor *c, uint32_t ref, const void *from) {
	if (rs__unlikely(ref >= s->units)) return rs__bad(s, from, "a reference points past the heap");
	c->record = s->heap + (uint64_t)ref * RS__UNIT;
	c->kind = RS_KEY_NUMBER;
	if (s->kind == RS_KEY_NUMBER) {
		c->number = rs__u64(c->record);
		return RS_OK;
	}
	int shard_key = 0;
	c->key = rs__name(s, c->record, &c->len, &shard_key);
	if (rs__unlikely(c->key == NULL)) return rs__bad(s, c->record, "a key runs past the heap");
	c->kind = shard_key ? RS_KEY_SHARD : RS_KEY_NAME;
	return RS_OK;
}

static int rs__cursor_order(const rs_cursor *a, const rs_cursor *b) {
	if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
	if (a->kind == RS_KEY_NUMBER) return a->number < b->number ? -1 : a->number > b->number;
	int c = memcmp(a->key, b->key, a->len < b->len ? a->len : b->len);
	return c != 0 ? c : a->len < b->len ? -1 : a->len > b->len;
}

/* rs__node_ok reports whether a node of the skip list is within its words. */
rs__inline int rs__node_ok(const rs_seg *s, uint32_t word) {
	if (word < RS__ORDER_HEAD || word >= s->words_max - 2) return 0;
	uint32_t height = rs__u32(s->words + 4 * ((uint64_t)word + 1));
	return height >= 1 && height <= RS__ORDER_HEIGHT && height <= s->words_max - 2 - word;
}

rs__inline uint32_t rs__node_next(const rs_seg *s, uint32_t word, uint32_t level) { return rs__load32(s->words + 4 * ((uint64_t)word + 2 + level)); }
rs__inline uint32_t rs__node_height(const rs_seg *s, uint32_t word) { return rs__u32(s->words + 4 * ((uint64_t)word + 1)); }

/* rs__cursor_at puts a delta cursor on a node, or at the end with word 0: 1, 0 or an error. */
static int rs__cursor_at(const rs_seg *s, rs_cursor *c, uint32_t word) {
	c->at = word;
	if (word == 0) return 0;
	if (rs__unlikely(!rs__node_ok(s, word) || word == RS__ORDER_HEAD)) return rs__bad(s, s->words, "the ordered delta has a node that does not fit it");
	int status = rs__cursor_key(s, c, rs__u32(s->words + 4 * (uint64_t)word), s->words + 4 * (uint64_t)word);
	return status == RS_OK ? 1 : status;
}

/* rs__seek_delta puts a cursor on the first key of the skip list that is not before low. */
static int rs__seek_delta(const rs_seg *s, rs_cursor *c, const rs_cursor *low) {
	if (s->words == NULL) return 0;
	uint32_t word = RS__ORDER_HEAD, steps = 0;
	for (int level = RS__ORDER_HEIGHT - 1; level >= 0; level--)
		for (;;) {
			uint32_t next = rs__node_next(s, word, (uint32_t)level);
			if (next == 0) break;
			int status = rs__cursor_at(s, c, next);
			if (status < 0) return status;
			if (rs__node_height(s, next) <= (uint32_t)level || ++steps > s->words_max) return rs__bad(s, s->words, "the ordered delta runs in a circle");
			if (rs__cursor_order(c, low) >= 0) break;
			word = next;
		}
	return rs__cursor_at(s, c, rs__node_next(s, word, 0));
}

static int rs__seek_base(const rs_seg *s, rs_cursor *c, const rs_cursor *low) {
	uint32_t from = 0, to = s->order != NULL ? s->ordered : 0;
	while (from < to) {
		uint32_t mid = from + (to - from) / 2;
		int status = rs__cursor_key(s, c, rs__u32(s->order + 4 * (uint64_t)mid), s->order + 4 * (uint64_t)mid);
		if (status != RS_OK) return status;
		if (rs__cursor_order(c, low) < 0) from = mid + 1;
		else to = mid;
	}
	c->at = from;
	if (s->order == NULL || from >= s->ordered) return 0;
	int status = rs__cursor_key(s, c, rs__u32(s->order + 4 * (uint64_t)from), s->order + 4 * (uint64_t)from);
	return status == RS_OK ? 1 : status;
}

/* rs__wanted reports whether a cursor is still within the prefix. */
rs__inline int rs__wanted(const rs_scan *scan, const rs_cursor *c) {
	if (c->kind == RS_KEY_NUMBER) return c->number <= scan->last;
	if (scan->prefix_len == 0) return 1;
	return c->kind == RS_KEY_NAME && c->len >= scan->prefix_len && memcmp(c->key, scan->prefix, scan->prefix_len) == 0;
}

static void rs__scan_sink(rs_scan *scan, uint32_t i) {
	for (;;) {
		uint32_t child = 2 * i + 1;
		if (child >= scan->live) return;
		if (child + 1 < scan->live && rs__cursor_order(&scan->cursor[scan->heap[child + 1]], &scan->cursor[scan->heap[child]]) < 0) child++;
		if (rs__cursor_order(&scan->cursor[scan->heap[i]], &scan->cursor[scan->heap[child]]) <= 0) return;
		uint16_t swap = scan->heap[i];
		scan->heap[i] = scan->heap[child];
		scan->heap[child] = swap;
		i = child;
	}
}

RS_API int rs_scan_begin(rs_scan *scan, const rs_view *v, const rs_table *t, const void *prefix, size_t len) {
	scan->view = v;
	scan->table = t;
	scan->live = 0;
	scan->prefix = (const uint8_t *)prefix;
	scan->prefix_len = len;
	scan->status = RS_INVALID;
	if (!rs__usable(v)) return scan->status = rs__refuse(v);
	if (!(t->flags & RS_TABLE_ORDERED)) return scan->status = rs__fail(RS_UNSUPPORTED, "", 0, "table %.128s keeps no order", t->name);
	size_t longest = t->kind == RS_KEY_NUMBER ? 8 : 254;
	if (len > longest) return scan->status = rs__fail(RS_INVALID, "", 0, "a prefix of %zu bytes, at most %zu", len, longest);
	rs_cursor low;
	memset(&low, 0, sizeof low);
	low.kind = t->kind;
	low.key = scan->prefix;
	low.len = (uint32_t)len;
	if (t->kind == RS_KEY_NAME && len == 0) low.key = (const uint8_t *)"";
	for (size_t i = 0; t->kind == RS_KEY_NUMBER && i < len; i++) low.number |= (uint64_t)scan->prefix[i] << (56 - 8 * i);
	scan->last = len == 0 ? UINT64_MAX : len == 8 ? low.number : low.number | (UINT64_MAX >> (8 * len));
	for (uint32_t i = 0; i < 2u * t->shard_count; i++) {
		rs_cursor *c = &scan->cursor[i];
		const rs_seg *s = t->segs[i / 2];
		memset(c, 0, sizeof *c);
		c->shard = (uint16_t)(i / 2);
		c->delta = i & 1;
		int there = c->delta ? rs__seek_delta(s, c, &low) : rs__seek_base(s, c, &low);
		if (there < 0) return scan->status = there;
		if (there && rs__wanted(scan, c)) scan->heap[scan->live++] = (uint16_t)i;
	}
	for (uint32_t i = scan->live / 2; i-- > 0;) rs__scan_sink(scan, i);
	return scan->status = RS_OK;
}

/* rs__cursor_step goes to the next key: 1, 0 at the end, or an error. Keys rise, or the list is damaged. */
static int rs__cursor_step(const rs_scan *scan, rs_cursor *c) {
	const rs_seg *s = scan->table->segs[c->shard];
	rs_cursor before = *c;
	int status;
	if (c->delta) {
		status = rs__cursor_at(s, c, rs__node_next(s, c->at, 0));
	} else {
		if (++c->at >= s->ordered) return 0;
		const uint8_t *at = s->order + 4 * (uint64_t)c->at;
		status = rs__cursor_key(s, c, rs__u32(at), at);
		if (status == RS_OK) status = 1;
	}
	if (status == 1 && rs__unlikely(rs__cursor_order(&before, c) >= 0)) return rs__bad(s, c->record, "keys are out of order");
	return status == 1 ? rs__wanted(scan, c) : status;
}

RS_API int rs_scan_next(rs_scan *scan, rs_item *out) {
	const rs_view *v = scan->view;
	const rs_table *t = scan->table;
	if (scan->status == RS_OK && !rs__usable(v)) scan->status = rs__refuse(v);
	while (scan->status == RS_OK && scan->live > 0) {
		rs_cursor *c = &scan->cursor[scan->heap[0]];
		const rs_seg *s = t->segs[c->shard];
		int status = RS_OK;
		const uint8_t *rec = c->delta ? rs__current(v, t, s, c->record, &status) : rs__of_base(v, t, s, (uint32_t)((uint64_t)(c->record - s->heap) / RS__UNIT), &status);
		if (status == RS_OK && rec != NULL && !rs__gone(v, rec)) status = rs__item(t, s, rec, out);
		else rec = NULL;
		int more = status == RS_OK ? rs__cursor_step(scan, c) : status;
		if (more < 0) return scan->status = more;
		if (more == 0) scan->heap[0] = scan->heap[--scan->live];
		rs__scan_sink(scan, 0);
		if (rec != NULL) return 1;
	}
	return scan->status;
}

/* ---- Values ---- */

enum { RS__OPAQUE = 0x11, RS__RECORD = 0x21, RS__FIELDS_MAX = 4096, RS__FIELD_NAME_MAX = 255 };

RS_API int rs_opaque(const uint8_t *value, size_t len, const uint8_t **data, size_t *data_len) {
	if (len == 0 || value[0] != RS__OPAQUE) return rs__fail(RS_INVALID, "", 0, "the value does not hold opaque bytes");
	*data = value + 1;
	*data_len = len - 1;
	return RS_OK;
}

static int rs__uvarint(const uint8_t **at, const uint8_t *end, uint64_t *out) {
	uint64_t x = 0;
	for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
		uint8_t b = *(*at)++;
		if (shift == 63 && b > 1) return 0;
		x |= (uint64_t)(b & 127) << shift;
		if (b < 128) {
			*out = x;
			return 1;
		}
	}
	return 0;
}

RS_API int rs_fields_begin(rs_fields *it, const uint8_t *value, size_t len) {
	memset(it, 0, sizeof *it);
	if (len == 0 || value[0] != RS__RECORD) return rs__fail(RS_INVALID, "", 0, "the value is no record");
	it->at = value + 1;
	it->end = value + len;
	if (!rs__uvarint(&it->at, it->end, &it->left) || it->left > RS__FIELDS_MAX) {
		it->left = 0;
		it->at = it->end;
		return rs__fail(RS_CORRUPT, "", 1, "bad number of fields in a record");
	}
	return RS_OK;
}

rs__cold static int rs__bad_field(rs_fields *it, const char *what) {
	uint64_t left = (uint64_t)(it->end - it->at);
	it->left = 0;
	it->at = it->end;
	return rs__fail(RS_CORRUPT, "", 0, "record: %s, %" PRIu64 " bytes before its end", what, left);
}

RS_API int rs_fields_next(rs_fields *it, rs_field *out) {
	uint64_t n = 0;
	if (it->left == 0) return it->at == it->end ? 0 : rs__bad_field(it, "bytes after the last field");
	if (!rs__uvarint(&it->at, it->end, &n) || n == 0 || n > RS__FIELD_NAME_MAX || n > (uint64_t)(it->end - it->at)) return rs__bad_field(it, "bad length of name");
	out->name = (const char *)it->at;
	out->name_len = (uint32_t)n;
	it->at += n;
	if (it->last != NULL) {
		uint32_t least = it->last_len < out->name_len ? it->last_len : out->name_len;
		int c = memcmp(it->last, out->name, least);
		if (c > 0 || (c == 0 && it->last_len >= out->name_len)) return rs__bad_field(it, "names out of order");
	}
	if (it->at == it->end) return rs__bad_field(it, "no type");
	out->kind = *it->at++;
	switch (out->kind) {
	case RS_FIELD_STRING:
	case RS_FIELD_BYTES:
		if (!rs__uvarint(&it->at, it->end, &n)) return rs__bad_field(it, "bad length of value");
		break;
	case RS_FIELD_INT64:
	case RS_FIELD_FLOAT64:
	case RS_FIELD_TIMESTAMP: n = 8; break;
	case RS_FIELD_BOOL: n = 1; break;
	case RS_FIELD_POINT: n = 16; break;
	case RS_FIELD_BOX: n = 32; break;
	case 0: n = 0; break;
	default: return rs__bad_field(it, "unknown type");
	}
	if (n > (uint64_t)(it->end - it->at)) return rs__bad_field(it, "value is cut short");
	if (out->kind == RS_FIELD_BOOL && *it->at > 1) return rs__bad_field(it, "bool is neither 0 nor 1");
	out->data = it->at;
	out->len = (uint32_t)n;
	it->at += n;
	it->last = (const uint8_t *)out->name;
	it->last_len = out->name_len;
	it->left--;
	return 1;
}

RS_API int rs_field_by_name(const uint8_t *value, size_t len, const char *name, rs_field *out) {
	rs_fields it;
	size_t want = strlen(name);
	int status = rs_fields_begin(&it, value, len);
	if (status != RS_OK) return status;
	while ((status = rs_fields_next(&it, out)) == 1)
		if (out->name_len == want && memcmp(out->name, name, want) == 0) return RS_OK;
	return status == 0 ? RS_NOT_FOUND : status;
}

static int rs__field_of(const uint8_t *value, size_t len, const char *name, uint32_t kind, rs_field *f) {
	int status = rs_field_by_name(value, len, name, f);
	if (status == RS_OK && f->kind != kind) return rs__fail(RS_INVALID, "", 0, "field %.100s has type %u, not %u", name, f->kind, kind);
	return status;
}

static double rs__be_double(const uint8_t *p) {
	uint64_t u = rs__be64(p);
	double d;
	memcpy(&d, &u, 8);
	return d;
}

RS_API int64_t rs_as_int64(const rs_field *f) {
	if (f->kind == RS_FIELD_BOOL) return f->data[0];
	return f->kind == RS_FIELD_INT64 || f->kind == RS_FIELD_TIMESTAMP ? (int64_t)rs__be64(f->data) : 0;
}

RS_API double rs_as_float64(const rs_field *f) {
	if (f->kind == RS_FIELD_INT64) return (double)rs_as_int64(f);
	return f->kind == RS_FIELD_FLOAT64 ? rs__be_double(f->data) : 0;
}

RS_API rs_point rs_as_point(const rs_field *f) {
	rs_point p = {0, 0};
	if (f->kind == RS_FIELD_POINT) {
		p.lat = rs__be_double(f->data);
		p.lon = rs__be_double(f->data + 8);
	}
	return p;
}

RS_API rs_box rs_as_box(const rs_field *f) {
	rs_box b = {0, 0, 0, 0};
	if (f->kind == RS_FIELD_BOX) {
		b.min_lat = rs__be_double(f->data);
		b.min_lon = rs__be_double(f->data + 8);
		b.max_lat = rs__be_double(f->data + 16);
		b.max_lon = rs__be_double(f->data + 24);
	}
	return b;
}

#define RS__GETTER(suffix, type, wanted, expression)                                                \
	RS_API int rs_field_##suffix(const uint8_t *value, size_t len, const char *name, type *out) { \
		rs_field f;                                                                                 \
		int status = rs__field_of(value, len, name, wanted, &f);                                    \
		if (status == RS_OK) *out = expression;                                                     \
		return status;                                                                              \
	}
RS__GETTER(int64, int64_t, RS_FIELD_INT64, rs_as_int64(&f))
RS__GETTER(float64, double, RS_FIELD_FLOAT64, rs_as_float64(&f))
RS__GETTER(bool, int, RS_FIELD_BOOL, f.data[0])
RS__GETTER(timestamp, int64_t, RS_FIELD_TIMESTAMP, rs_as_int64(&f))
RS__GETTER(point, rs_point, RS_FIELD_POINT, rs_as_point(&f))
RS__GETTER(box, rs_box, RS_FIELD_BOX, rs_as_box(&f))
#undef RS__GETTER

RS_API int rs_field_string(const uint8_t *value, size_t len, const char *name, const char **text, size_t *text_len) {
	rs_field f;
	int status = rs__field_of(value, len, name, RS_FIELD_STRING, &f);
	if (status != RS_OK) return status;
	*text = (const char *)f.data;
	*text_len = f.len;
	return RS_OK;
}

RS_API int rs_field_bytes(const uint8_t *value, size_t len, const char *name, const uint8_t **data, size_t *data_len) {
	rs_field f;
	int status = rs__field_of(value, len, name, RS_FIELD_BYTES, &f);
	if (status != RS_OK) return status;
	*data = f.data;
	*data_len = f.len;
	return RS_OK;
}

#ifdef __cplusplus
}
#endif
#endif /* RHUMB_SNAP_IMPLEMENTATION */
