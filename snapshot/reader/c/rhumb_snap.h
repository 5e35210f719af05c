/*
 * rhumb_snap.h: reads the snapshot that a Rhumb node publishes in shared memory.
 *
 * One header for C11 and C++. In exactly one source file write
 *
 *     #define RHUMB_SNAP_IMPLEMENTATION
 *     #include "rhumb_snap.h"
 *
 * and include it plainly elsewhere; link with -lm (and -pthread before glibc 2.34). Linux, little-endian; x86-64 and
 * arm64 have vector code, other machines plain C. The layout of the files is told in docs/formats/snapshot.md.
 *
 * Model. A client attaches to an image, the directory <shm>/rhumb/<cluster>/<node>. A view, taken by rs_lock, is one
 * fixed version of everything in the image: what is read through it does not change, and pointers into it stay valid
 * until rs_unlock. Locking, reading and unlocking allocate nothing and make no system call, unless the publisher has
 * exchanged a generation since the last lock: then rs_lock maps the new files. Readers never write to the image.
 *
 * Threads. A client may be used by any number of threads. A view may be read by several threads at a time; it must be
 * unlocked once, by whoever knows that all are done. Attach after fork, not before: a child has no timer thread.
 *
 * Errors. Functions give RS_OK (0), or a negative rs_status; rs_last_error then tells this thread what was wrong, in which
 * file and where. Every offset in a file is checked when it is mapped, every reference before it is followed, so that a
 * damaged image gives RS_CORRUPT and never a fault.
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
	RS_NOT_FOUND = 1,      /* the key has no visible value; no error */
	RS_INVALID = -1,       /* an argument is wrong, or the view is not locked */
	RS_CORRUPT = -2,       /* the image is damaged or no image */
	RS_INCOMPATIBLE = -3,  /* a later or foreign version wrote it */
	RS_UNAVAILABLE = -4,   /* cannot be had now: no closed timestamp, a publisher amid an exchange; try again */
	RS_EXPIRED = -5,       /* the view is older than the greatest lock age: unlock and lock again */
	RS_IO = -6,            /* the system refused: see the message */
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

/* rs_last_error tells the last error of this thread. It is not reset by success. */
RS_API const rs_error *rs_last_error(void);

/* ---- Clients ---- */

typedef struct rs_client rs_client;

enum {
	RS_POPULATE = 1, /* map all pages at attach, so that first reads do not fault */
	RS_HUGE = 2,     /* ask for huge pages */
	RS_VERIFY = 4,   /* check the checksums of the base's sections when a file is mapped: reads all of it */
	RS_NO_TIMER = 8  /* start no thread; lock ages are then looked at only by rs_lock and rs_tick */
};

#define RS_TABLES_MAX 32
#define RS_SHARDS_MAX 256
#define RS_SETS_MAX 64                            /* generations of the whole image that views of one client can pin */
#define RS_MAX_LOCK_AGE INT64_C(60000000000)      /* default greatest age of a view, ns */

RS_API int rs_attach(rs_client **out, const char *dir, unsigned flags);

/* rs_detach unmaps everything. It refuses with RS_BUSY while views are locked. */
RS_API int rs_detach(rs_client *client);

/* rs_set_max_lock_age sets the age in ns past which reads of a view give RS_EXPIRED, for views locked from now on; 0 is
 * without limit. The limit is kept to about an eighth of itself (10 ms to 1 s). */
RS_API void rs_set_max_lock_age(rs_client *client, int64_t ns);

/* rs_tick does what the timer thread does; for clients attached with RS_NO_TIMER. */
RS_API void rs_tick(rs_client *client);

/* rs_refresh maps the generations that are live now, ahead of the next rs_lock. */
RS_API int rs_refresh(rs_client *client);

