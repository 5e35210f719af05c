/*
 * query DIR [unverified]: answers the commands on standard input from an image, one per line, each answer ended by a line with a dot. It
 * is how the tests compare the C reader with the others, and an example of its use. An error is the answer "! status".
 * Checksums are verified unless it is told not to.
 *
 *     lock newest|closed|version N
 *     tables
 *     get TABLE KEY             KEY: a number, n:HEX for a name, s:HEX for a shard key
 *     mget TABLE KEY...
 *     scan TABLE [HEX]
 *     bbox TABLE MINLAT MINLON MAXLAT MAXLON
 *     radius TABLE LAT LON METRES
 *     nearest TABLE LAT LON K METRES
 *     polygon TABLE LAT LON LAT LON LAT LON... [/ LAT LON...]    / begins another ring
 *     field TABLE KEY NAME
 *     commit
 *     position REGION SLOT
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define RHUMB_SNAP_IMPLEMENTATION
#include "rhumb_snap.h"

#define WORDS_MAX 512

static rs_client *client;
static rs_view view;

static int print_error(int status) {
	printf("! %s\n", rs_strerror(status));
	fprintf(stderr, "%s\n", rs_last_error()->message);
	return status;
}

static void print_hex(const void *data, size_t n) {
	const uint8_t *p = (const uint8_t *)data;
	for (size_t i = 0; i < n; i++) printf("%02x", p[i]);
}

static void print_item(const rs_item *it) {
	if (it->key_kind == RS_KEY_NUMBER) {
		printf("%" PRIu64, it->number);
	} else {
		printf(it->key_kind == RS_KEY_SHARD ? "s:" : "n:");
		print_hex(it->name, it->name_len);
	}
	printf(" version=%" PRIu64 " hlc=%" PRIu64 " expiry=%" PRId64 " box=", it->version, it->hlc, it->expiry);
	if (it->has_box) printf("%d,%d,%d,%d", it->box.min_x, it->box.min_y, it->box.max_x, it->box.max_y);
	else printf("-");
	printf(" value=%u:%08x", it->value_len, rs__crc(it->value, it->value_len));
}

static int visit(void *context, const rs_item *it) {
	print_item(it);
	if (context != NULL) printf(" distance=%.2f", it->distance);
	printf("\n");
	return 0;
}

static size_t unhex(char *s) {
	size_t n = strlen(s) / 2;
	for (size_t i = 0; i < n; i++) {
		char two[3] = {s[2 * i], s[2 * i + 1], 0};
		s[i] = (char)strtoul(two, NULL, 16);
	}
	return n;
}

static int get(const rs_table *t, char *key, rs_value *out) {
	if (strncmp(key, "n:", 2) == 0) return rs_get_name(&view, t, key + 2, unhex(key + 2), out);
	if (strncmp(key, "s:", 2) == 0) return unhex(key + 2) == 16 ? rs_get_shard_key(&view, t, key + 2, out) : RS_INVALID;
	return rs_get(&view, t, strtoull(key, NULL, 10), out);
}

static int print_value(const rs_table *t, const rs_value *value, int status) {
	rs_item it;
	if (status == RS_OK) status = rs_value_item(&view, t, value, &it);
	if (status == RS_OK) return visit(NULL, &it);
	if (status != RS_NOT_FOUND) return print_error(status);
	printf("-\n");
	return RS_OK;
}

static int64_t mget(const rs_table *t, char **keys, size_t n) {
	rs_value out[WORDS_MAX];
	uint64_t numbers[WORDS_MAX];
	rs_name names[WORDS_MAX];
	for (size_t i = 0; i < n; i++) {
		int named = keys[i][1] == ':';
		numbers[i] = strtoull(keys[i], NULL, 10);
		names[i].kind = keys[i][0] == 's' ? RS_KEY_SHARD : RS_KEY_NAME;
		names[i].data = named ? keys[i] + 2 : "";
		names[i].len = named ? (uint32_t)unhex(keys[i] + 2) : 0;
	}
	int64_t found = t->kind == RS_KEY_NUMBER ? rs_mget(&view, t, numbers, n, out) : rs_mget_names(&view, t, names, n, out);
	for (size_t i = 0; found >= 0 && i < n; i++) print_value(t, &out[i], out[i].status);
	return found;
}

static int print_field(const rs_table *t, char *key, const char *name) {
	rs_value value;
	rs_field f;
	int status = get(t, key, &value);
	if (status == RS_OK) status = rs_field_by_name(value.data, value.len, name, &f);
	if (status == RS_NOT_FOUND) return printf("-\n");
	if (status != RS_OK) return status;
	rs_point p = rs_as_point(&f);
	rs_box b = rs_as_box(&f);
	switch (f.kind) {
	case RS_FIELD_STRING:
	case RS_FIELD_BYTES:
		printf("%s ", f.kind == RS_FIELD_STRING ? "string" : "bytes");
		print_hex(f.data, f.len);
		break;
	case RS_FIELD_INT64: printf("int64 %" PRId64, rs_as_int64(&f)); break;
	case RS_FIELD_FLOAT64: printf("float64 %.17g", rs_as_float64(&f)); break;
	case RS_FIELD_BOOL: printf("bool %d", (int)rs_as_int64(&f)); break;
	case RS_FIELD_TIMESTAMP: printf("timestamp %" PRId64, rs_as_int64(&f)); break;
	case RS_FIELD_POINT: printf("point %.17g %.17g", p.lat, p.lon); break;
	case RS_FIELD_BOX: printf("box %.17g %.17g %.17g %.17g", b.min_lat, b.min_lon, b.max_lat, b.max_lon); break;
	}
	return printf("\n");
}

static int scan(const rs_table *t, char *prefix) {
	rs_scan *s = (rs_scan *)malloc(sizeof *s);
	rs_item it;
	size_t n = prefix != NULL ? unhex(prefix) : 0;
	int status = s == NULL ? RS_NO_MEMORY : rs_scan_begin(s, &view, t, prefix, n);
	if (status == RS_OK)
		while ((status = rs_scan_next(s, &it)) == 1) visit(NULL, &it);
	free(s);
	return status;
}

static int bbox(const rs_table *t, rs_box box) {
	rs_iter iter;
	rs_item it;
	int status = rs_bbox_begin(&iter, &view, t, box);
	if (status == RS_OK)
		while ((status = rs_bbox_next(&iter, &it)) == 1) visit(NULL, &it);
	return status;
}

static int64_t nearest(const rs_table *t, rs_point centre, size_t k, double metres) {
	rs_item *out = (rs_item *)calloc(k + 1, sizeof *out);
	int64_t n = out == NULL ? RS_NO_MEMORY : rs_nearest(&view, t, centre, k, metres, out);
	for (int64_t i = 0; i < n; i++) visit(&client, &out[i]);
	free(out);
	return n;
}

static int polygon(const rs_table *t, char **word, int words) {
	rs_point p[WORDS_MAX / 2];
	rs_ring rings[WORDS_MAX / 2];
	size_t points = 0, n = 0;
	for (int i = 2; i < words; n++) {
		rs_ring *r = &rings[n];
		*r = (rs_ring){&p[points], 0};
		for (; i + 1 < words && strcmp(word[i], "/") != 0; i += 2, r->n++) p[points++] = (rs_point){strtod(word[i], NULL), strtod(word[i + 1], NULL)};
		i++;
	}
	return rs_polygon(&view, t, rings, n, visit, NULL);
}

static int64_t spatial(const rs_table *t, char **word, int words) {
	double x[WORDS_MAX] = {0};
	rs_point p[WORDS_MAX / 2];
	for (int i = 2; i < words; i++) x[i - 2] = strtod(word[i], NULL);
	for (int i = 0; i < WORDS_MAX / 2; i++) p[i].lat = x[2 * i], p[i].lon = x[2 * i + 1];
	rs_box box = {x[0], x[1], x[2], x[3]};
	if (strcmp(word[0], "bbox") == 0) return bbox(t, box);
	if (strcmp(word[0], "radius") == 0) return rs_radius(&view, t, p[0], x[2], visit, &client);
	if (strcmp(word[0], "nearest") == 0) return nearest(t, p[0], (size_t)x[2], x[3]);
	if (strcmp(word[0], "polygon") == 0) return polygon(t, word, words);
	return RS_INVALID;
}

static int lock(char **word, int words) {
	rs_unlock(&view);
	int status = RS_INVALID;
	if (words > 1 && strcmp(word[1], "closed") == 0) status = rs_lock_closed(client, &view);
	else if (words > 2) status = rs_lock_version(client, &view, strtoull(word[2], NULL, 10));
	else status = rs_lock(client, &view);
	if (status == RS_OK) printf("version=%" PRIu64 " closed=%" PRIu64 "\n", rs_version(&view), rs_closed(&view));
	return status;
}

static int print_commit(void) {
	rs_commit c;
	int status = rs_view_commit(&view, &c);
	if (status == RS_OK) printf("version=%" PRIu64 " closed=%" PRIu64 " event=%" PRId64 " records=%u\n", c.version, c.closed, c.event, c.records);
	return status;
}

static int position(char **word) {
	rs_position_t p;
	int status = rs_position(&view, (uint32_t)strtoul(word[1], NULL, 10), (uint32_t)strtoul(word[2], NULL, 10), &p);
	if (status == RS_OK) printf("epoch=%" PRIu64 " seq=%" PRIu64 " hlc=%" PRIu64 "\n", p.epoch, p.seq, p.hlc);
	if (status == RS_NOT_FOUND) return printf("-\n");
	return status;
}

static int64_t answer(char **word, int words) {
	const rs_table *t = NULL;
	rs_value value;
	if (strcmp(word[0], "lock") == 0) return lock(word, words);
	if (strcmp(word[0], "commit") == 0) return print_commit();
	if (strcmp(word[0], "position") == 0 && words == 3) return position(word);
	if (strcmp(word[0], "tables") == 0) {
		for (unsigned i = 0; (t = rs_table_at(&view, i)) != NULL; i++)
			printf("%s id=%u kind=%u flags=%u shards=%u location=%s\n", t->name, t->id, t->kind, t->flags, t->shard_count, t->location_field);
		return RS_OK;
	}
	int status = words < 2 ? RS_INVALID : rs_table_by_name(&view, word[1], &t);
	if (status != RS_OK) return status == RS_NOT_FOUND ? print_error(status) : status;
	if (strcmp(word[0], "get") == 0 && words == 3) return status = get(t, word[2], &value), status < 0 ? status : print_value(t, &value, status);
	if (strcmp(word[0], "mget") == 0) return mget(t, word + 2, (size_t)words - 2);
	if (strcmp(word[0], "scan") == 0) return scan(t, words > 2 ? word[2] : NULL);
	if (strcmp(word[0], "field") == 0 && words == 4) return print_field(t, word[2], word[3]);
	return spatial(t, word, words);
}

int main(int argc, char **argv) {
	static char line[1 << 20];
	if (argc < 2) {
		fprintf(stderr, "usage: query DIR [unverified] <commands\n");
		return 2;
	}
	int status = rs_attach(&client, argv[1], argc > 2 ? 0 : RS_VERIFY);
	if (status != RS_OK) {
		print_error(status);
		return 1;
	}
	while (fgets(line, sizeof line, stdin) != NULL) {
		char *word[WORDS_MAX], *rest = line;
		int words = 0;
		while (words < WORDS_MAX && (word[words] = strtok_r(rest, " \n", &rest)) != NULL) words++;
		if (words == 0) continue;
		int64_t n = answer(word, words);
		if (n < 0) print_error((int)n);
		printf(".\n");
		fflush(stdout);
	}
	rs_unlock(&view);
	return rs_detach(client) == RS_OK ? 0 : 1;
}
