/*
 * reader_test DIR ROUNDS: tests of the C reader itself on a golden image in DIR, which it damages in ROUNDS ways, one after
 * the other: whatever is read then, nothing may fault. Compile with -fsanitize=address,undefined.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>

static int unmaps; /* calls of munmap by the reader */
static int counted_munmap(void *p, size_t n) {
	unmaps++;
	return munmap(p, n);
}

#define RHUMB_SNAP_IMPLEMENTATION
#define munmap counted_munmap
#include "rhumb_snap.h"
#undef munmap

#include <dirent.h>

static int failures;

#define CHECK(condition)                                                                                            \
	do {                                                                                                              \
		if (!(condition)) {                                                                                             \
			failures++;                                                                                                   \
			fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, rs_last_error()->message); \
		}                                                                                                               \
	} while (0)

static uint64_t seed = 88172645463325252;
static uint64_t next_random(void) {
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static int count(void *n, const rs_item *it) {
	volatile uint8_t use = 0; /* touches what the item points to */
	for (uint32_t i = 0; i < it->value_len; i++) use = (uint8_t)(use ^ it->value[i]);
	for (uint32_t i = 0; i < it->name_len; i++) use = (uint8_t)(use ^ it->name[i]);
	(*(int64_t *)n)++;
	return 0;
}

static int64_t scan_all(const rs_view *v, const rs_table *t) {
	static rs_scan scan;
	rs_item it;
	int64_t n = 0;
	int status = rs_scan_begin(&scan, v, t, NULL, 0);
	if (status != RS_OK) return status;
	while ((status = rs_scan_next(&scan, &it)) == 1) count(&n, &it);
	return status < 0 ? status : n;
}

static void read_fields(const rs_value *v) {
	rs_fields fields;
	rs_field f;
	volatile double use = 0;
	if (rs_fields_begin(&fields, v->data, v->len) != RS_OK) return;
	while (rs_fields_next(&fields, &f) == 1) use = use + rs_as_float64(&f) + rs_as_point(&f).lat + rs_as_box(&f).max_lon + (double)rs_as_int64(&f);
}

/* read_all reads a table in every way. What comes of it is checked elsewhere. */
static int64_t read_all(const rs_view *v, const rs_table *t) {
	static const rs_point ring[] = {{52, 13}, {53, 13}, {53, 14}, {52, 14.5}}, centre = {52.5, 13.5};
	static const rs_box boxes[] = {{-90, -180, 90, 180}, {52.4, 13.4, 52.6, 13.6}, {-30, 170, 30, -170}};
	uint64_t keys[100];
	rs_value out[100];
	rs_item near[20];
	int64_t n = 0;
	for (uint64_t i = 0; i < 100; i++) keys[i] = i;
	rs_mget(v, t, keys, 100, out);
	for (uint64_t i = 0; i < 100; i++)
		if (rs_get(v, t, i, &out[0]) == RS_OK) read_fields(&out[0]);
	for (int i = 0; i < 40; i++) {
		char name[32];
		int len = snprintf(name, sizeof name, "berlin/%d", i);
		rs_get_name(v, t, name, (size_t)len, &out[0]);
		rs_name key = {name, (uint32_t)len, RS_KEY_NAME};
		rs_mget_names(v, t, &key, 1, &out[0]);
	}
	for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) rs_bbox(v, t, boxes[i], count, &n);
	rs_radius(v, t, centre, 30000, count, &n);
	rs_polygon(v, t, &(rs_ring){ring, 4}, 1, count, &n);
	rs_nearest(v, t, centre, 20, INFINITY, near);
	n += scan_all(v, t);
	return n;
}

static int64_t read_image(const char *dir, unsigned flags) {
	rs_client *c = NULL;
	rs_view v;
	int64_t n = 0;
	if (rs_attach(&c, dir, flags | RS_NO_TIMER) != RS_OK) return 0;
	int (*locks[2])(rs_client *, rs_view *) = {rs_lock, rs_lock_closed};
	for (int i = 0; i < 2; i++) {
		if (locks[i](c, &v) != RS_OK) continue;
		rs_commit commit;
		rs_position_t position;
		rs_view_commit(&v, &commit);
		rs_position(&v, 2, 17, &position);
		const rs_table *t;
		for (unsigned k = 0; (t = rs_table_at(&v, k)) != NULL; k++) n += read_all(&v, t) > 0;
		rs_unlock(&v);
	}
	CHECK(rs_detach(c) == RS_OK);
	return n;
}

/* ---- Damage ---- */

typedef struct image_file {
	char path[512];
	uint8_t *bytes;
	size_t size;
} image_file;

