/*
 * The C part of rhumb_snapshot: clients and views, and queries that collect their results into arrays without the
 * interpreter's lock. Everything is copied out of the image, so that no array or bytes object refers to a view that has ended.
 * A view counts the calls that are under way on it and refuses to be unlocked meanwhile.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <datetime.h>
#include <numpy/arrayobject.h>

#define RHUMB_SNAP_IMPLEMENTATION
#define RS_API static __attribute__((unused))
#include "rhumb_snap.h"

static PyObject *error_type, *expired_type, *unavailable_type, *corrupt_type, *epoch;

static PyObject *fail(int64_t status) {
	const rs_error *e = rs_last_error();
	PyObject *type = status == RS_EXPIRED ? expired_type : status == RS_UNAVAILABLE ? unavailable_type : status == RS_CORRUPT ? corrupt_type : error_type;
	if (status == RS_NO_MEMORY) return PyErr_NoMemory();
	PyObject *text = PyUnicode_FromFormat("%s: %s%s%s", rs_strerror((int)status), e->file, e->file[0] ? ": " : "", e->message);
	PyObject *error = text == NULL ? NULL : PyObject_CallFunctionObjArgs(type, text, NULL);
	PyObject *about[] = {PyLong_FromLongLong(status), PyUnicode_FromString(e->file), PyLong_FromUnsignedLongLong(e->offset)};
	const char *names[] = {"status", "file", "offset"};
	for (int i = 0; i < 3; i++) {
		if (error != NULL && (about[i] == NULL || PyObject_SetAttrString(error, names[i], about[i]) != 0)) Py_CLEAR(error);
		Py_XDECREF(about[i]);
	}
	if (error != NULL) PyErr_SetObject(type, error);
	Py_XDECREF(error);
	Py_XDECREF(text);
	return NULL;
}

/* ---- Results ---- */

/* found collects items in columns; it grows without the interpreter's lock. */
typedef struct found {
	size_t n, max;
	rs_item *items;
	uint8_t *bytes; /* keys and values, one after the other */
	size_t used, room;
	int with_values, failed;
	size_t limit;
} found;

static int grow(found *f, size_t more) {
	if (f->n == f->max) {
		size_t max = f->max ? 2 * f->max : 64;
		rs_item *items = (rs_item *)realloc(f->items, max * sizeof *items);
		if (items == NULL) return 0;
		f->items = items;
		f->max = max;
	}
	if (f->room - f->used < more) {
		size_t room = 2 * f->room + more + 4096;
		uint8_t *bytes = (uint8_t *)realloc(f->bytes, room);
		if (bytes == NULL) return 0;
		f->bytes = bytes;
		f->room = room;
	}
	return 1;
}

static int keep(void *context, const rs_item *it) {
	found *f = (found *)context;
	size_t value = f->with_values ? it->value_len : 0;
	if (!grow(f, it->name_len + value)) {
		f->failed = 1;
		return 1;
	}
	rs_item *to = &f->items[f->n++];
	*to = *it;
	to->value_len = (uint32_t)value;
	if (it->name_len > 0) memcpy(f->bytes + f->used, it->name, it->name_len);
	f->used += it->name_len;
	if (value > 0) memcpy(f->bytes + f->used, it->value, value);
	f->used += value;
	return f->limit > 0 && f->n >= f->limit;
}

static void drop(found *f) {
	free(f->items);
	free(f->bytes);
}

static PyObject *array(int n, const npy_intp *dims, int type, void **data) {
	PyObject *a = PyArray_SimpleNew(n, dims, type);
	if (a != NULL) *data = PyArray_DATA((PyArrayObject *)a);
	return a;
}

/* columns returns (keys, shard, boxes, has_box, version, hlc, expiry, distance, buffer, offsets); keys are a uint64
 * array or a list of bytes. */
