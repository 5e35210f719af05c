/*
 * bench DIR TABLE [-o OPS] [-r ROUNDS] [-k KEYS] [-s SEED] [-q QUERIES]: measures the C reader on a table of numbers and
 * prints one JSON object per line: first the image, then each measurement with its rounds.
 *
 *     p32       random records of 128 bytes, no index, 32 in flight: what the memory can do
 *     get       rs_get, one key after the other
 *     mget8..64 rs_mget of so many keys a call
 *     *_old     the same by a view of the oldest version that can be had
 *     bbox_S    rs_bbox of S metres side around random records, by the tree; items are counted
 *
 * Every measurement runs once in every round, so that all see the same disturbances; compare within one run, by "mops". Time
 * is the thread's CPU time. All keys exist; each read touches the whole record.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define RHUMB_SNAP_IMPLEMENTATION
#include "rhumb_snap.h"

#define ROUNDS_MAX 64
#define RECORD 128

typedef struct settings {
	size_t ops, keys, queries;
	int rounds;
	uint64_t seed;
} settings;

static rs_client *client;
static rs_view newest, oldest;
static const rs_table *table, *old_table;
static uint64_t *keys;
static size_t keys_n;
static uint64_t state;
static volatile uint64_t sink;

static uint64_t next_random(void) {
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static uint64_t below(uint64_t n) { return (uint64_t)(((rs__u128)(next_random() * UINT64_C(0x9E3779B97F4A7C15)) * n) >> 64); }

static void die(const char *what) {
	fprintf(stderr, "bench: %s: %s %s\n", what, rs_last_error()->file, rs_last_error()->message);
	exit(1);
}

/* consume reads all of a record of 128 bytes. */
static inline uint64_t consume(const void *record) {
	const uint64_t *p = (const uint64_t *)record;
	uint64_t sum = 0;
	for (int i = 0; i < RECORD / 8; i++) sum += p[i];
	return sum;
}

/* pick_keys samples keys from the index, so that any image will do. */
static void pick_keys(size_t n) {
	keys = (uint64_t *)malloc(n * sizeof *keys);
	if (keys == NULL) die("out of memory");
	for (uint64_t tries = 0; keys_n < n && tries < 1000 * n; tries++) {
		const rs_seg *s = table->segs[below(table->shard_count)];
		const uint8_t *b = s->index + below(s->buckets) * 64;
		uint32_t slot = (uint32_t)below(RS__SLOTS), ref = rs__slot_ref(b, slot);
		rs_value v;
		if (rs__u16(b + 2 * slot) == 0 || ref >= s->units) continue;
		uint64_t key = rs__u64(s->heap + (uint64_t)ref * RS__UNIT);
		if (rs_get(&newest, table, key, &v) == RS_OK && rs__room(s, (const uint8_t *)v.record) >= RECORD) keys[keys_n++] = key;
	}
	if (keys_n == 0) die("the table has no keys");
}

/* ---- What is measured: each gives how many operations it did ---- */

typedef size_t (*work)(size_t ops, size_t argument);

static size_t run_p32(size_t ops, size_t unused) {
	const uint8_t *at[32];
	uint64_t sum = 0;
	(void)unused;
	for (size_t i = 0; i < ops; i += 32) {
		for (int j = 0; j < 32; j++) {
			const rs_seg *s = table->segs[below(table->shard_count)];
			at[j] = s->heap + below(s->base_units / 2) * RECORD;
			rs__prefetch_many(at[j]);
			rs__prefetch_many(at[j] + 64);
		}
		for (int j = 0; j < 32; j++) sum += consume(at[j]);
	}
	sink += sum;
	return (ops + 31) / 32 * 32;
}

static size_t get_by(const rs_view *v, const rs_table *t, size_t ops) {
	uint64_t sum = 0;
	size_t k = below(keys_n);
	for (size_t i = 0; i < ops; i++) {
		rs_value out;
		if (++k >= keys_n) k = 0;
		if (rs_get(v, t, keys[k], &out) == RS_OK) sum += consume(out.record);
	}
	sink += sum;
	return ops;
}