static size_t load_files(const char *dir, image_file *files, size_t max) {
	DIR *d = opendir(dir);
	struct dirent *e;
	size_t n = 0;
	while (d != NULL && (e = readdir(d)) != NULL && n < max) {
		if (strcmp(e->d_name, "root") != 0 && strncmp(e->d_name, "seg.", 4) != 0) continue;
		image_file *f = &files[n];
		snprintf(f->path, sizeof f->path, "%s/%s", dir, e->d_name);
		FILE *in = fopen(f->path, "rb");
		if (in == NULL) continue;
		fseek(in, 0, SEEK_END);
		f->size = (size_t)ftell(in);
		rewind(in);
		f->bytes = (uint8_t *)malloc(f->size);
		if (f->bytes != NULL && fread(f->bytes, 1, f->size, in) == f->size) n++;
		fclose(in);
	}
	if (d != NULL) closedir(d);
	return n;
}

/* mend makes the checksums of headers right again, so that the checks behind them are reached. */
static void mend(uint8_t *p, int root) {
	uint32_t sum;
	if (!root) {
		sum = rs__crc(p, RS__SEG_SUM);
		memcpy(p + RS__SEG_SUM, &sum, 4);
		return;
	}
	sum = rs__crc(p, 60);
	memcpy(p + 60, &sum, 4);
	for (int i = 0; i < RS_TABLES_MAX; i++) {
		uint8_t *e = p + RS__TABLES + i * RS__TABLE_ENTRY;
		memset(e + 12, 0, 4);
		sum = rs__crc(e, RS__TABLE_ENTRY);
		memcpy(e + 12, &sum, 4);
	}
	for (int i = 0; i < RS_SHARDS_MAX; i++) {
		uint8_t *e = p + RS__SHARDS + i * RS__SHARD_ENTRY;
		sum = rs__crc(e, 44);
		memcpy(e + 44, &sum, 4);
	}
}

static void write_file(const image_file *f, const uint8_t *bytes) {
	FILE *out = fopen(f->path, "r+b");
	CHECK(out != NULL && fwrite(bytes, 1, f->size, out) == f->size);
	if (out != NULL) fclose(out);
}

static void damage(const char *dir, int rounds) {
	static image_file files[64];
	size_t n = load_files(dir, files, 64);
	int64_t readable = 0;
	CHECK(n > 3);
	for (int round = 0; n > 0 && round < rounds; round++) {
		image_file *f = &files[next_random() % n];
		int root = strstr(f->path, "/root") != NULL;
		uint8_t *copy = (uint8_t *)malloc(f->size);
		if (copy == NULL) return;
		memcpy(copy, f->bytes, f->size);
		size_t within = round % 3 == 0 ? (root ? 12800 : 8192) : f->size;
		for (uint64_t k = next_random() % 8 + 1; k > 0; k--) {
			size_t at = next_random() % within;
			if (next_random() % 2 && k > 1) at = at / 4 * 4; /* whole words too: references and offsets */
			copy[at] ^= (uint8_t)(1u << next_random() % 8);
			if (next_random() % 4 == 0) copy[at] = 0xff;
		}
		if (next_random() % 4 != 0) mend(copy, root);
		write_file(f, copy);
		readable += read_image(dir, next_random() % 4 == 0 ? RS_VERIFY : 0) > 0;
		write_file(f, f->bytes);
		free(copy);
	}
	printf("%d damaged images, %" PRId64 " readable in part\n", rounds, readable);
	for (size_t i = 0; i < n; i++) free(files[i].bytes);
}

/* ---- Locks ---- */

static void test_errors(const char *dir) {
	rs_client *c = NULL;
	rs_view v;
	memset(&v, 0, sizeof v);
	CHECK(rs_attach(&c, "/nowhere", 0) == RS_UNAVAILABLE && c == NULL);
	CHECK(strcmp(rs_last_error()->file, "root") == 0);
	CHECK(rs_attach(NULL, dir, 0) == RS_INVALID);
	CHECK(rs_attach(&c, dir, RS_POPULATE | RS_HUGE | RS_VERIFY) == RS_OK);
	CHECK(rs_lock(c, &v) == RS_OK);
	CHECK(rs_detach(c) == RS_BUSY);
	rs_info info;
	CHECK(rs_client_info(c, &info) == RS_OK && info.views == 1 && info.committed == rs_version(&v) && info.state == 2 && info.mapped_bytes > 0 && info.pinned_bytes == 0);
	uint64_t mapped = 0, huge = 0;
	CHECK(rs_huge_bytes(c, &mapped, &huge) == RS_OK && mapped == info.mapped_bytes && huge <= mapped);
	const rs_table *t = NULL;
	rs_value value;
	CHECK(rs_table_by_name(&v, "cars", &t) == RS_OK && rs_table_live(&v, t) > 80);
	CHECK(rs_get_name(&v, t, "x", 1, &value) == RS_INVALID && value.data == NULL);
	rs_unlock(&v);
	rs_unlock(&v);
	CHECK(rs_get(&v, t, 1, &value) == RS_INVALID);
	CHECK(rs_detach(c) == RS_OK);
}