static PyObject *columns(const found *f, int kind) {
	npy_intp n = (npy_intp)f->n, n4[2] = {n, 4}, n1 = n + 1, size = 0;
	void *shard, *box, *has, *ver, *hlc, *exp, *dist, *buf, *off, *num = NULL;
	for (size_t i = 0; i < f->n; i++) size += f->items[i].value_len;
	PyObject *out = PyTuple_New(10), *keys;
	if (out == NULL) return NULL;
	keys = kind == RS_KEY_NUMBER ? array(1, &n, NPY_UINT64, &num) : PyList_New(n);
	PyTuple_SET_ITEM(out, 0, keys);
	PyTuple_SET_ITEM(out, 1, array(1, &n, NPY_BOOL, &shard));
	PyTuple_SET_ITEM(out, 2, array(2, n4, NPY_DOUBLE, &box));
	PyTuple_SET_ITEM(out, 3, array(1, &n, NPY_BOOL, &has));
	PyTuple_SET_ITEM(out, 4, array(1, &n, NPY_UINT64, &ver));
	PyTuple_SET_ITEM(out, 5, array(1, &n, NPY_UINT64, &hlc));
	PyTuple_SET_ITEM(out, 6, array(1, &n, NPY_INT64, &exp));
	PyTuple_SET_ITEM(out, 7, array(1, &n, NPY_DOUBLE, &dist));
	PyTuple_SET_ITEM(out, 8, array(1, &size, NPY_UINT8, &buf));
	PyTuple_SET_ITEM(out, 9, array(1, &n1, NPY_INT64, &off));
	for (int i = 0; i < 10; i++)
		if (PyTuple_GET_ITEM(out, i) == NULL) goto failed;
	const uint8_t *at = f->bytes;
	int64_t end = 0;
	((int64_t *)off)[0] = 0;
	for (size_t i = 0; i < f->n; i++) {
		const rs_item *it = &f->items[i];
		rs_box b = rs_box_degrees(it->box);
		double *to = (double *)box + 4 * i;
		if (kind == RS_KEY_NUMBER) {
			((uint64_t *)num)[i] = it->number;
		} else {
			PyObject *key = PyBytes_FromStringAndSize((const char *)at, it->name_len);
			if (key == NULL) goto failed;
			PyList_SET_ITEM(keys, (Py_ssize_t)i, key);
		}
		at += it->name_len;
		((npy_bool *)shard)[i] = it->key_kind == RS_KEY_SHARD;
		((npy_bool *)has)[i] = it->has_box;
		to[0] = it->has_box ? b.min_lat : NAN;
		to[1] = it->has_box ? b.min_lon : NAN;
		to[2] = it->has_box ? b.max_lat : NAN;
		to[3] = it->has_box ? b.max_lon : NAN;
		((uint64_t *)ver)[i] = it->version;
		((uint64_t *)hlc)[i] = it->hlc;
		((int64_t *)exp)[i] = it->expiry;
		((double *)dist)[i] = it->distance;
		if (it->value_len > 0) memcpy((uint8_t *)buf + end, at, it->value_len);
		at += it->value_len;
		end += it->value_len;
		((int64_t *)off)[i + 1] = end;
	}
	return out;
failed:
	Py_DECREF(out);
	return NULL;
}

/* ---- Client ---- */

typedef struct client_object {
	PyObject_HEAD
	rs_client *client;
} client_object;

typedef struct view_object {
	PyObject_HEAD
	rs_view view;
	client_object *client;
	Py_ssize_t busy;
} view_object;

static PyTypeObject view_type;

static int client_init(client_object *self, PyObject *args, PyObject *kw) {
	static char *names[] = {"dir", "flags", "max_lock_age_ns", NULL};
	PyObject *path = NULL;
	unsigned flags = 0;
	long long age = RS_MAX_LOCK_AGE;
	int status;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|IL", names, PyUnicode_FSConverter, &path, &flags, &age)) return -1;
	if (self->client != NULL) {
		Py_DECREF(path);
		PyErr_SetString(PyExc_ValueError, "the client is attached");
		return -1;
	}
	const char *dir = PyBytes_AS_STRING(path);
	Py_BEGIN_ALLOW_THREADS
	status = rs_attach(&self->client, dir, flags);
	Py_END_ALLOW_THREADS
	Py_DECREF(path);
	if (status != RS_OK) return fail(status), -1;
	rs_set_max_lock_age(self->client, age);
	return 0;
}

/* detach cannot hold the interpreter's lock while the timer thread ends, but nothing else can reach the client then. */
static int detach(client_object *self) {
	rs_client *c = self->client;
	int status;
	self->client = NULL;
	Py_BEGIN_ALLOW_THREADS
	status = rs_detach(c);
	Py_END_ALLOW_THREADS
	if (status != RS_OK) self->client = c;
	return status;
}

