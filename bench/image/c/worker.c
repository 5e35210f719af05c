/*
 * worker.c: one worker process in C for the measurement of the snapshot tier. It attaches to an image and executes the
 * lines of its standard input, "CASE OPS ARG AT", one after another. It answers each with one line of JSON: the numbers of
 * operations and of found records, the processor time of the thread and the elapsed time in ns. The parent lets the worker
 * alternate with other processes.
 *
 * Besides the reader it contains the counterparts of the reader: random reads of records without an index (the physical
 * limit), a hash table of chained buckets as in TrafficDB (Fernandes et al., VLDB 2016, figure 9), and LMDB if <lmdb.h> was
 * available at compile time.
 *
 *   cc -O3 -march=native -o bin/image-worker bench/image/c/worker.c -lm -llmdb
 */
#define _GNU_SOURCE
#define RHUMB_SNAP_IMPLEMENTATION
#include "../../../snapshot/reader/c/rhumb_snap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#if defined(__has_include)
#if __has_include(<lmdb.h>)
#include <lmdb.h>
#define HAVE_LMDB 1
#endif
#endif

enum {
	VALUE_SIZE = 84,  /* box and value are 100 bytes, the record is 128 */
	RECORD_SIZE = 128,
	VALUE_AT = 40,    /* after the header and the box of the record */
	GROUP_MAX = 64
};

/* ---- This process ---- */

static const char *dir, *table_name;
static unsigned attach_flags;
static uint64_t records, seed;
static rs_client *client;
static rs_view view, old_view;
static const rs_table *table, *old_table;

static uint64_t *keys;
static uint64_t keys_n;

static rs_box *tiles;
static uint64_t tiles_n;

static uint64_t clock_ns(clockid_t id) {
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
	printf("{\"error\":\"%s: %s\"}\n", what, rs_last_error()->message);
	fflush(stdout);
	exit(1);
}

/* ---- Keys: as in keys.go ---- */