/* A view that grew too old refuses reads, a fresh one does not. */
static void test_leash(const char *dir) {
	rs_client *c = NULL;
	rs_view v, fresh;
	const rs_table *t = NULL;
	rs_value value;
	CHECK(rs_attach(&c, dir, 0) == RS_OK);
	rs_set_max_lock_age(c, 50000000);
	CHECK(rs_lock(c, &v) == RS_OK && rs_table_by_name(&v, "cars", &t) == RS_OK);
	int status = RS_OK;
	for (int64_t start = rs__clock(CLOCK_MONOTONIC); status != RS_EXPIRED && rs__clock(CLOCK_MONOTONIC) - start < 20000000000;) status = rs_get(&v, t, 2000, &value);
	CHECK(status == RS_EXPIRED && rs_mget(&v, t, NULL, 0, NULL) == RS_EXPIRED && rs_age(&v) >= 50000000);
	rs_set_max_lock_age(c, 0);
	CHECK(rs_lock(c, &fresh) == RS_OK && rs_get(&fresh, t, 2000, &value) == RS_NOT_FOUND);
	rs_unlock(&v);
	rs_unlock(&fresh);
	CHECK(rs_detach(c) == RS_OK);
}

/* An exchange that the publisher never ended leaves readers with what they have, and refuses new ones. */
static void test_exchange(const char *dir) {
	char path[512];
	rs_client *c = NULL, *late = NULL;
	rs_view v;
	uint64_t seq = 0, odd;
	snprintf(path, sizeof path, "%s/root", dir);
	CHECK(rs_attach(&c, dir, 0) == RS_OK);
	CHECK(rs_lock(c, &v) == RS_OK);
	uint64_t version = rs_version(&v);
	rs_unlock(&v);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && pread(fd, &seq, 8, RS__TABLE_SEQ) == 8);
	odd = seq + 1;
	CHECK(pwrite(fd, &odd, 8, RS__TABLE_SEQ) == 8);
	uint64_t later = version + 1;
	CHECK(pwrite(fd, &later, 8, RS__COMMITTED) == 8);
	CHECK(rs_lock(c, &v) == RS_OK && rs_version(&v) == version); /* the new version may be of other generations */
	rs_unlock(&v);
	CHECK(rs_attach(&late, dir, 0) == RS_UNAVAILABLE);
	CHECK(pwrite(fd, &version, 8, RS__COMMITTED) == 8);
	odd = seq + 2;
	CHECK(pwrite(fd, &odd, 8, RS__TABLE_SEQ) == 8);
	CHECK(rs_lock(c, &v) == RS_OK && rs_version(&v) == version); /* mapped anew */
	rs_unlock(&v);
	/* A new root in place of the old is noticed at the next tick. */
	char other[560];
	snprintf(other, sizeof other, "%s/root.new", dir);
	uint8_t *bytes = (uint8_t *)malloc(RS__ROOT_SIZE);
	CHECK(bytes != NULL && pread(fd, bytes, RS__ROOT_SIZE, 0) == RS__ROOT_SIZE);
	int to = open(other, O_RDWR | O_CREAT, 0644);
	CHECK(to >= 0 && pwrite(to, bytes, RS__ROOT_SIZE, 0) == RS__ROOT_SIZE && rename(other, path) == 0);
	rs_tick(c);
	CHECK(rs_lock(c, &v) == RS_OK && v.set->root->ino != 0);
	struct stat st;
	CHECK(fstat(to, &st) == 0 && v.set->root->ino == (uint64_t)st.st_ino);
	rs_unlock(&v);
	CHECK(rs_detach(c) == RS_OK);
	free(bytes);
	close(fd);
	close(to);
}