static void client_dealloc(client_object *self) {
	detach(self);
	Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *client_close(client_object *self, PyObject *unused) {
	(void)unused;
	int status = detach(self);
	if (status != RS_OK) return fail(status);
	Py_RETURN_NONE;
}

static PyObject *closed_client(void) {
	PyErr_SetString(PyExc_ValueError, "the client is closed");
	return NULL;
}

static PyObject *client_lock(client_object *self, PyObject *args) {
	const char *kind;
	unsigned long long version = 0;
	int status;
	if (!PyArg_ParseTuple(args, "s|K", &kind, &version)) return NULL;
	if (self->client == NULL) return closed_client();
	view_object *v = PyObject_New(view_object, &view_type);
	if (v == NULL) return NULL;
	memset(&v->view, 0, sizeof v->view);
	v->busy = 0;
	Py_INCREF(self);
	v->client = self;
	if (strcmp(kind, "closed") == 0) status = rs_lock_closed(self->client, &v->view);
	else if (strcmp(kind, "version") == 0) status = rs_lock_version(self->client, &v->view, version);
	else status = rs_lock(self->client, &v->view);
	if (status == RS_OK) return (PyObject *)v;
	Py_DECREF(v);
	return fail(status);
}

static PyObject *client_info(client_object *self, PyObject *unused) {
	(void)unused;
	rs_info i;
	if (self->client == NULL) return closed_client();
	int status = rs_client_info(self->client, &i);
	if (status != RS_OK) return fail(status);
	return Py_BuildValue("{s:y#,s:I,s:I,s:K,s:L,s:K,s:I,s:K,s:K}", "image", i.image, (Py_ssize_t)16, "state", i.state, "pid", i.pid, "life", (unsigned long long)i.life,
		"heartbeat_age_ns", (long long)i.heartbeat_age, "committed", (unsigned long long)i.committed, "views", i.views, "mapped_bytes", (unsigned long long)i.mapped_bytes,
		"pinned_bytes", (unsigned long long)i.pinned_bytes);
}

static PyMethodDef client_methods[] = {
	{"close", (PyCFunction)client_close, METH_NOARGS, NULL},
	{"lock", (PyCFunction)client_lock, METH_VARARGS, NULL},
	{"info", (PyCFunction)client_info, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyTypeObject client_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rhumb_snapshot._snap.Client",
	.tp_basicsize = sizeof(client_object),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = PyType_GenericNew,
	.tp_init = (initproc)client_init,
	.tp_dealloc = (destructor)client_dealloc,
	.tp_methods = client_methods,
};

/* ---- View ---- */

static void view_dealloc(view_object *self) {
	rs_unlock(&self->view); /* nothing is under way: a call holds a reference */
	Py_XDECREF(self->client);
	PyObject_Free(self);
}

static PyObject *view_unlock(view_object *self, PyObject *unused) {
	(void)unused;
	if (self->busy > 0) {
		PyErr_Format(error_type, "%zd calls are under way on the view", self->busy);
		return NULL;
	}
	rs_unlock(&self->view);
	Py_RETURN_NONE;
}

static PyObject *view_about(view_object *self, PyObject *unused) {
	(void)unused;
	return Py_BuildValue("(KKLO)", (unsigned long long)self->view.version, (unsigned long long)rs_closed(&self->view), (long long)rs_age(&self->view),
		self->view.client != NULL ? Py_True : Py_False);
}

static PyObject *view_commit(view_object *self, PyObject *unused) {
	(void)unused;
	rs_commit c;
	int status = rs_view_commit(&self->view, &c);
	if (status == RS_NOT_FOUND) Py_RETURN_NONE;
	if (status != RS_OK) return fail(status);
	return Py_BuildValue("(KKLLKI)", (unsigned long long)c.version, (unsigned long long)c.closed, (long long)c.event, (long long)c.wall, (unsigned long long)c.mono, c.records);
}

static PyObject *view_position(view_object *self, PyObject *args) {
	unsigned region, slot;
	rs_position_t p;
	if (!PyArg_ParseTuple(args, "II", &region, &slot)) return NULL;
	int status = rs_position(&self->view, region, slot, &p);
	if (status == RS_NOT_FOUND) Py_RETURN_NONE;
	if (status != RS_OK) return fail(status);
	return Py_BuildValue("(KKK)", (unsigned long long)p.epoch, (unsigned long long)p.seq, (unsigned long long)p.hlc);
}

static PyObject *view_tables(view_object *self, PyObject *unused) {
	(void)unused;
	const rs_table *t;
	if (self->view.client == NULL) return fail(rs__refuse(&self->view));
	PyObject *out = PyList_New(0);
	for (unsigned i = 0; out != NULL && (t = rs_table_at(&self->view, i)) != NULL; i++) {
		PyObject *row = Py_BuildValue("(IsIIIIKs)", i, t->name, t->id, (unsigned)t->kind, (unsigned)t->flags, (unsigned)t->shard_count, (unsigned long long)rs_table_live(&self->view, t), t->location_field);
		if (row == NULL || PyList_Append(out, row) != 0) Py_CLEAR(out);
		Py_XDECREF(row);
	}
	return out;
}

static const rs_table *table_at(view_object *self, unsigned i) {
	const rs_table *t = rs_table_at(&self->view, i);
	if (t == NULL) fail(self->view.client == NULL ? rs__refuse(&self->view) : rs__fail(RS_INVALID, "", 0, "no table %u", i));
	return t;
}

/* key_of reads a key: an int, str, bytes, or bytes with kind RS_KEY_SHARD. */
static int lookup(view_object *self, const rs_table *t, PyObject *key, int shard_key, rs_value *out) {
	if (PyLong_Check(key) || PyIndex_Check(key)) {
		PyObject *index = PyNumber_Index(key);
		if (index == NULL) return -100;
		uint64_t n = PyLong_AsUnsignedLongLong(index);
		Py_DECREF(index);
		if (n == UINT64_MAX && PyErr_Occurred()) return -100;
		return rs_get(&self->view, t, n, out);
	}
	Py_ssize_t len = 0;
	const char *p = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &len) : PyBytes_Check(key) ? (len = PyBytes_GET_SIZE(key), PyBytes_AS_STRING(key)) : NULL;
	if (p == NULL) {
		if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a key is an int, a str or bytes");
		return -100;
	}
	if (shard_key && len != 16) return rs__fail(RS_INVALID, "", 0, "a shard key has 16 bytes, this one %zd", len);
	return shard_key ? rs_get_shard_key(&self->view, t, p, out) : rs_get_name(&self->view, t, p, (size_t)len, out);
}

static PyObject *view_get(view_object *self, PyObject *args) {
	unsigned table;
	PyObject *key;
	int shard_key = 0, whole = 0;
	rs_value value;
	if (!PyArg_ParseTuple(args, "IO|pp", &table, &key, &shard_key, &whole)) return NULL;
	const rs_table *t = table_at(self, table);
	if (t == NULL) return NULL;
	int status = lookup(self, t, key, shard_key, &value);
	if (status == -100) return NULL;
	if (status == RS_NOT_FOUND) Py_RETURN_NONE;
	if (status != RS_OK) return fail(status);
	if (!whole) return PyBytes_FromStringAndSize((const char *)value.data, value.len);
	rs_item item;
	found f = {.with_values = 1};
	status = rs_value_item(&self->view, t, &value, &item);
	if (status != RS_OK) return fail(status);
	keep(&f, &item);
	PyObject *out = f.failed ? PyErr_NoMemory() : columns(&f, t->kind);
	drop(&f);
	return out;
}

/* values copies the results of a batch: (buffer, offsets, found). */
static PyObject *values(const rs_value *got, size_t n) {
	npy_intp size = 0, dim = (npy_intp)n, dim1 = dim + 1;
	void *buf, *off, *ok;
	for (size_t i = 0; i < n; i++) size += got[i].len;
	PyObject *b = array(1, &size, NPY_UINT8, &buf), *o = array(1, &dim1, NPY_INT64, &off), *f = array(1, &dim, NPY_BOOL, &ok);
	if (b == NULL || o == NULL || f == NULL) {
		Py_XDECREF(b);
		Py_XDECREF(o);
		Py_XDECREF(f);
		return NULL;
	}
	int64_t end = 0;
	Py_BEGIN_ALLOW_THREADS
	((int64_t *)off)[0] = 0;
	for (size_t i = 0; i < n; i++) {
		((npy_bool *)ok)[i] = got[i].status == RS_OK;
		if (got[i].len > 0) memcpy((uint8_t *)buf + end, got[i].data, got[i].len);
		((int64_t *)off)[i + 1] = end += got[i].len;
	}
	Py_END_ALLOW_THREADS
	return Py_BuildValue("(NNN)", b, o, f);
}

static PyObject *view_mget(view_object *self, PyObject *args) {
	unsigned table;
	PyObject *keys;
	if (!PyArg_ParseTuple(args, "IO", &table, &keys)) return NULL;
	const rs_table *t = table_at(self, table);
	PyArrayObject *a = t == NULL ? NULL : (PyArrayObject *)PyArray_FROMANY(keys, NPY_UINT64, 1, 1, NPY_ARRAY_IN_ARRAY);
	if (a == NULL) return NULL;
	size_t n = (size_t)PyArray_SIZE(a);
	rs_value *got = (rs_value *)malloc((n + 1) * sizeof *got);
	const uint64_t *p = (const uint64_t *)PyArray_DATA(a);
	int64_t status = RS_NO_MEMORY;
	PyObject *out = NULL;
	self->busy++;
	Py_BEGIN_ALLOW_THREADS
	if (got != NULL) status = rs_mget(&self->view, t, p, n, got);
	Py_END_ALLOW_THREADS
	out = status < 0 ? fail(status) : values(got, n);
	self->busy--;
	Py_DECREF(a);
	free(got);
	return out;
}

static PyObject *view_mget_names(view_object *self, PyObject *args) {
	unsigned table;
	PyObject *keys, *out = NULL;
	int shard_keys = 0;
	if (!PyArg_ParseTuple(args, "IO|p", &table, &keys, &shard_keys)) return NULL;
	const rs_table *t = table_at(self, table);
	PyObject *list = t == NULL ? NULL : PySequence_Tuple(keys);
	if (list == NULL) return NULL;
	size_t n = (size_t)PyTuple_GET_SIZE(list);
	rs_name *names = (rs_name *)malloc((n + 1) * sizeof *names);
	rs_value *got = (rs_value *)malloc((n + 1) * sizeof *got);
	int64_t status = names == NULL || got == NULL ? RS_NO_MEMORY : RS_OK;
	for (size_t i = 0; i < n && status == RS_OK; i++) {
		PyObject *k = PyTuple_GET_ITEM(list, (Py_ssize_t)i);
		Py_ssize_t len = 0;
		names[i].data = PyUnicode_Check(k) ? PyUnicode_AsUTF8AndSize(k, &len) : PyBytes_Check(k) ? (len = PyBytes_GET_SIZE(k), PyBytes_AS_STRING(k)) : NULL;
		names[i].len = (uint32_t)len;
		names[i].kind = shard_keys ? RS_KEY_SHARD : RS_KEY_NAME;
		if (names[i].data == NULL) {
			if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "names are str or bytes");
			goto done;
		}
	}
	self->busy++;
	Py_BEGIN_ALLOW_THREADS
	if (status == RS_OK) status = rs_mget_names(&self->view, t, names, n, got);
	Py_END_ALLOW_THREADS
	out = status < 0 ? fail(status) : values(got, n);
	self->busy--;
done:
	Py_DECREF(list);
	free(names);
	free(got);
	return out;
}

