/*
 * rhumb_snap.hpp: rhumb_snap.h for C++20. This header contains everything except the C reader itself: one source file, in C or C++, defines RHUMB_SNAP_IMPLEMENTATION and includes rhumb_snap.h.
 *
 *     rhumb::Client client("/dev/shm/rhumb/7f…/n3");
 *     rhumb::View view = client.lock();
 *     rhumb::Table cars = view.table("cars");
 *     if (auto car = cars.get(42)) use(car->value());
 *     for (const rhumb::Item &car : cars.bbox({52.3, 13.0, 52.7, 13.8})) use(car);
 *
 * Lifetimes. A Client must outlive its Views, and a View its Tables, Items, ranges and all spans obtained from them;
 * taking them from a temporary does not compile. Only a Table of a View creates Items. Client and View can be moved but
 * not copied; Tables stay valid when their View is moved.
 *
 * Errors are thrown as rhumb::Error; a key without a value is not an error.
 */
#ifndef RHUMB_SNAP_HPP
#define RHUMB_SNAP_HPP

#if __cplusplus < 202002L
#error "rhumb_snap.hpp needs C++20: compile with -std=c++20"
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rhumb_snap.h"

namespace rhumb {

using Box = rs_box;
using Point = rs_point;
using Commit = rs_commit;
using Position = rs_position_t;
using Bytes = std::span<const std::byte>;
using ShardKey = std::span<const std::byte, 16>;

/* Error holds the rs_last_error of a call that failed. */
class Error : public std::runtime_error {
public:
	explicit Error(int status, const rs_error &e = *rs_last_error())
		: std::runtime_error(text(status, e)), status_(status), file_(e.file), offset_(e.offset) {}