/* Log positions decide what a program may rely on: without checksums they are refused, whatever the client was told to verify. */
static void test_positions(const char *dir) {
	char path[512];
	rs_client *c = NULL;
	uint8_t whole[RS__TABLE_ENTRY], entry[RS__TABLE_ENTRY];
	off_t at = 0;
	snprintf(path, sizeof path, "%s/root", dir);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	for (int i = 0; i < RS_TABLES_MAX && at == 0; i++) {
		off_t here = RS__TABLES + i * RS__TABLE_ENTRY;
		CHECK(pread(fd, whole, sizeof whole, here) == sizeof whole);
		if (whole[7] == strlen(RS__POSITIONS) && memcmp(whole + 16, RS__POSITIONS, whole[7]) == 0) at = here;
	}
	CHECK(at != 0 && whole[4] & RS_TABLE_SUMMED);
	memcpy(entry, whole, sizeof entry);
	entry[4] &= (uint8_t)~RS_TABLE_SUMMED;
	memset(entry + 12, 0, 4);
	uint32_t sum = rs__crc(entry, sizeof entry);
	memcpy(entry + 12, &sum, 4);
	CHECK(pwrite(fd, entry, sizeof entry, at) == sizeof entry);
	CHECK(rs_attach(&c, dir, 0) == RS_INCOMPATIBLE && c == NULL);
	CHECK(strcmp(rs_last_error()->file, "root") == 0 && rs_last_error()->offset == (uint64_t)at);
	CHECK(rs_attach(&c, dir, RS_VERIFY) == RS_INCOMPATIBLE);
	CHECK(pwrite(fd, whole, sizeof whole, at) == sizeof whole);
	CHECK(rs_attach(&c, dir, 0) == RS_OK && rs_detach(c) == RS_OK);
	close(fd);
}

/* The lock on byte 0 of a mapped file stands as long as it is mapped: no writer can take the file for another generation. */
static void test_file_lock(const char *dir) {
	static image_file files[64];
	size_t n = load_files(dir, files, 64);
	rs_client *c = NULL;
	CHECK(rs_attach(&c, dir, 0) == RS_OK);
	for (int mapped = 1; mapped >= 0; mapped--) {
		for (size_t i = 0; i < n; i++) {
			if (strstr(files[i].path, "/seg.") == NULL) continue;
			struct flock lock;
			memset(&lock, 0, sizeof lock);
			lock.l_type = F_WRLCK;
			lock.l_whence = SEEK_SET;
			lock.l_len = 1;
			int fd = open(files[i].path, O_RDWR);
			CHECK((fcntl(fd, F_OFD_SETLK, &lock) != 0) == (mapped == 1));
			close(fd);
		}
		if (mapped) CHECK(rs_detach(c) == RS_OK);
	}
	for (size_t i = 0; i < n; i++) free(files[i].bytes);
}

/* A file large enough for huge pages is mapped within reserved addresses, which go in one call: between two, another thread may
 * be given a part of them. */
static void test_unmap(const char *dir) {
	char path[512];
	rs_client c;
	memset(&c, 0, sizeof c);
	snprintf(path, sizeof path, "%s/large", dir);
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	for (size_t size = RS__HUGE / 2; size <= 2 * RS__HUGE; size *= 2) {
		rs_seg *s = (rs_seg *)calloc(1, sizeof *s);
		CHECK(s != NULL && ftruncate(fd, (off_t)size) == 0);
		s->size = size;
		CHECK(rs__map(&c, s, fd) == RS_OK && (s->reserved != NULL) == (size >= RS__HUGE));
		void *p = s->p, *end = s->p + size - 4096;
		unmaps = 0;
		rs__unmap_seg(s);
		CHECK(unmaps == 1 && msync(p, 4096, MS_ASYNC) != 0 && errno == ENOMEM && msync(end, 4096, MS_ASYNC) != 0 && errno == ENOMEM);
	}
	close(fd);
	unlink(path);
}

/* What a publisher left when it died while it made or dropped a table is no reader's concern; a table's own shards are. */
static void test_shards(const char *dir) {
	char path[512];
	rs_client *c = NULL;
	uint8_t first[RS__SHARD_ENTRY], entry[RS__SHARD_ENTRY];
	snprintf(path, sizeof path, "%s/root", dir);
	int fd = open(path, O_RDWR);
	off_t last = RS__SHARDS + (RS_SHARDS_MAX - 1) * RS__SHARD_ENTRY;
	CHECK(fd >= 0 && pread(fd, first, sizeof first, RS__SHARDS) == sizeof first);
	CHECK(pwrite(fd, first, sizeof first, last) == sizeof first);
	CHECK(rs_attach(&c, dir, 0) == RS_OK && rs_detach(c) == RS_OK);
	memset(entry, 0, sizeof entry);
	CHECK(pwrite(fd, entry, sizeof entry, last) == sizeof entry);
	for (int field = 32; field <= 36; field += 4) { /* the table, and the shard's place in it */
		memcpy(entry, first, sizeof entry);
		entry[field] ^= 1;
		uint32_t sum = rs__crc(entry, 44);
		memcpy(entry + 44, &sum, 4);
		CHECK(pwrite(fd, entry, sizeof entry, RS__SHARDS) == sizeof entry);
		CHECK(rs_attach(&c, dir, 0) == RS_CORRUPT && rs_last_error()->offset == RS__SHARDS);
	}
	CHECK(pwrite(fd, first, sizeof first, RS__SHARDS) == sizeof first);
	CHECK(rs_attach(&c, dir, 0) == RS_OK && rs_detach(c) == RS_OK);
	close(fd);
}