static int64_t run_scan(const rs_view *v, const rs_table *t, const void *prefix, size_t len, found *f) {
	rs_scan *scan = (rs_scan *)malloc(sizeof *scan);
	rs_item it;
	int status = scan == NULL ? RS_NO_MEMORY : rs_scan_begin(scan, v, t, prefix, len);
	if (status == RS_OK)
		while ((status = rs_scan_next(scan, &it)) == 1)
			if (keep(f, &it) != 0) break;
	free(scan);
	return status;
}

static int64_t run_nearest(const rs_view *v, const rs_table *t, rs_point centre, size_t k, double metres, found *f) {
	rs_item *near = (rs_item *)malloc((k + 1) * sizeof *near);
	int64_t n = near == NULL ? RS_NO_MEMORY : rs_nearest(v, t, centre, k, metres, near);
	for (int64_t i = 0; i < n; i++)
		if (keep(f, &near[i]) != 0) break;
	free(near);
	return n;
}

/* run_polygon takes the sizes of k rings, and then their corners. */
static int run_polygon(const rs_view *v, const rs_table *t, const double *x, size_t n, size_t k, found *f) {
	rs_ring *rings = (rs_ring *)malloc((k + 1) * sizeof *rings);
	int status = rings == NULL ? RS_NO_MEMORY : RS_OK;
	size_t at = k;
	for (size_t i = 0; i < k && status == RS_OK; i++) {
		if (!(x[i] >= 0 && x[i] <= (double)((n - at) / 2)) || x[i] != floor(x[i])) {
			status = rs__fail(RS_INVALID, "", 0, "a ring of %g corners", x[i]);
			break;
		}
		rings[i] = (rs_ring){(const rs_point *)(const void *)(x + at), (size_t)x[i]};
		at += 2 * rings[i].n;
	}
	if (status == RS_OK) status = rs_polygon(v, t, rings, k, keep, f);
	free(rings);
	return status;
}