	[[nodiscard]] int status() const noexcept { return status_; }
	[[nodiscard]] const std::string &file() const noexcept { return file_; }
	[[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

	static void check(std::int64_t status) {
		if (status < 0) throw Error(static_cast<int>(status));
	}

private:
	static std::string text(int status, const rs_error &e) {
		std::string s = rs_strerror(status);
		if (e.status != status) return s;
		if (e.file[0] != 0) s += std::string(": ") + e.file + ", offset " + std::to_string(e.offset);
		return s + ": " + e.message;
	}

	int status_;
	std::string file_;
	std::uint64_t offset_;
};

namespace detail {

inline Bytes bytes(const void *p, std::size_t n) noexcept { return {static_cast<const std::byte *>(p), n}; }

template <class T> struct Field;

template <> struct Field<std::int64_t> {
	static constexpr std::uint32_t kind = RS_FIELD_INT64;
	static std::int64_t of(const rs_field &f) noexcept { return rs_as_int64(&f); }
};
template <> struct Field<double> {
	static constexpr std::uint32_t kind = RS_FIELD_FLOAT64;
	static double of(const rs_field &f) noexcept { return rs_as_float64(&f); }
};
template <> struct Field<bool> {
	static constexpr std::uint32_t kind = RS_FIELD_BOOL;
	static bool of(const rs_field &f) noexcept { return rs_as_int64(&f) != 0; }
};
template <> struct Field<std::string_view> {
	static constexpr std::uint32_t kind = RS_FIELD_STRING;
	static std::string_view of(const rs_field &f) noexcept { return {reinterpret_cast<const char *>(f.data), f.len}; }
};
template <> struct Field<Bytes> {
	static constexpr std::uint32_t kind = RS_FIELD_BYTES;
	static Bytes of(const rs_field &f) noexcept { return bytes(f.data, f.len); }
};
template <> struct Field<Point> {
	static constexpr std::uint32_t kind = RS_FIELD_POINT;
	static Point of(const rs_field &f) noexcept { return rs_as_point(&f); }
};
template <> struct Field<Box> {
	static constexpr std::uint32_t kind = RS_FIELD_BOX;
	static Box of(const rs_field &f) noexcept { return rs_as_box(&f); }
};
template <> struct Field<std::chrono::sys_time<std::chrono::microseconds>> {
	static constexpr std::uint32_t kind = RS_FIELD_TIMESTAMP;
	static std::chrono::sys_time<std::chrono::microseconds> of(const rs_field &f) noexcept {
		return std::chrono::sys_time<std::chrono::microseconds>(std::chrono::microseconds(rs_as_int64(&f)));
	}
};

} // namespace detail

/* Item is a record as a view shows it. The memory that it refers to is valid until the view ends. */
class Item {
public:
	/* The stored value, in Rhumb's encoding: see field and opaque. */
	[[nodiscard]] Bytes value() const noexcept { return detail::bytes(item_.value, item_.value_len); }
	/* The key of a table of numbers. */
	[[nodiscard]] std::uint64_t number() const noexcept { return item_.number; }
	/* The key of a table of names; the 16 bytes of a shard key. */
	[[nodiscard]] std::string_view name() const noexcept { return {reinterpret_cast<const char *>(item_.name), item_.name_len}; }
	[[nodiscard]] bool is_shard_key() const noexcept { return item_.key_kind == RS_KEY_SHARD; }
	[[nodiscard]] std::optional<Box> box() const noexcept {
		if (!item_.has_box) return std::nullopt;
		return rs_box_degrees(item_.box);
	}
	[[nodiscard]] std::uint64_t version() const noexcept { return item_.version; }
	/* The timestamp of the write; 0 unknown. */
	[[nodiscard]] std::uint64_t hlc() const noexcept { return item_.hlc; }
	[[nodiscard]] std::int64_t expiry() const noexcept { return item_.expiry; }
	/* Metres from the point of the query; only radius and nearest set it. */
	[[nodiscard]] double distance() const noexcept { return item_.distance; }

	/* The field of a record: of std::int64_t, double, bool, std::string_view, Bytes, Point, Box or
	 * sys_time<microseconds>. Empty if there is no such field, or if it has another type. */
	template <class T> [[nodiscard]] std::optional<T> field(const std::string &name) const {
		rs_field f;
		int status = rs_field_by_name(item_.value, item_.value_len, name.c_str(), &f);
		if (status == RS_CORRUPT) throw Error(status);
		if (status != RS_OK || f.kind != detail::Field<T>::kind) return std::nullopt;
		return detail::Field<T>::of(f);
	}
	/* The bytes of a value that is not a record. */
	[[nodiscard]] std::optional<Bytes> opaque() const noexcept {
		const std::uint8_t *p = nullptr;
		std::size_t n = 0;
		if (rs_opaque(item_.value, item_.value_len, &p, &n) != RS_OK) return std::nullopt;
		return detail::bytes(p, n);
	}
	[[nodiscard]] const rs_item &raw() const noexcept { return item_; }

private:
	friend class Table;
	friend class BoxRange;
	friend class ScanRange;
	Item() = default;
	explicit Item(const rs_item &item) : item_(item) {}
	rs_item item_{};
};

/* A range over a C iterator: an input range, to be walked once. */
template <class Derived> class InputRange {
public:
	class Iterator {
	public:
		using iterator_concept = std::input_iterator_tag;
		using difference_type = std::ptrdiff_t;
		using value_type = Item;

		Iterator() = default;
		const Item &operator*() const noexcept { return range_->item(); }
		const Item *operator->() const noexcept { return &range_->item(); }
		Iterator &operator++() {
			more_ = range_->next();
			return *this;
		}
		void operator++(int) { ++*this; }
		friend bool operator==(const Iterator &it, std::default_sentinel_t) noexcept { return !it.more_; }

	private:
		friend class InputRange;
		explicit Iterator(Derived *range) : range_(range), more_(range->next()) {}
		Derived *range_ = nullptr;
		bool more_ = false;
	};

	[[nodiscard]] Iterator begin() { return Iterator(static_cast<Derived *>(this)); }
	[[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

	InputRange(const InputRange &) = delete;
	InputRange &operator=(const InputRange &) = delete;
	InputRange(InputRange &&) noexcept = default;
	InputRange &operator=(InputRange &&) noexcept = default;

protected:
	InputRange() = default;
	~InputRange() = default;
};

class BoxRange : public InputRange<BoxRange> {
private:
	friend class Table;
	friend class InputRange<BoxRange>::Iterator;
	BoxRange(const rs_view *view, const rs_table *table, Box box) : it_(std::make_unique<rs_iter>()) {
		Error::check(rs_bbox_begin(it_.get(), view, table, box));
	}
	bool next() {
		int more = rs_bbox_next(it_.get(), &item_.item_);
		Error::check(more);
		return more == 1;
	}
	const Item &item() const noexcept { return item_; }
	std::unique_ptr<rs_iter> it_; // so that the range can be moved cheaply
	Item item_;
};

class ScanRange : public InputRange<ScanRange> {
private:
	friend class Table;
	friend class InputRange<ScanRange>::Iterator;
	ScanRange(const rs_view *view, const rs_table *table, std::string_view prefix) : state_(std::make_unique<State>()) {
		state_->prefix = prefix;
		Error::check(rs_scan_begin(&state_->scan, view, table, state_->prefix.data(), state_->prefix.size()));
	}
	bool next() {
		int more = rs_scan_next(&state_->scan, &item_.item_);
		Error::check(more);
		return more == 1;
	}
	const Item &item() const noexcept { return item_; }
	struct State {
		std::string prefix;
		rs_scan scan;
	};
	std::unique_ptr<State> state_;
	Item item_;
};

/* Value is an element of a batch. */
class Value {
public:
	Value() = default;
	[[nodiscard]] bool found() const noexcept { return value_.status == RS_OK && value_.data != nullptr; }
	explicit operator bool() const noexcept { return found(); }
	[[nodiscard]] Bytes value() const noexcept { return detail::bytes(value_.data, value_.len); }
	[[nodiscard]] std::uint64_t version() const noexcept { return value_.version; }

private:
	friend class Table;
	rs_value value_{};
};
static_assert(sizeof(Value) == sizeof(rs_value) && std::is_standard_layout_v<Value>);

/* A visitor takes const Item &, and returns nothing, or whether to continue. */
template <class F>
concept Visitor = std::invocable<F &, const Item &>;

/* Table is a table of a view, valid as long as the view. */
class Table {
public:
	[[nodiscard]] std::string_view name() const noexcept { return table_->name; }
	[[nodiscard]] bool ordered() const noexcept { return (table_->flags & RS_TABLE_ORDERED) != 0; }
	[[nodiscard]] bool spatial() const noexcept { return (table_->flags & RS_TABLE_SPATIAL) != 0; }
	[[nodiscard]] bool numbered() const noexcept { return table_->kind == RS_KEY_NUMBER; }
	[[nodiscard]] std::uint64_t live() const noexcept { return rs_table_live(view_, table_); }
	[[nodiscard]] const rs_table &raw() const noexcept { return *table_; }

	template <std::integral Key> [[nodiscard]] std::optional<Item> get(Key key) const {
		rs_value v;
		return item(rs_get(view_, table_, static_cast<std::uint64_t>(key), &v), v);
	}
	[[nodiscard]] std::optional<Item> get(std::string_view name) const {
		rs_value v;
		return item(rs_get_name(view_, table_, name.data(), name.size(), &v), v);
	}
	[[nodiscard]] std::optional<Item> get_shard_key(ShardKey key) const {
		rs_value v;
		return item(rs_get_shard_key(view_, table_, key.data(), &v), v);
	}

	/* mget reads many numbers at once; out has one element for each. mget returns the number found. */
	std::size_t mget(std::span<const std::uint64_t> keys, std::span<Value> out) const {
		if (out.size() < keys.size()) throw std::invalid_argument("rhumb: out is shorter than keys");
		std::int64_t n = rs_mget(view_, table_, keys.data(), keys.size(), out.empty() ? nullptr : &out.data()->value_);
		Error::check(n);
		return static_cast<std::size_t>(n);
	}
	[[nodiscard]] std::vector<Value> mget(std::span<const std::uint64_t> keys) const {
		std::vector<Value> out(keys.size());
		mget(keys, out);
		return out;
	}
	/* Names, and shard keys, of a table of names. */
	[[nodiscard]] std::vector<Value> mget(std::span<const std::string_view> names) const { return mget_names(names, RS_KEY_NAME); }
	[[nodiscard]] std::vector<Value> mget(std::span<const ShardKey> keys) const { return mget_names(keys, RS_KEY_SHARD); }

	/* bbox returns the records whose box touches the box, each once, in no order. */
	[[nodiscard]] BoxRange bbox(Box box) const { return {view_, table_, box}; }
	template <Visitor F> void bbox(Box box, F &&visit) const {
		visiting(visit, [&](rs_visitor f, void *c) { return rs_bbox(view_, table_, box, f, c); });
	}
	template <Visitor F> void radius(Point centre, double metres, F &&visit) const {
		visiting(visit, [&](rs_visitor f, void *c) { return rs_radius(view_, table_, centre, metres, f, c); });
	}
	/* polygon visits the records whose box touches a polygon: a ring within another is a hole; see rs_polygon. */
	template <Visitor F> void polygon(std::span<const std::span<const Point>> rings, F &&visit) const {
		std::vector<rs_ring> raw;
		raw.reserve(rings.size());
		for (std::span<const Point> r : rings) raw.push_back({r.data(), r.size()});
		visiting(visit, [&](rs_visitor f, void *c) { return rs_polygon(view_, table_, raw.data(), raw.size(), f, c); });
	}
	template <Visitor F> void polygon(std::span<const Point> ring, F &&visit) const { polygon(std::span<const std::span<const Point>>(&ring, 1), visit); }
	/* nearest returns up to k records, nearest first. */
	[[nodiscard]] std::vector<Item> nearest(Point centre, std::size_t k, double metres = INFINITY) const {
		std::vector<rs_item> raw(k);
		std::int64_t n = rs_nearest(view_, table_, centre, k, metres, raw.data());
		Error::check(n);
		std::vector<Item> out;
		for (const rs_item &item : std::span(raw).first(static_cast<std::size_t>(n))) out.push_back(Item(item));
		return out;
	}
	/* scan returns the records whose key begins with prefix, in order. */
	[[nodiscard]] ScanRange scan(std::string_view prefix = {}) const { return {view_, table_, prefix}; }

private:
	friend class View;
	Table(const rs_view *view, const rs_table *table) : view_(view), table_(table) {}

	std::optional<Item> item(int status, const rs_value &v) const {
		Error::check(status);
		if (status == RS_NOT_FOUND) return std::nullopt;
		Item it;
		Error::check(rs_value_item(view_, table_, &v, &it.item_));
		return it;
	}

	template <class Key> std::vector<Value> mget_names(std::span<const Key> names, std::uint32_t kind) const {
		std::vector<rs_name> keys;
		keys.reserve(names.size());
		/* A name that is too long stays too long in 32 bits. */
		for (const Key &n : names) keys.push_back({n.data(), static_cast<std::uint32_t>(std::min<std::size_t>(n.size(), UINT32_MAX)), kind});
		std::vector<Value> out(names.size());
		Error::check(rs_mget_names(view_, table_, keys.data(), keys.size(), out.empty() ? nullptr : &out.data()->value_));
		return out;
	}

	/* visiting calls a C query; an exception of the visitor waits until the query has ended. */
	template <class F, class Query> static void visiting(F &visit, Query query) {
		struct Context {
			F *visit;
			std::exception_ptr thrown;
		} context{&visit, nullptr};
		rs_visitor f = [](void *p, const rs_item *raw) -> int {
			auto *c = static_cast<Context *>(p);
			try {
				const Item item(*raw);
				if constexpr (std::is_void_v<std::invoke_result_t<F &, const Item &>>) std::invoke(*c->visit, item);
				else return std::invoke(*c->visit, item) ? 0 : 1;
				return 0;
			} catch (...) {
				c->thrown = std::current_exception();
				return 1;
			}
		};
		int status = query(f, static_cast<void *>(&context));
		if (context.thrown) std::rethrow_exception(context.thrown);
		Error::check(status);
	}

	const rs_view *view_;
	const rs_table *table_;
};

/* View is the image at one version, until it is destroyed. */
class View {
public:
	View(View &&) noexcept = default;
	View &operator=(View &&) noexcept = default;

	[[nodiscard]] std::uint64_t version() const noexcept { return rs_version(view_.get()); }
	[[nodiscard]] std::uint64_t closed() const noexcept { return rs_closed(view_.get()); }
	[[nodiscard]] std::chrono::nanoseconds age() const noexcept { return std::chrono::nanoseconds(rs_age(view_.get())); }
	[[nodiscard]] std::optional<Commit> commit() const {
		Commit c;
		int status = rs_view_commit(view_.get(), &c);
		Error::check(status);
		return status == RS_OK ? std::optional(c) : std::nullopt;
	}
	[[nodiscard]] std::optional<std::chrono::nanoseconds> staleness() const {
		std::int64_t ns = 0;
		int status = rs_staleness(view_.get(), &ns);
		Error::check(status);
		return status == RS_OK ? std::optional(std::chrono::nanoseconds(ns)) : std::nullopt;
	}
	[[nodiscard]] std::optional<Position> position(std::uint32_t region, std::uint32_t slot) const {
		Position p;
		int status = rs_position(view_.get(), region, slot, &p);
		Error::check(status);
		return status == RS_OK ? std::optional(p) : std::nullopt;
	}

	/* table throws if there is no such table; find_table returns an empty result. */
	[[nodiscard]] Table table(const std::string &name) const & {
		const rs_table *t = nullptr;
		int status = rs_table_by_name(view_.get(), name.c_str(), &t);
		if (status != RS_OK) throw Error(status);
		return {view_.get(), t};
	}
	[[nodiscard]] std::optional<Table> find_table(const std::string &name) const & {
		const rs_table *t = nullptr;
		int status = rs_table_by_name(view_.get(), name.c_str(), &t);
		Error::check(status);
		return status == RS_OK ? std::optional(Table(view_.get(), t)) : std::nullopt;
	}
	[[nodiscard]] std::vector<Table> tables() const & {
		std::vector<Table> out;
		for (unsigned i = 0; const rs_table *t = rs_table_at(view_.get(), i); i++) out.push_back(Table(view_.get(), t));
		return out;
	}
	Table table(const std::string &) const && = delete;
	std::optional<Table> find_table(const std::string &) const && = delete;
	std::vector<Table> tables() const && = delete;

private:
	friend class Client;
	struct Unlock {
		void operator()(rs_view *v) const noexcept {
			rs_unlock(v);
			delete v;
		}
	};
	template <class Lock> View(rs_client *client, Lock lock) : view_(new rs_view{}) { Error::check(lock(client, view_.get())); }
	std::unique_ptr<rs_view, Unlock> view_;
};

struct Options {
	bool populate = false, huge_pages = false, verify = false, timer = true;
	std::chrono::nanoseconds max_lock_age{RS_MAX_LOCK_AGE};
};

/* Client is an attached image. It must outlive its views: the image of a client that is destroyed earlier stays
 * mapped. */
class Client {
public:
	explicit Client(const std::string &dir, Options o = {}) {
		rs_client *c = nullptr;
		unsigned flags = (o.populate ? unsigned(RS_POPULATE) : 0u) | (o.huge_pages ? unsigned(RS_HUGE) : 0u) | (o.verify ? unsigned(RS_VERIFY) : 0u) | (o.timer ? 0u : unsigned(RS_NO_TIMER));
		Error::check(rs_attach(&c, dir.c_str(), flags));
		client_.reset(c);
		rs_set_max_lock_age(c, o.max_lock_age.count());
	}
	Client(Client &&) noexcept = default;
	Client &operator=(Client &&) noexcept = default;

	[[nodiscard]] View lock() & { return {client_.get(), rs_lock}; }
	/* A cut consistent across ranges; throws with RS_UNAVAILABLE if no closed timestamp is known. */
	[[nodiscard]] View lock_closed() & { return {client_.get(), rs_lock_closed}; }
	/* An earlier version, so that several processes can read the same one. */
	[[nodiscard]] View lock_version(std::uint64_t version) & {
		return {client_.get(), [version](rs_client *c, rs_view *v) { return rs_lock_version(c, v, version); }};
	}
	View lock() && = delete;
	View lock_version(std::uint64_t) && = delete;
	View lock_closed() && = delete;

	[[nodiscard]] rs_info info() & {
		rs_info i;
		Error::check(rs_client_info(client_.get(), &i));
		return i;
	}
	void tick() & { rs_tick(client_.get()); }
	[[nodiscard]] rs_client *raw() & noexcept { return client_.get(); }

private:
	struct Detach {
		void operator()(rs_client *c) const noexcept { rs_detach(c); }
	};
	std::unique_ptr<rs_client, Detach> client_;
};

static_assert(std::ranges::input_range<BoxRange> && std::ranges::input_range<ScanRange>);
static_assert(std::movable<View> && !std::copyable<View> && std::movable<Client> && !std::copyable<Client>);

} // namespace rhumb

#endif