static size_t mget_by(const rs_view *v, const rs_table *t, size_t ops, size_t n) {
	rs_value out[64];
	uint64_t sum = 0;
	size_t k = below(keys_n), done = 0;
	while (done < ops) {
		if (k + n > keys_n) k = 0;
		if (rs_mget(v, t, keys + k, n, out) < 0) die("rs_mget");
		for (size_t j = 0; j < n; j++)
			if (out[j].record != NULL) sum += consume(out[j].record);
		k += n;
		done += n;
	}
	sink += sum;
	return done;
}

static size_t run_get(size_t ops, size_t unused) { return (void)unused, get_by(&newest, table, ops); }
static size_t run_mget(size_t ops, size_t n) { return mget_by(&newest, table, ops, n); }
static size_t run_get_old(size_t ops, size_t unused) { return (void)unused, get_by(&oldest, old_table, ops); }
static size_t run_mget_old(size_t ops, size_t n) { return mget_by(&oldest, old_table, ops, n); }

static uint64_t items;
static int count(void *unused, const rs_item *it) {
	(void)unused;
	items++;
	sink += it->number;
	return 0;
}

static size_t run_bbox(size_t queries, size_t side) {
	size_t done = 0;
	for (size_t tries = 0; done < queries && tries < 4 * queries; tries++) {
		rs_value v;
		rs_item it;
		if (rs_get(&newest, table, keys[below(keys_n)], &v) != RS_OK || rs_value_item(&newest, table, &v, &it) != RS_OK || !it.has_box) continue;
		rs_box b = rs_box_degrees(it.box);
		double half = (double)side / 2 / 111195, wide = half / fmax(cos(b.min_lat * RS__PI / 180), 0.01);
		rs_box q = {fmax(b.min_lat - half, -90), fmax(b.min_lon - wide, -180), fmin(b.min_lat + half, 90), fmin(b.min_lon + wide, 180)};
		if (rs_bbox(&newest, table, q, count, NULL) < 0) die("rs_bbox");
		done++;
	}
	return done;
}

/* ---- Rounds ---- */

typedef struct measure {
	const char *name;
	work run;
	size_t argument, wanted;
	size_t ops[ROUNDS_MAX];
	double cpu[ROUNDS_MAX], wall[ROUNDS_MAX];
	uint64_t items;
} measure;

static double seconds(clockid_t id) { return (double)rs__clock(id) * 1e-9; }