/* view_query(table, verb, numbers, prefix, k, values, limit) runs a query; numbers is a float64 array. */
static PyObject *view_query(view_object *self, PyObject *args) {
	unsigned table;
	const char *verb;
	PyObject *numbers;
	Py_buffer prefix;
	Py_ssize_t k, limit;
	int with_values;
	if (!PyArg_ParseTuple(args, "IsOy*npn", &table, &verb, &numbers, &prefix, &k, &with_values, &limit)) return NULL;
	const rs_table *t = table_at(self, table);
	PyArrayObject *a = t == NULL ? NULL : (PyArrayObject *)PyArray_FROMANY(numbers, NPY_DOUBLE, 1, 1, NPY_ARRAY_IN_ARRAY);
	PyObject *out = NULL;
	if (a == NULL) goto done;
	const double *x = (const double *)PyArray_DATA(a);
	size_t n = (size_t)PyArray_SIZE(a);
	found f = {.with_values = with_values, .limit = limit > 0 ? (size_t)limit : 0};
	int64_t status = RS_INVALID;
	self->busy++;
	Py_BEGIN_ALLOW_THREADS
	if (strcmp(verb, "scan") == 0) status = run_scan(&self->view, t, prefix.buf, (size_t)prefix.len, &f);
	else if (strcmp(verb, "bbox") == 0 && n == 4) status = rs_bbox(&self->view, t, (rs_box){x[0], x[1], x[2], x[3]}, keep, &f);
	else if (strcmp(verb, "radius") == 0 && n == 3) status = rs_radius(&self->view, t, (rs_point){x[0], x[1]}, x[2], keep, &f);
	else if (strcmp(verb, "nearest") == 0 && n == 3 && k >= 0 && k <= 1 << 24) status = run_nearest(&self->view, t, (rs_point){x[0], x[1]}, (size_t)k, x[2], &f);
	else if (strcmp(verb, "polygon") == 0 && k >= 0 && (size_t)k <= n) status = run_polygon(&self->view, t, x, n, (size_t)k, &f);
	else rs__fail(RS_INVALID, "", 0, "%s with %zu numbers", verb, n);
	Py_END_ALLOW_THREADS
	out = f.failed ? PyErr_NoMemory() : status < 0 ? fail(status) : columns(&f, t->kind);
	self->busy--;
	drop(&f);
done:
	Py_XDECREF(a);
	PyBuffer_Release(&prefix);
	return out;
}