static int64_t in_box(const rs_view *v, const rs_table *t, rs_box box) {
	int64_t n = 0;
	int status = rs_bbox(v, t, box, count, &n);
	return status == RS_OK ? n : status;
}

/* A version 2^32 commits from the base of a shard, to which nothing was written, shows what was committed and no more. */
static void test_far(const char *dir) {
	static const rs_box world = {-90, -180, 90, 180};
	char path[512];
	rs_client *c = NULL;
	rs_view v;
	const rs_table *t = NULL;
	uint64_t committed = 0, far;
	snprintf(path, sizeof path, "%s/root", dir);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && pread(fd, &committed, 8, RS__COMMITTED) == 8);
	CHECK(rs_attach(&c, dir, 0) == RS_OK && rs_lock(c, &v) == RS_OK && rs_table_by_name(&v, "cars", &t) == RS_OK);
	int64_t all = in_box(&v, t, world), keys = scan_all(&v, t);
	far = v.set->least + UINT32_MAX; /* as an aborted record's */
	rs_unlock(&v);
	for (int i = 0; i < 3; i++, far++) {
		CHECK(pwrite(fd, &far, 8, RS__COMMITTED) == 8);
		CHECK(rs_lock(c, &v) == RS_OK && rs_version(&v) == far && rs_table_by_name(&v, "cars", &t) == RS_OK);
		CHECK(in_box(&v, t, world) == all && scan_all(&v, t) == keys && v.plain == 0);
		rs_unlock(&v);
	}
	CHECK(pwrite(fd, &committed, 8, RS__COMMITTED) == 8);
	CHECK(rs_detach(c) == RS_OK);
	close(fd);
}

/* A spatial index that is damaged while it is read leads no query out of its sections, and to no record elsewhere. */
static void test_damaged_index(const char *dir) {
	static const rs_box world = {-90, -180, 90, 180}, far = {-89, 10, -88, 11};
	static const int32_t everywhere[4] = {-RS__LON_MAX, -RS__LAT_MAX, RS__LON_MAX, RS__LAT_MAX};
	char path[512];
	rs_client *c = NULL;
	rs_view v;
	const rs_table *t = NULL;
	uint32_t lanes = 0, entries = 0;
	CHECK(rs_attach(&c, dir, 0) == RS_OK && rs_lock(c, &v) == RS_OK && rs_table_by_name(&v, "cars", &t) == RS_OK);
	int64_t all = in_box(&v, t, world);
	CHECK(all > 0 && in_box(&v, t, far) == 0);
	for (uint32_t k = 0; k < t->shard_count; k++) {
		const rs_seg *s = t->segs[k];
		uint8_t kept[RS__NODE], node[RS__NODE];
		snprintf(path, sizeof path, "%s/%s", dir, s->file);
		int fd = open(path, O_RDWR);
		CHECK(fd >= 0);
		for (uint32_t level = 1; level < s->levels; level++) {
			uint32_t last = s->nodes_at[level] - 1;
			off_t at = (off_t)(s->nodes - s->p) + (off_t)(s->first[level] + last) * RS__NODE;
			CHECK(pread(fd, kept, sizeof kept, at) == sizeof kept);
			memcpy(node, kept, sizeof node);
			for (uint32_t lane = s->nodes_at[level - 1] - last * 16; lane < 16; lane++, lanes++)
				for (int side = 0; side < 4; side++) memcpy(node + 64 * side + 4 * lane, &everywhere[side], 4);
			CHECK(pwrite(fd, node, sizeof node, at) == sizeof node);
			CHECK(in_box(&v, t, world) == all);
			CHECK(pwrite(fd, kept, sizeof kept, at) == sizeof kept);
		}
		uint64_t n = rs__load64(s->p + RS__SEG_DELTA);
		for (uint64_t i = 0; i < n; i++, entries++) {
			off_t at = (off_t)(s->delta - s->p) + (off_t)i * RS__DELTA_ENTRY;
			CHECK(pread(fd, kept, sizeof everywhere, at) == sizeof everywhere);
			CHECK(pwrite(fd, everywhere, sizeof everywhere, at) == sizeof everywhere);
			CHECK(in_box(&v, t, far) == 0);
			CHECK(pwrite(fd, kept, sizeof everywhere, at) == sizeof everywhere);
		}
		close(fd);
	}
	CHECK(lanes > 0);
	printf("%u lanes and %u entries of the spatial index damaged\n", lanes, entries);
	CHECK(in_box(&v, t, world) == all);
	rs_unlock(&v);
	CHECK(rs_detach(c) == RS_OK);
}