static uint64_t mix(uint64_t x) {
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t mulhi(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }

/* shuffled returns element i of a permutation of 0 to records-1 that depends on the seed. */
static uint64_t shuffled(uint64_t i) {
	unsigned bits = 1;
	uint64_t mask;
	while (bits < 63 && ((uint64_t)1 << bits) < records) bits++;
	mask = ((uint64_t)1 << bits) - 1;
	i %= records;
	do {
		for (int round = 0; round < 3; round++) {
			i = (i * 0x9E3779B97F4A7C15u + mix(seed + (uint64_t)round)) & mask;
			i ^= i >> (bits / 2 + 1);
		}
	} while (i >= records);
	return i;
}

static void make_keys(uint64_t n, uint64_t from) {
	keys = realloc(keys, n * sizeof *keys + 1);
	keys_n = n;
	for (uint64_t i = 0; i < n; i++) keys[i] = mix(shuffled(from + i));
}

/* ---- Every read reads the whole value of the record ---- */

static uint64_t sum;

/* Blocks are aligned, because a load across the edge of a missing cache line delays the loads after it. Compilers generate
 * such loads for a plain loop, and all measurements would then mostly measure this function. A value starts at a multiple
 * of 4. */
typedef uint64_t block __attribute__((vector_size(16), may_alias));
static block block_sum;

static inline void consume(const uint8_t *p) {
	const block *b = (const block *)((uintptr_t)p & ~(uintptr_t)15);
	block_sum += ((b[0] + b[1]) + (b[2] + b[3])) + (b[4] + b[5]);
}

/* The counterparts prefetch like the reader. */
#define PREFETCH(p) rs__prefetch_many((const void *)(p))

/* ---- The physical limit ---- */

/* fetch_record prefetches both lines of a record: like the reader, or into the first-level cache, as in the measurements on
 * which the goals are based. */
static inline __attribute__((always_inline)) void fetch_record(const uint8_t *at, int first) {
	if (first) {
		__builtin_prefetch(at, 0, 3);
		__builtin_prefetch(at + 64, 0, 3);
	} else {
		PREFETCH(at);
		PREFETCH(at + 64);
	}
}

static inline __attribute__((always_inline)) uint64_t run_limit(uint64_t n, unsigned group, int first) {
	const uint8_t *heap[RS_SHARDS_MAX];
	uint64_t per[RS_SHARDS_MAX], mask = table->shard_count - 1u;
	for (unsigned i = 0; i <= mask; i++) {
		heap[i] = table->segs[i]->heap;
		per[i] = (uint64_t)table->segs[i]->base_units * 64 / RECORD_SIZE;
	}
	if (group <= 1) {
		for (uint64_t i = 0; i < n; i++) {
			uint64_t k = keys[i], s = k & mask;
			consume(heap[s] + mulhi(k, per[s]) * RECORD_SIZE + VALUE_AT);
		}
		return n;
	}
	for (uint64_t i = 0; i < n; i += group) {
		const uint8_t *at[GROUP_MAX];
		unsigned m = n - i < group ? (unsigned)(n - i) : group;
		for (unsigned j = 0; j < m; j++) {
			uint64_t k = keys[i + j], s = k & mask;
			at[j] = heap[s] + mulhi(k, per[s]) * RECORD_SIZE;
			fetch_record(at[j], first);
		}
		for (unsigned j = 0; j < m; j++) consume(at[j] + VALUE_AT);
	}
	return n;
}

/* ---- The reader ---- */

static uint64_t run_get(const rs_view *v, const rs_table *t, uint64_t n) {
	uint64_t found = 0;
	for (uint64_t i = 0; i < n; i++) {
		rs_value val;
		if (rs_get(v, t, keys[i], &val) == RS_OK) {
			consume(val.data);
			found++;
		}
	}
	return found;
}

static uint64_t run_mget(const rs_view *v, const rs_table *t, uint64_t n, unsigned group) {
	uint64_t found = 0;
	rs_value out[GROUP_MAX];
	for (uint64_t i = 0; i < n; i += group) {
		unsigned m = n - i < group ? (unsigned)(n - i) : group;
		if (rs_mget(v, t, keys + i, m, out) < 0) fail("rs_mget");
		for (unsigned j = 0; j < m; j++)
			if (out[j].data) {
				consume(out[j].data);
				found++;
			}
	}
	return found;
}

static uint64_t run_lock(uint64_t n) {
	for (uint64_t i = 0; i < n; i++) {
		rs_view v;
		if (rs_lock(client, &v) != RS_OK) fail("rs_lock");
		rs_unlock(&v);
	}
	return n;
}

static int visit(void *context, const rs_item *item) {
	++*(uint64_t *)context;
	sum += item->value[0];
	return 0;
}

static uint64_t run_bbox(uint64_t n, uint64_t from) {
	uint64_t found = 0;
	for (uint64_t i = 0; i < n; i++)
		if (rs_bbox(&view, table, tiles[(from + i) % tiles_n], visit, &found) != RS_OK) fail("rs_bbox");
	return found;
}

static void lock_now(void) {
	rs_unlock(&view);
	if (rs_lock(client, &view) != RS_OK) fail("rs_lock");
	if (rs_table_by_name(&view, table_name, &table) != RS_OK) fail("rs_table_by_name");
}

static void lock_old(void) {
	rs_unlock(&old_view);
	if (rs_lock(client, &old_view) != RS_OK) fail("rs_lock");
	if (rs_table_by_name(&old_view, table_name, &old_table) != RS_OK) fail("rs_table_by_name");
}

static void attach_now(void) {
	if (rs_attach(&client, dir, attach_flags) != RS_OK) fail("rs_attach");
	rs_set_max_lock_age(client, 0);
	lock_now();
}

static void detach_now(void) {
	rs_unlock(&old_view);
	rs_unlock(&view);
	if (client && rs_detach(client) != RS_OK) fail("rs_detach");
	client = NULL;
}

/* run_attach detaches and attaches for each operation, as the clients of TrafficDB do with each object. */
static uint64_t run_attach(uint64_t n) {
	for (uint64_t i = 0; i < n; i++) {
		detach_now();
		attach_now();
	}
	return n;
}

static void read_tiles(const char *path) {
	FILE *f = fopen(path, "rb");
	int32_t b[4];
	if (!f) fail("tiles");
	free(tiles);
	tiles = NULL;
	for (tiles_n = 0; fread(b, sizeof b, 1, f) == 1; tiles_n++) {
		if (tiles_n % 1024 == 0) tiles = realloc(tiles, (tiles_n + 1024) * sizeof *tiles);
		tiles[tiles_n] = (rs_box){b[1] / 1e7, b[0] / 1e7, b[3] / 1e7, b[2] / 1e7};
	}
	fclose(f);
}

/* ---- Chained buckets, as in TrafficDB ---- */

typedef struct bucket {
	uint64_t key;
	uint32_t next, type;
	int32_t box[4];
	uint64_t location;
	const uint8_t *traffic;
} bucket;

static uint32_t *chain_heads;
static bucket *chain_buckets;
static size_t heads_bytes, buckets_bytes;
static unsigned chain_shift;

static void *huge_alloc(size_t n) {
	const size_t huge = 2u << 20;
	uint8_t *p = mmap(NULL, n + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) fail("mmap");
	madvise(p, n + huge, MADV_HUGEPAGE);
	return p;
}

static uint64_t chain_hash(uint64_t key) {
	unsigned __int128 m = (unsigned __int128)(key ^ 0x2d358dccaa6c78a5u) * 0x8bb84b93962eacc9u;
	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static void chain_free(void) {
	if (chain_heads) munmap(chain_heads, heads_bytes + (2u << 20));
	if (chain_buckets) munmap(chain_buckets, buckets_bytes + (2u << 20));
	chain_heads = NULL;
	chain_buckets = NULL;
}

/* chain_build builds the index over the records of the image, with 1.6 to 3.2 heads per record. */
static uint64_t chain_build(void) {
	unsigned bits = 1;
	uint32_t n = 0;
	chain_free();
	while ((uint64_t)1 << bits < records * 8 / 5) bits++;
	chain_shift = 64 - bits;
	heads_bytes = sizeof *chain_heads << bits;
	buckets_bytes = (records + 1) * sizeof *chain_buckets;
	chain_heads = huge_alloc(heads_bytes);
	chain_buckets = huge_alloc(buckets_bytes);
	for (uint64_t i = 0; i < records; i += GROUP_MAX) {
		uint64_t k[GROUP_MAX];
		rs_value out[GROUP_MAX];
		unsigned m = records - i < GROUP_MAX ? (unsigned)(records - i) : GROUP_MAX;
		for (unsigned j = 0; j < m; j++) k[j] = mix(i + j);
		if (rs_mget(&view, table, k, m, out) != (int64_t)m) fail("chain: a key is missing");
		for (unsigned j = 0; j < m; j++) {
			uint32_t *head = &chain_heads[chain_hash(k[j]) >> chain_shift];
			bucket *b = &chain_buckets[++n];
			b->key = k[j];
			b->next = *head;
			b->type = 1;
			b->traffic = out[j].data;
			*head = n;
		}
	}
	return n;
}

/* chain_get returns the same information as rs_get, as far as the index has it. */
static __attribute__((noinline)) int chain_get(uint64_t key, rs_value *out) {
	for (uint32_t at = chain_heads[chain_hash(key) >> chain_shift]; at; at = chain_buckets[at].next) {
		const bucket *b = &chain_buckets[at];
		if (b->key != key) continue;
		out->data = b->traffic;
		out->len = VALUE_SIZE;
		out->status = RS_OK;
		out->version = 0;
		out->record = b;
		return RS_OK;
	}
	return RS_NOT_FOUND;
}

static uint64_t run_chain(uint64_t n) {
	uint64_t found = 0;
	for (uint64_t i = 0; i < n; i++) {
		rs_value val;
		if (chain_get(keys[i], &val) == RS_OK) {
			consume(val.data);
			found++;
		}
	}
	return found;
}

/* run_chain_group walks the chains of a group of keys interleaved. */
static uint64_t run_chain_group(uint64_t n, unsigned group) {
	uint64_t found = 0;
	for (uint64_t i = 0; i < n; i += group) {
		uint64_t h[GROUP_MAX];
		uint32_t at[GROUP_MAX];
		const uint8_t *out[GROUP_MAX];
		unsigned m = n - i < group ? (unsigned)(n - i) : group, live = m;
		for (unsigned j = 0; j < m; j++) {
			h[j] = chain_hash(keys[i + j]) >> chain_shift;
			PREFETCH(&chain_heads[h[j]]);
		}
		for (unsigned j = 0; j < m; j++) {
			at[j] = chain_heads[h[j]];
			out[j] = NULL;
			PREFETCH(&chain_buckets[at[j]]);
		}
		while (live) {
			live = 0;
			for (unsigned j = 0; j < m; j++) {
				const bucket *b = &chain_buckets[at[j]];
				if (!at[j]) continue;
				if (b->key == keys[i + j]) {
					out[j] = b->traffic;
					PREFETCH(out[j]);
					PREFETCH(out[j] + VALUE_SIZE - 1);
					at[j] = 0;
				} else {
					at[j] = b->next;
					PREFETCH(&chain_buckets[at[j]]);
					live++;
				}
			}
		}
		for (unsigned j = 0; j < m; j++)
			if (out[j]) {
				consume(out[j]);
				found++;
			}
	}
	return found;
}

/* ---- LMDB ---- */

#ifdef HAVE_LMDB
static MDB_env *env;
static MDB_dbi dbi;
static MDB_txn *reading;

static void must(int status, const char *what) {
	if (status == 0) return;
	printf("{\"error\":\"%s: %s\"}\n", what, mdb_strerror(status));
	fflush(stdout);
	exit(1);
}

/* sort_keys sorts by 16 bits per pass. */
static void sort_keys(uint64_t *k, uint64_t n) {
	uint64_t *other = malloc(n * sizeof *other + 1), *count = malloc(65536 * sizeof *count);
	for (int shift = 0; shift < 64; shift += 16) {
		uint64_t at = 0, *swap;
		memset(count, 0, 65536 * sizeof *count);
		for (uint64_t i = 0; i < n; i++) count[k[i] >> shift & 65535]++;
		for (int d = 0; d < 65536; d++) {
			uint64_t c = count[d];
			count[d] = at;
			at += c;
		}
		for (uint64_t i = 0; i < n; i++) other[count[k[i] >> shift & 65535]++] = k[i];
		swap = k, k = other, other = swap;
	}
	free(other); /* after four passes k is the array of the caller again */
	free(count);
}

static void lmdb_value(uint8_t *value, uint64_t key) {
	uint64_t w[12];
	for (unsigned i = 0; i < 12; i++) w[i] = key + i;
	memcpy(value, w, sizeof w);
}

/* lmdb_load fills a database in the way that favours LMDB most: in key order, with integer keys and without sync. */
static uint64_t lmdb_load(const char *path) {
	uint64_t *all = malloc(records * sizeof *all + 1);
	uint8_t value[100] = {0};
	MDB_txn *t;
	for (uint64_t i = 0; i < records; i++) all[i] = mix(i);
	sort_keys(all, records);
	must(mdb_env_create(&env), "mdb_env_create");
	must(mdb_env_set_mapsize(env, (size_t)records * 180 + (256u << 20)), "mdb_env_set_mapsize");
	must(mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOSYNC | MDB_NORDAHEAD | MDB_WRITEMAP | MDB_NOMETASYNC, 0600), "mdb_env_open");
	for (uint64_t i = 0; i < records;) {
		must(mdb_txn_begin(env, NULL, 0, &t), "mdb_txn_begin");
		must(mdb_dbi_open(t, NULL, MDB_INTEGERKEY | MDB_CREATE, &dbi), "mdb_dbi_open");
		for (unsigned j = 0; j < 2000000 && i < records; j++, i++) {
			MDB_val k = {8, &all[i]}, v = {sizeof value, value};
			lmdb_value(value, all[i]);
			must(mdb_put(t, dbi, &k, &v, MDB_APPEND), "mdb_put");
		}
		must(mdb_txn_commit(t), "mdb_txn_commit");
	}
	free(all);
	return records;
}

static uint64_t run_lmdb(uint64_t n) {
	uint64_t found = 0;
	must(mdb_txn_begin(env, NULL, MDB_RDONLY, &reading), "mdb_txn_begin");
	for (uint64_t i = 0; i < n; i++) {
		MDB_val k = {8, &keys[i]}, v;
		if (mdb_get(reading, dbi, &k, &v) == 0) {
			consume(v.mv_data);
			found++;
		}
	}
	mdb_txn_abort(reading);
	return found;
}

static uint64_t run_lmdb_write(uint64_t n, uint64_t each) {
	uint8_t value[100] = {0};
	MDB_txn *t;
	for (uint64_t i = 0; i < n;) {
		must(mdb_txn_begin(env, NULL, 0, &t), "mdb_txn_begin");
		for (uint64_t j = 0; j < each && i < n; j++, i++) {
			MDB_val k = {8, &keys[i]}, v = {sizeof value, value};
			lmdb_value(value, keys[i] + i);
			must(mdb_put(t, dbi, &k, &v, 0), "mdb_put");
		}
		must(mdb_txn_commit(t), "mdb_txn_commit");
	}
	return n;
}

static void lmdb_free(void) {
	if (env) mdb_env_close(env);
	env = NULL;
}
#endif

/* ---- The loop ---- */

static uint64_t peer(const char *name, uint64_t ops, const char *arg, int *known) {
#ifdef HAVE_LMDB
	if (!strcmp(name, "lmdb-load")) return lmdb_load(arg);
	if (!strcmp(name, "lmdb")) return run_lmdb(ops);
	if (!strcmp(name, "lmdb-write")) return run_lmdb_write(ops, strtoull(arg, NULL, 10));
	if (!strcmp(name, "lmdb-free")) return lmdb_free(), 0;
#else
	(void)ops, (void)arg;
	if (!strncmp(name, "lmdb", 4)) {
		printf("{\"error\":\"compiled without lmdb.h\"}\n");
		fflush(stdout);
		exit(1);
	}
#endif
	*known = 0;
	return 0;
}

static uint64_t carry_out(const char *name, uint64_t ops, const char *arg, int *known) {
	uint64_t number = strtoull(arg, NULL, 10);
	*known = 1;
	if (!strcmp(name, "keys")) return make_keys(ops, number), ops;
	if (!strcmp(name, "tiles")) return read_tiles(arg), tiles_n;
	if (!strcmp(name, "lock-new")) return lock_now(), 1;
	if (!strcmp(name, "lock-old")) return lock_old(), 1;
	if (!strcmp(name, "detach")) return detach_now(), 1;
	if (!strcmp(name, "attach")) return attach_now(), 1;
	if (!strcmp(name, "attaches")) return run_attach(ops);
	if (!strcmp(name, "limit")) return run_limit(ops, (unsigned)number, 1);
	if (!strcmp(name, "limit-second")) return run_limit(ops, (unsigned)number, 0);
	if (!strcmp(name, "get")) return run_get(&view, table, ops);
	if (!strcmp(name, "mget")) return run_mget(&view, table, ops, (unsigned)number);
	if (!strcmp(name, "get-old")) return run_get(&old_view, old_table, ops);
	if (!strcmp(name, "mget-old")) return run_mget(&old_view, old_table, ops, (unsigned)number);
	if (!strcmp(name, "locks")) return run_lock(ops);
	if (!strcmp(name, "bbox")) return run_bbox(ops, number);
	if (!strcmp(name, "chain-build")) return chain_build();
	if (!strcmp(name, "chain-free")) return chain_free(), 0;
	if (!strcmp(name, "chain")) return number > 1 ? run_chain_group(ops, (unsigned)number) : run_chain(ops);
	return peer(name, ops, arg, known);
}

int main(int argc, char **argv) {
	char line[1024], name[64], arg[900];
	if (argc != 6) {
		fprintf(stderr, "usage: %s DIR TABLE RECORDS SEED huge|small\n", argv[0]);
		return 2;
	}
	dir = argv[1], table_name = argv[2];
	records = strtoull(argv[3], NULL, 10), seed = strtoull(argv[4], NULL, 10);
	attach_flags = RS_POPULATE | RS_HUGE;
	if (!strcmp(argv[5], "small")) {
		attach_flags = RS_POPULATE;
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* no page of 2 MiB is mapped then, whatever pages the file has */
	}
	attach_now();
	while (fgets(line, sizeof line, stdin)) {
		unsigned long long ops = 0, start = 0;
		uint64_t cpu, wall, found, mapped = 0, huge = 0;
		int known = 0;
		arg[0] = 0;
		if (sscanf(line, "%63s %llu %899s %llu", name, &ops, arg, &start) < 1) continue;
		while (start && clock_ns(CLOCK_MONOTONIC) < start) {} /* all processes start at the same moment */
		wall = clock_ns(CLOCK_MONOTONIC);
		cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		if (!strcmp(name, "huge")) known = rs_huge_bytes(client, &mapped, &huge) == RS_OK, found = huge, ops = mapped;
		else found = carry_out(name, ops, arg, &known);
		cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
		if (!known) {
			printf("{\"error\":\"there is no case %s\"}\n", name);
		} else {
			printf("{\"ops\":%llu,\"found\":%llu,\"cpu_ns\":%llu,\"wall_ns\":%llu,\"start_ns\":%llu,\"sum\":%llu}\n", ops, (unsigned long long)found,
				(unsigned long long)cpu, (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - wall), (unsigned long long)wall, (unsigned long long)((sum + block_sum[0] + block_sum[1]) & 0xffff));
		}
		fflush(stdout);
	}
	return 0;
}