typedef struct rs_info {
	uint8_t image[16];       /* the image's UUID */
	uint32_t minor;          /* of the format */
	uint32_t state;          /* of the publisher: 1 it publishes, 2 it stopped in order */
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

/* A view stands in the caller's memory; its fields are not to be touched. Do not copy it: unlock the one locked. */
typedef struct rs_view {
	rs_client *client; /* NULL when unlocked */
	const struct rs_set *set;
	uint64_t version;
	uint64_t closed; /* timestamp of a closed view, else UINT64_MAX */
	int64_t now;     /* ns since 1970, for expiry */
	uint64_t locked; /* CLOCK_MONOTONIC, ns */
	uint64_t deadline;
	uint32_t slot;
	unsigned char ring[64];
} rs_view;

/* rs_lock takes the newest version. */
RS_API int rs_lock(rs_client *client, rs_view *view);

/* rs_lock_closed takes the newest closed timestamp: a cut that is consistent across ranges. RS_UNAVAILABLE when the image
 * knows none. */
RS_API int rs_lock_closed(rs_client *client, rs_view *view);

/* rs_unlock ends the view; all pointers got through it become invalid. Unlocking twice does nothing. */
RS_API void rs_unlock(rs_view *view);

RS_API uint64_t rs_version(const rs_view *view);
/* rs_closed gives the closed timestamp (HLC) of a view by rs_lock_closed, else 0. */
RS_API uint64_t rs_closed(const rs_view *view);
/* rs_age gives how long the view has been locked, in ns. */
RS_API int64_t rs_age(const rs_view *view);

typedef struct rs_commit {
	uint64_t version;
	uint64_t closed;  /* timestamp up to which every range is complete; 0 unknown */
	int64_t event;    /* time of the newest event in it, ns since 1970; 0 unknown */
	int64_t wall;     /* when it was committed: ns since 1970 */
	uint64_t mono;    /* the same by CLOCK_MONOTONIC */
	uint32_t records; /* record versions in the commit */
} rs_commit;

/* rs_view_commit tells about the commit that the view shows. RS_NOT_FOUND when the ring had gone round before it was read. */
RS_API int rs_view_commit(const rs_view *view, rs_commit *out);

/* rs_staleness gives ns since the view's version was committed, by the monotonic clock. */
RS_API int rs_staleness(const rs_view *view, int64_t *ns);

typedef struct rs_position_t {
	uint64_t epoch, seq, hlc;
} rs_position_t;

/* rs_position gives the log position of a range that the view covers. */
RS_API int rs_position(const rs_view *view, uint32_t region, uint32_t slot, rs_position_t *out);

/* ---- Tables ---- */

enum { RS_KEY_NUMBER = 0, RS_KEY_NAME = 1, RS_KEY_SHARD = 2 };
enum { RS_TABLE_ORDERED = 2, RS_TABLE_SPATIAL = 4, RS_TABLE_SUMMED = 8 };

struct rs_seg;

/* A table of a view; valid until the view is unlocked. Read-only. */
typedef struct rs_table {
	const char *name;           /* ends in 0 */
	const char *location_field; /* "" without one */
	uint32_t id;
	uint16_t flags;
	uint8_t kind; /* RS_KEY_NUMBER or RS_KEY_NAME */
	uint16_t shard_count;
	uint64_t seed0, seed1;
	struct rs_seg *const *segs;
} rs_table;

/* rs_table_by_name gives RS_NOT_FOUND when the image has no such table. */
RS_API int rs_table_by_name(const rs_view *view, const char *name, const rs_table **out);
/* rs_table_at lists the tables: NULL from the number of tables on. */
RS_API const rs_table *rs_table_at(const rs_view *view, unsigned i);
/* rs_table_live gives the number of keys with a value, as of the last commits. */
RS_API uint64_t rs_table_live(const rs_view *view, const rs_table *table);

/* ---- Reading by key ---- */

/* What is found under a key. Pointers are valid until the view is unlocked. */
typedef struct rs_value {
	const uint8_t *data; /* the stored value: see rs_field_by_name; NULL when not found */
	uint32_t len;
	int32_t status;      /* RS_OK, RS_NOT_FOUND or an error: of this key in a batch */
	uint64_t version;    /* of the image, in which it was written; the base's for what is older */
	const void *record;  /* for rs_value_item */
} rs_value;

/* rs_get gives RS_OK, RS_NOT_FOUND or an error. */
RS_API int rs_get(const rs_view *view, const rs_table *table, uint64_t key, rs_value *out);
RS_API int rs_get_name(const rs_view *view, const rs_table *table, const void *name, size_t len, rs_value *out);
/* rs_get_shard_key finds a server-named record by its 16-byte shard key. */
RS_API int rs_get_shard_key(const rs_view *view, const rs_table *table, const void *key16, rs_value *out);

typedef struct rs_name {
	const void *data;
	uint32_t len;
	uint32_t kind; /* RS_KEY_NAME or RS_KEY_SHARD */
} rs_name;

/* rs_mget reads many keys at once, in groups of 32 whose memory accesses overlap: two to three times faster than one by
 * one. out has n elements. It gives the number found, or the first error. */
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

/* A whole record, as queries give it. Pointers are valid until the view is unlocked. */
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

/* rs_value_item tells all about a value that was found. */
RS_API int rs_value_item(const rs_view *view, const rs_table *table, const rs_value *value, rs_item *out);
RS_API rs_box rs_box_degrees(rs_box32 box);
/* rs_box_units rounds outwards, by less than a unit. */
RS_API rs_box32 rs_box_units(rs_box box);

/* ---- Spatial queries ---- */

/* A visitor gives 0 to go on; anything else ends the query, which returns it. The item is the visitor's until it returns;
 * what the item points to, until unlock. Give positive numbers, to tell them from errors. */
typedef int (*rs_visitor)(void *context, const rs_item *item);

/* rs_bbox visits every record whose box touches the query's, each once, in no order. */
RS_API int rs_bbox(const rs_view *view, const rs_table *table, rs_box box, rs_visitor visit, void *context);
/* rs_radius visits every record whose box is within metres of the centre, on a sphere of 6 371 008.8 m. */
RS_API int rs_radius(const rs_view *view, const rs_table *table, rs_point centre, double metres, rs_visitor visit, void *context);
/* rs_polygon visits every record whose box touches the polygon: n >= 3 corners, closed by itself. */
RS_API int rs_polygon(const rs_view *view, const rs_table *table, const rs_point *corners, size_t n, rs_visitor visit, void *context);
/* rs_nearest gives up to k records nearest to the centre and not farther than metres (INFINITY: any), nearest first; it
 * returns how many, or an error. out has room for k. */
RS_API int64_t rs_nearest(const rs_view *view, const rs_table *table, rs_point centre, size_t k, double metres, rs_item *out);

#define RS_TREE_STACK 192

/* An iterator over a box, for callers that would rather ask than be called. It stands in the caller's memory and needs no
 * end; it must not outlive the view. */
typedef struct rs_iter {
	const rs_view *view;
	const rs_table *table;
	rs_box32 part[2]; /* of the query */
	uint32_t parts, at_part;
	uint32_t shard;
	uint32_t phase;
	uint32_t sp, leaf, mask;
	uint32_t entry, count, steps;
	uint32_t cx, cy, cx0, cx1, cy0, cy1;
	int status;
	uint32_t stack[RS_TREE_STACK];
} rs_iter;

RS_API int rs_bbox_begin(rs_iter *it, const rs_view *view, const rs_table *table, rs_box box);
/* rs_bbox_next gives 1 and an item, 0 at the end, or an error. */
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

/* A scan by prefix; 20 KiB, which the caller provides. It must not outlive the view, nor the prefix it. */
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
/* rs_scan_next gives 1 and an item, 0 at the end, or an error. */
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

/* rs_opaque gives the bytes of a value that is no record; RS_INVALID when it is one. */
RS_API int rs_opaque(const uint8_t *value, size_t len, const uint8_t **data, size_t *data_len);

typedef struct rs_fields {
	const uint8_t *at, *end;
	uint64_t left;
	const uint8_t *last;
	uint32_t last_len;
} rs_fields;

/* rs_fields_begin begins to walk the fields of a record, in the order of their names. */
RS_API int rs_fields_begin(rs_fields *it, const uint8_t *value, size_t len);
/* rs_fields_next gives 1 and a field, 0 at the end, or RS_CORRUPT. */
RS_API int rs_fields_next(rs_fields *it, rs_field *out);
/* rs_field_by_name gives RS_OK, RS_NOT_FOUND, RS_INVALID for a value that is no record, or RS_CORRUPT. */
RS_API int rs_field_by_name(const uint8_t *value, size_t len, const char *name, rs_field *out);

/* The typed getters give RS_OK; RS_NOT_FOUND without such a field; RS_INVALID when it is of another type. */
RS_API int rs_field_int64(const uint8_t *value, size_t len, const char *name, int64_t *out);
RS_API int rs_field_float64(const uint8_t *value, size_t len, const char *name, double *out);
RS_API int rs_field_bool(const uint8_t *value, size_t len, const char *name, int *out);
RS_API int rs_field_timestamp(const uint8_t *value, size_t len, const char *name, int64_t *microseconds);
RS_API int rs_field_string(const uint8_t *value, size_t len, const char *name, const char **text, size_t *text_len);
RS_API int rs_field_bytes(const uint8_t *value, size_t len, const char *name, const uint8_t **data, size_t *data_len);
RS_API int rs_field_point(const uint8_t *value, size_t len, const char *name, rs_point *out);
RS_API int rs_field_box(const uint8_t *value, size_t len, const char *name, rs_box *out);
/* What a field holds, by its kind; 0 for others. */
RS_API int64_t rs_as_int64(const rs_field *field);
RS_API double rs_as_float64(const rs_field *field);
RS_API rs_point rs_as_point(const rs_field *field);
RS_API rs_box rs_as_box(const rs_field *field);

#ifdef __cplusplus
}
#endif
#endif /* RHUMB_SNAP_H */