/* A chain of versions falls, whatever a link says, and a record is gone at the moment that it ends. */
static void test_chain(void) {
	static uint8_t heap[3 * RS__UNIT] __attribute__((aligned(64)));
	rs_seg s;
	rs_view v;
	memset(&s, 0, sizeof s);
	memset(&v, 0, sizeof v);
	s.heap = heap;
	s.units = 3;
	v.closed = UINT64_MAX;
	for (uint32_t at = 0; at < 3; at++)
		for (uint32_t prev = 0; prev < 4; prev++) {
			int status = RS_OK;
			memset(heap, 0, sizeof heap);
			heap[at * RS__UNIT + 8] = 1; /* a version that the view does not show */
			memcpy(heap + at * RS__UNIT + 12, &prev, 4);
			const uint8_t *rec = rs__visible(&v, &s, heap + at * RS__UNIT, &status);
			CHECK(rec == (prev < at ? heap + prev * RS__UNIT : NULL) && status == (prev < at ? RS_OK : RS_CORRUPT));
		}
	for (v.version = UINT32_MAX - 1; v.version <= UINT64_C(1) << 32; v.version++) CHECK(rs__limit(&v, &s) == RS__ABORTED - 1);
	heap[RS__FLAGS] = RS__EXPIRY;
	heap[RS__HEAD] = 100;
	for (v.now = 99; v.now <= 101; v.now++) CHECK(rs__gone(&v, heap) == (v.now >= 100));
}

/* ---- Parts ---- */

static void test_kernels(void) {
	for (int round = 0; round < 20000; round++) {
		int32_t node[64];
		for (int i = 0; i < 64; i++) node[i] = (int32_t)(next_random() % 100);
		rs_box32 q = {(int32_t)(next_random() % 100), (int32_t)(next_random() % 100), (int32_t)(next_random() % 100), (int32_t)(next_random() % 100)};
		uint32_t want = rs__lanes_plain((const uint8_t *)node, &q);
		CHECK(rs__pick_kernel()((const uint8_t *)node, &q) == want);
#if defined(__x86_64__)
		if (__builtin_cpu_supports("avx2")) CHECK(rs__lanes_avx2((const uint8_t *)node, &q) == want);
#endif
	}
	for (int round = 0; round < 20000; round++) {
		uint16_t bucket[32] __attribute__((aligned(64)));
		uint32_t want = 0;
		for (int i = 0; i < 32; i++) bucket[i] = (uint16_t)(next_random() % 4);
		for (uint32_t i = 0; i < RS__SLOTS; i++) want |= (uint32_t)(bucket[i] == 3) << i;
		CHECK(rs__match((const uint8_t *)bucket, 3) == want);
	}
	CHECK(rs__crc("123456789", 9) == 0xe3069283 && ~rs__crc_plain(~0u, (const uint8_t *)"123456789", 9) == 0xe3069283);
}

static void *lock_often(void *arg) {
	rs_client *c = (rs_client *)arg;
	for (int i = 0; i < 2000; i++) {
		rs_view v;
		const rs_table *t = NULL;
		rs_value value;
		CHECK(rs_lock(c, &v) == RS_OK);
		CHECK(rs_table_by_name(&v, "blobs", &t) == RS_OK && rs_get(&v, t, 1, &value) == RS_OK && value.len == 70000);
		rs_unlock(&v);
	}
	return NULL;
}

/* Threads lock while table_seq moves, so that sets come and go. */
static void test_threads(const char *dir) {
	char path[512];
	rs_client *c = NULL;
	pthread_t thread[4];
	uint64_t seq = 0;
	snprintf(path, sizeof path, "%s/root", dir);
	int fd = open(path, O_RDWR);
	CHECK(rs_attach(&c, dir, 0) == RS_OK && fd >= 0 && pread(fd, &seq, 8, RS__TABLE_SEQ) == 8);
	for (int i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, lock_often, c) == 0);
	for (int i = 0; i < 200; i++) {
		seq += 2;
		CHECK(pwrite(fd, &seq, 8, RS__TABLE_SEQ) == 8);
		CHECK(rs_refresh(c) == RS_OK);
	}
	for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
	CHECK(rs_detach(c) == RS_OK);
	close(fd);
}

typedef struct committer {
	uint8_t *root;
	uint64_t from, version;
	int stop;
} committer;