static void run_round(measure *m, int round) {
	items = 0;
	double cpu = seconds(CLOCK_THREAD_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
	m->ops[round] = m->run(m->wanted, m->argument);
	m->cpu[round] = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
	m->wall[round] = seconds(CLOCK_MONOTONIC) - wall;
	m->items += items;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void print_measure(const measure *m, int rounds) {
	double rate[ROUNDS_MAX];
	size_t ops = 0;
	for (int i = 0; i < rounds; i++) {
		rate[i] = m->cpu[i] > 0 ? (double)m->ops[i] / m->cpu[i] / 1e6 : 0;
		ops += m->ops[i];
	}
	printf("{\"name\":\"%s\",\"ops\":%zu,\"items\":%" PRIu64 ",\"rounds\":[", m->name, ops, m->items);
	for (int i = 0; i < rounds; i++) printf("%s{\"ops\":%zu,\"cpu_s\":%.6f,\"wall_s\":%.6f}", i ? "," : "", m->ops[i], m->cpu[i], m->wall[i]);
	qsort(rate, (size_t)rounds, sizeof *rate, compare);
	double median = rounds % 2 ? rate[rounds / 2] : (rate[rounds / 2 - 1] + rate[rounds / 2]) / 2;
	printf("],\"mops\":%.4f,\"mops_min\":%.4f,\"mops_max\":%.4f,\"ns\":%.2f}\n", median, rate[0], rate[rounds - 1], median > 0 ? 1e3 / median : 0);
}

static void print_image(const char *dir, double attach) {
	rs_info info;
	uint64_t mapped = 0, huge = 0;
	if (rs_client_info(client, &info) != RS_OK || rs_huge_bytes(client, &mapped, &huge) != RS_OK) die("info");
	printf("{\"name\":\"image\",\"dir\":\"%s\",\"table\":\"%s\",\"version\":%" PRIu64 ",\"oldest\":%" PRIu64 ",\"live\":%" PRIu64 ",\"shards\":%u,\"mapped_bytes\":%" PRIu64
		   ",\"huge_bytes\":%" PRIu64 ",\"attach_s\":%.6f,\"keys\":%zu}\n",
		dir, table->name, rs_version(&newest), rs_version(&oldest), rs_table_live(&newest, table), table->shard_count, mapped, huge, attach, keys_n);
}

static settings parse(int argc, char **argv) {
	settings s = {2000000, 4000000, 2000, 5, 1};
	int c;
	while ((c = getopt(argc, argv, "o:r:k:s:q:")) != -1) {
		unsigned long long n = c == '?' ? 0 : strtoull(optarg, NULL, 10);
		switch (c) {
		case 'o': s.ops = n; break;
		case 'r': s.rounds = (int)n; break;
		case 'k': s.keys = n; break;
		case 's': s.seed = n; break;
		case 'q': s.queries = n; break;
		default: s.rounds = 0;
		}
	}
	if (argc - optind != 2 || s.rounds < 1 || s.rounds > ROUNDS_MAX || s.ops == 0 || s.keys < 64) {
		fprintf(stderr, "usage: bench [-o OPS] [-r ROUNDS, up to %d] [-k KEYS, from 64] [-s SEED] [-q QUERIES] DIR TABLE\n", ROUNDS_MAX);
		exit(2);
	}
	return s;
}

int main(int argc, char **argv) {
	settings s = parse(argc, argv);
	measure m[] = {
		{"p32", run_p32, 0, s.ops, {0}, {0}, {0}, 0},
		{"get", run_get, 0, s.ops, {0}, {0}, {0}, 0},
		{"mget8", run_mget, 8, s.ops, {0}, {0}, {0}, 0},
		{"mget16", run_mget, 16, s.ops, {0}, {0}, {0}, 0},
		{"mget32", run_mget, 32, s.ops, {0}, {0}, {0}, 0},
		{"mget64", run_mget, 64, s.ops, {0}, {0}, {0}, 0},
		{"get_old", run_get_old, 0, s.ops, {0}, {0}, {0}, 0},
		{"mget32_old", run_mget_old, 32, s.ops, {0}, {0}, {0}, 0},
		{"bbox_100", run_bbox, 100, s.queries, {0}, {0}, {0}, 0},
		{"bbox_2000", run_bbox, 2000, s.queries, {0}, {0}, {0}, 0},
		{"bbox_5000", run_bbox, 5000, s.queries / 2, {0}, {0}, {0}, 0},
		{"bbox_10000", run_bbox, 10000, s.queries / 8, {0}, {0}, {0}, 0},
		{"bbox_20000", run_bbox, 20000, s.queries / 20, {0}, {0}, {0}, 0},
		{"bbox_50000", run_bbox, 50000, s.queries / 100, {0}, {0}, {0}, 0},
	};
	size_t n = sizeof m / sizeof *m;
	state = s.seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
	double start = seconds(CLOCK_MONOTONIC);
	if (rs_attach(&client, argv[optind], RS_POPULATE | RS_HUGE) != RS_OK) die("attach");
	double attach = seconds(CLOCK_MONOTONIC) - start;
	rs_set_max_lock_age(client, 0);
	if (rs_lock(client, &newest) != RS_OK || rs_table_by_name(&newest, argv[optind + 1], &table) != RS_OK) die("table");
	if (table->kind != RS_KEY_NUMBER) die("bench reads tables of numbers");
	if (rs_lock_version(client, &oldest, newest.set->base) != RS_OK || rs_table_by_name(&oldest, argv[optind + 1], &old_table) != RS_OK) die("old lock");
	for (uint32_t i = 0; i < table->shard_count; i++)
		if (table->segs[i]->base_units < 2) die("a shard is empty; load the table before measuring");
	pick_keys(s.keys);
	print_image(argv[optind], attach);
	fflush(stdout);
	if (!(table->flags & RS_TABLE_SPATIAL)) n -= 6;
	for (int round = 0; round < s.rounds; round++)
		for (size_t i = 0; i < n; i++) run_round(&m[i], round);
	for (size_t i = 0; i < n; i++) print_measure(&m[i], s.rounds);
	rs_unlock(&oldest);
	rs_unlock(&newest);
	return rs_detach(client) == RS_OK ? 0 : 1;
}