static PyMethodDef view_methods[] = {
	{"unlock", (PyCFunction)view_unlock, METH_NOARGS, NULL},
	{"about", (PyCFunction)view_about, METH_NOARGS, NULL},
	{"commit", (PyCFunction)view_commit, METH_NOARGS, NULL},
	{"position", (PyCFunction)view_position, METH_VARARGS, NULL},
	{"tables", (PyCFunction)view_tables, METH_NOARGS, NULL},
	{"get", (PyCFunction)view_get, METH_VARARGS, NULL},
	{"mget", (PyCFunction)view_mget, METH_VARARGS, NULL},
	{"mget_names", (PyCFunction)view_mget_names, METH_VARARGS, NULL},
	{"query", (PyCFunction)view_query, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyTypeObject view_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rhumb_snapshot._snap.View",
	.tp_basicsize = sizeof(view_object),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_dealloc = (destructor)view_dealloc,
	.tp_methods = view_methods,
};

/* ---- Values ---- */

static PyObject *timestamp(int64_t us) {
	int64_t days = us / 86400000000, rest = us % 86400000000;
	if (days > -800000 && days < 3000000) {
		PyObject *delta = PyDelta_FromDSU((int)days, (int)(rest / 1000000), (int)(rest % 1000000));
		PyObject *at = delta == NULL ? NULL : PyNumber_Add(epoch, delta);
		Py_XDECREF(delta);
		if (at != NULL) return at;
		PyErr_Clear();
	}
	return PyLong_FromLongLong(us); /* beyond what datetime holds */
}

static PyObject *field_value(const rs_field *f) {
	rs_point p = rs_as_point(f);
	rs_box b = rs_as_box(f);
	switch (f->kind) {
	case RS_FIELD_STRING: return PyUnicode_DecodeUTF8((const char *)f->data, f->len, "surrogateescape");
	case RS_FIELD_BYTES: return PyBytes_FromStringAndSize((const char *)f->data, f->len);
	case RS_FIELD_INT64: return PyLong_FromLongLong(rs_as_int64(f));
	case RS_FIELD_FLOAT64: return PyFloat_FromDouble(rs_as_float64(f));
	case RS_FIELD_BOOL: return PyBool_FromLong(f->data[0]);
	case RS_FIELD_TIMESTAMP: return timestamp(rs_as_int64(f));
	case RS_FIELD_POINT: return Py_BuildValue("(dd)", p.lat, p.lon);
	case RS_FIELD_BOX: return Py_BuildValue("(dddd)", b.min_lat, b.min_lon, b.max_lat, b.max_lon);
	}
	Py_RETURN_NONE;
}

static PyObject *decode_record(const uint8_t *p, size_t n) {
	rs_fields it;
	rs_field f;
	int more = rs_fields_begin(&it, p, n);
	PyObject *out = more == RS_OK ? PyDict_New() : NULL;
	if (more != RS_OK) return fail(more);
	while (out != NULL && (more = rs_fields_next(&it, &f)) == 1) {
		PyObject *name = PyUnicode_DecodeUTF8(f.name, f.name_len, "surrogateescape"), *value = field_value(&f);
		if (name == NULL || value == NULL || PyDict_SetItem(out, name, value) != 0) Py_CLEAR(out);
		Py_XDECREF(name);
		Py_XDECREF(value);
	}
	if (out != NULL && more < 0) {
		Py_DECREF(out);
		return fail(more);
	}
	return out;
}

static PyObject *module_decode(PyObject *module, PyObject *arg) {
	(void)module;
	Py_buffer b;
	PyObject *out;
	const uint8_t *data;
	size_t n;
	if (PyObject_GetBuffer(arg, &b, PyBUF_SIMPLE) != 0) return NULL;
	if (rs_opaque((const uint8_t *)b.buf, (size_t)b.len, &data, &n) == RS_OK) out = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)n);
	else out = decode_record((const uint8_t *)b.buf, (size_t)b.len);
	PyBuffer_Release(&b);
	return out;
}