/* commit_often commits one version after the other, closed at its number. */
static void *commit_often(void *arg) {
	committer *w = (committer *)arg;
	for (uint64_t v = w->from + 1; !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE); w->version = v++) {
		uint8_t entry[64] = {0}, *to = w->root + RS__RING + v % RS__RING_SIZE * 64;
		memcpy(entry, &v, 8);
		memcpy(entry + 8, &(uint64_t){UINT64_MAX / 2 + v}, 8);
		uint32_t sum = rs__crc(entry, 44);
		memcpy(entry + 44, &sum, 4);
		__atomic_store_n((uint64_t *)(void *)to, 0, __ATOMIC_SEQ_CST);
		memcpy(to + 8, entry + 8, 56);
		__atomic_store_n((uint64_t *)(void *)to, v, __ATOMIC_RELEASE);
		__atomic_store_n((uint64_t *)(void *)(w->root + RS__COMMITTED), v, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* A closed view can be had however often commits overtake the look at the ring. */
static void test_closed(const char *dir) {
	char path[512];
	rs_client *c = NULL;
	rs_view v;
	pthread_t thread;
	uint8_t kept[RS__RING + RS__RING_SIZE * 64 - RS__COMMITTED]; /* the words and the ring */
	snprintf(path, sizeof path, "%s/root", dir);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && pread(fd, kept, sizeof kept, RS__COMMITTED) == sizeof kept);
	committer w = {(uint8_t *)mmap(NULL, RS__ROOT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), rs__u64(kept), 0, 0};
	CHECK(rs_attach(&c, dir, 0) == RS_OK && w.root != MAP_FAILED && pthread_create(&thread, NULL, commit_often, &w) == 0);
	int64_t start = rs__clock(CLOCK_MONOTONIC), locked = 0, refused = 0;
	while (rs__load64(w.root + RS__COMMITTED) == w.from) rs__pause(1000000); /* the first closed timestamp */
	for (; rs__clock(CLOCK_MONOTONIC) - start < 300000000; locked++) {
		if (rs_lock_closed(c, &v) != RS_OK) refused++;
		else rs_unlock(&v);
	}
	__atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	CHECK(refused == 0 && locked > 0);
	printf("%" PRId64 " closed views in %" PRIu64 " commits, %" PRId64 " refused\n", locked, w.version - w.from, refused);
	CHECK(pwrite(fd, kept, sizeof kept, RS__COMMITTED) == sizeof kept && munmap(w.root, RS__ROOT_SIZE) == 0);
	CHECK(rs_detach(c) == RS_OK);
	close(fd);
}

/* ---- The first look ---- */

enum { LOOKS_MAX = 4096 };

typedef struct looks {
	uint64_t number[LOOKS_MAX];
	rs_name name[LOOKS_MAX];
	rs_value want[LOOKS_MAX];
	size_t n, plain;
} looks;

static int same_value(const rs_value *a, const rs_value *b) {
	return a->status == b->status && a->data == b->data && a->len == b->len && a->version == b->version && a->record == b->record;
}

/* look_at looks the key of a record up both ways. */
static void look_at(const rs_view *v, const rs_table *t, const rs_seg *s, const uint8_t *rec, looks *l) {
	rs__key key = {rs__u64(rec), NULL, 0, 0, 0};
	uint64_t hash = t->kind == RS_KEY_NUMBER ? rs__hash_number(t, key.word) : key.word;
	rs_value got, *want = &l->want[l->n];
	if (t->kind == RS_KEY_NAME) {
		key.name = rs__name(s, rec, &key.len, &key.shard_key);
		key.named = 1;
	}
	rs__look_on(v, t, hash, &key, want);
	if (rs__look(v, t, hash, &key, &got)) {
		l->plain++;
		CHECK(same_value(&got, want));
	}
	if (t->kind == RS_KEY_NUMBER) rs_get(v, t, key.word, &got);
	else if (key.shard_key) rs_get_shard_key(v, t, key.name, &got);
	else rs_get_name(v, t, key.name, key.len, &got);
	CHECK(same_value(&got, want));
	l->number[l->n] = key.word;
	l->name[l->n].data = key.name;
	l->name[l->n].len = key.len;
	l->name[l->n++].kind = key.shard_key ? RS_KEY_SHARD : RS_KEY_NAME;
}

/* look_over looks up every key of a table, one by one and all at once, and gives how many a first look found. */
static size_t look_over(const rs_view *v, const rs_table *t, looks *l) {
	static rs_value got[LOOKS_MAX];
	l->n = l->plain = 0;
	for (uint32_t i = 0; i < t->shard_count; i++) {
		const rs_seg *s = t->segs[i];
		if (!t->checked) ((rs__shard *)&t->shards[i])->units = s->units; /* these images are whole: no length needs a check */
		for (uint32_t b = 0; b < s->buckets_max; b++)
			for (uint32_t slot = 0; slot < RS__SLOTS; slot++) {
				const uint8_t *bucket = s->index + (uint64_t)b * 64;
				if (rs__u16(bucket + 2 * slot) != 0 && l->n < LOOKS_MAX) look_at(v, t, s, s->heap + (uint64_t)rs__slot_ref(bucket, slot) * RS__UNIT, l);
			}
	}
	int64_t found = 0;
	for (size_t i = 0; i < l->n; i++) found += l->want[i].status == RS_OK;
	CHECK((t->kind == RS_KEY_NUMBER ? rs_mget(v, t, l->number, l->n, got) : rs_mget_names(v, t, l->name, l->n, got)) == found);
	for (size_t i = 0; i < l->n; i++) CHECK(same_value(&got[i], &l->want[i]));
	CHECK(!t->checked || l->plain == 0);
	return l->plain;
}

/* test_first_look compares it with the long way: in the newest version, in the oldest, in a closed view and with sums. */
static void test_first_look(const char *dir) {
	static looks l;
	rs_client *c;
	rs_view v;
	size_t newest = 0, oldest = 0;
	CHECK(rs_attach(&c, dir, RS_NO_TIMER) == RS_OK && rs_lock(c, &v) == RS_OK);
	for (unsigned i = 0; rs_table_at(&v, i) != NULL; i++) newest += look_over(&v, rs_table_at(&v, i), &l);
	CHECK(newest > 0);
	uint64_t base = v.set->base;
	rs_unlock(&v);
	CHECK(rs_lock_version(c, &v, base) == RS_OK);
	for (unsigned i = 0; rs_table_at(&v, i) != NULL; i++) oldest += look_over(&v, rs_table_at(&v, i), &l);
	CHECK(oldest <= newest);
	rs_unlock(&v);
	if (rs_lock_closed(c, &v) == RS_OK) {
		for (unsigned i = 0; rs_table_at(&v, i) != NULL; i++) CHECK(look_over(&v, rs_table_at(&v, i), &l) == 0);
		rs_unlock(&v);
	}
	CHECK(rs_detach(c) == RS_OK);
	CHECK(rs_attach(&c, dir, RS_NO_TIMER | RS_VERIFY) == RS_OK && rs_lock(c, &v) == RS_OK);
	for (unsigned i = 0; rs_table_at(&v, i) != NULL; i++) look_over(&v, rs_table_at(&v, i), &l);
	rs_unlock(&v);
	CHECK(rs_detach(c) == RS_OK);
}

/* test_overflow lets a batch find a key in the bucket that follows its own, and none where that does not exist. */
static void test_overflow(void) {
	enum { BUCKETS = 1, BEHIND = 2, UNITS = 4 };
	static uint8_t index[(BUCKETS + BEHIND) * 64] __attribute__((aligned(64))), heap[(UNITS + 1) * RS__UNIT] __attribute__((aligned(64)));
	rs__shard shard;
	rs_table t;
	rs__batch r;
	const uint64_t hash = 0x1234567890abcdef;
	uint16_t fp = rs__fingerprint(hash);
	memset(&shard, 0, sizeof shard);
	memset(&t, 0, sizeof t);
	shard.index = index;
	shard.heap = heap;
	shard.buckets = BUCKETS;
	shard.overflows = BEHIND;
	shard.units = UNITS;
	t.shards = &shard;
	t.shard_count = 1;
	for (uint32_t at = BUCKETS; at < BUCKETS + BEHIND; at++)
		for (uint32_t ref = 1; ref <= UNITS; ref++)
			for (uint32_t next = 0; next <= BUCKETS + BEHIND; next++) {
				memset(index, 0, sizeof index);
				memcpy(index + 64 * at + 6, &fp, sizeof fp);
				memcpy(index + 64 * at + 20 + 12, &ref, sizeof ref);
				memcpy(index + 60, &next, sizeof next);
				r.n = 1;
				rs__depart(&t, hash, &r, 0);
				rs__first(&r);
				CHECK(r.at[0] == (next == at && ref < UNITS ? heap + ref * RS__UNIT : NULL));
			}
}

int main(int argc, char **argv) {
	if (argc != 3) {
		fprintf(stderr, "usage: reader_test DIR ROUNDS\n");
		return 2;
	}
	test_kernels();
	test_first_look(argv[1]);
	test_overflow();
	test_errors(argv[1]);
	test_leash(argv[1]);
	test_file_lock(argv[1]);
	test_unmap(argv[1]);
	test_shards(argv[1]);
	test_far(argv[1]);
	test_damaged_index(argv[1]);
	test_chain();
	test_exchange(argv[1]);
	test_positions(argv[1]);
	test_threads(argv[1]);
	test_closed(argv[1]);
	CHECK(read_image(argv[1], RS_VERIFY) == 4);
	damage(argv[1], atoi(argv[2]));
	CHECK(read_image(argv[1], RS_VERIFY) == 4);
	printf("%d failures\n", failures);
	return failures != 0;
}