static PyMethodDef module_methods[] = {
	{"decode", module_decode, METH_O, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_snap", NULL, -1, module_methods, NULL, NULL, NULL, NULL};

static PyObject *make_error(PyObject *m, const char *name, PyObject *parent) {
	char whole[64];
	snprintf(whole, sizeof whole, "rhumb_snapshot.%s", name);
	PyObject *e = PyErr_NewException(whole, parent, NULL);
	if (e == NULL) return NULL;
	Py_INCREF(e);
	PyModule_AddObject(m, name, e);
	return e;
}

PyMODINIT_FUNC PyInit__snap(void) {
	import_array();
	PyDateTime_IMPORT;
	PyObject *m = PyModule_Create(&module);
	if (m == NULL || PyType_Ready(&client_type) != 0 || PyType_Ready(&view_type) != 0) return NULL;
	epoch = PyObject_CallFunction((PyObject *)PyDateTimeAPI->DateTimeType, "iiiiiiiO", 1970, 1, 1, 0, 0, 0, 0, PyDateTime_TimeZone_UTC);
	error_type = make_error(m, "Error", PyExc_Exception);
	expired_type = make_error(m, "ExpiredError", error_type);
	unavailable_type = make_error(m, "UnavailableError", error_type);
	corrupt_type = make_error(m, "CorruptError", error_type);
	Py_INCREF(&client_type);
	PyModule_AddObject(m, "Client", (PyObject *)&client_type);
	if (epoch == NULL || PyErr_Occurred()) return NULL;
	return m;
}
