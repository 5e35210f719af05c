// query_cpp DIR: the commands of query.c, by the C++ reader.
#include <cstdio>
#include <deque>
#include <iostream>
#include <sstream>

#define RHUMB_SNAP_IMPLEMENTATION
#include "rhumb_snap.hpp"

namespace {

using rhumb::Item;
using rhumb::Point;
using Words = std::vector<std::string>;

std::string hex(std::string_view s) {
	std::string out;
	char two[3];
	for (unsigned char c : s) std::snprintf(two, sizeof two, "%02x", c), out += two;
	return out;
}

std::string unhex(std::string_view s) {
	std::string out;
	for (std::size_t i = 0; i + 1 < s.size(); i += 2) out += static_cast<char>(std::stoul(std::string(s.substr(i, 2)), nullptr, 16));
	return out;
}

std::string key(const Item &it, const rhumb::Table &t) {
	return t.numbered() ? std::to_string(it.number()) : (it.is_shard_key() ? "s:" : "n:") + hex(it.name());
}

void print(const Item &it, const rhumb::Table &t, bool distance = false) {
	std::cout << key(it, t) << " version=" << it.version() << " hlc=" << it.hlc() << " expiry=" << it.expiry() << " box=";
	if (it.box()) {
		const rs_box32 &b = it.raw().box;
		std::cout << b.min_x << ',' << b.min_y << ',' << b.max_x << ',' << b.max_y;
	} else {
		std::cout << '-';
	}
	char text[64];
	std::snprintf(text, sizeof text, " value=%zu:%08x", it.value().size(), rs__crc(it.value().data(), it.value().size()));
	std::cout << text;
	if (distance) std::snprintf(text, sizeof text, " distance=%.2f", it.distance()), std::cout << text;
	std::cout << '\n';
}

std::optional<Item> get(const rhumb::Table &t, const std::string &k) {
	if (k.starts_with("n:")) return t.get(unhex(k.substr(2)));
	if (k.starts_with("s:")) {
		const std::string raw = unhex(k.substr(2));
		return t.get_shard_key(rhumb::ShardKey(reinterpret_cast<const std::byte *>(raw.data()), 16));
	}
	return t.get(std::stoull(k));
}

// A batch of C++ takes numbers, names or shard keys, and gives values without their keys: the item is asked for again.
void mget(const rhumb::Table &t, const Words &w) {
	std::vector<std::uint64_t> numbers;
	std::deque<std::string> bytes;
	std::vector<std::string_view> names;
	std::vector<rhumb::ShardKey> shard_keys;
	for (std::size_t i = 2; i < w.size(); i++) {
		if (t.numbered()) {
			numbers.push_back(std::stoull(w[i]));
			continue;
		}
		const std::string &name = bytes.emplace_back(unhex(w[i].substr(2)));
		if (w[i][0] == 's') shard_keys.push_back(std::as_bytes(std::span(name)).first<16>());
		else names.push_back(name);
	}
	auto by_number = t.numbered() ? t.mget(numbers) : std::vector<rhumb::Value>{};
	auto by_name = t.numbered() ? by_number : t.mget(names), by_shard_key = t.numbered() ? by_number : t.mget(shard_keys);
	std::size_t at_name = 0, at_shard_key = 0;
	for (std::size_t i = 2; i < w.size(); i++) {
		auto it = get(t, w[i]);
		const rhumb::Value &got = w[i][0] == 's' ? by_shard_key[at_shard_key++] : by_name[at_name++];
		if (it.has_value() != got.found() || (it && it->value().data() != got.value().data())) std::cout << "mget differs from get\n";
		if (it) print(*it, t);
		else std::cout << "-\n";
	}
}

void field(const rhumb::Table &t, const std::string &k, const std::string &name) {
	using Time = std::chrono::sys_time<std::chrono::microseconds>;
	auto it = get(t, k);
	char text[256] = "-";
	if (!it) {
	} else if (auto s = it->field<std::string_view>(name)) {
		std::cout << "string " << hex(*s) << '\n';
		return;
	} else if (auto b = it->field<rhumb::Bytes>(name)) {
		std::cout << "bytes " << hex({reinterpret_cast<const char *>(b->data()), b->size()}) << '\n';
		return;
	} else if (auto n = it->field<std::int64_t>(name)) {
		std::snprintf(text, sizeof text, "int64 %lld", static_cast<long long>(*n));
	} else if (auto f = it->field<double>(name)) {
		std::snprintf(text, sizeof text, "float64 %.17g", *f);
	} else if (auto yes = it->field<bool>(name)) {
		std::snprintf(text, sizeof text, "bool %d", *yes);
	} else if (auto at = it->field<Time>(name)) {
		std::snprintf(text, sizeof text, "timestamp %lld", static_cast<long long>(at->time_since_epoch().count()));
	} else if (auto p = it->field<Point>(name)) {
		std::snprintf(text, sizeof text, "point %.17g %.17g", p->lat, p->lon);
	} else if (auto x = it->field<rhumb::Box>(name)) {
		std::snprintf(text, sizeof text, "box %.17g %.17g %.17g %.17g", x->min_lat, x->min_lon, x->max_lat, x->max_lon);
	}
	std::cout << text << '\n';
}

void polygon(const rhumb::Table &t, const Words &w) {
	std::vector<std::vector<Point>> corners(1);
	for (std::size_t i = 2; i < w.size(); i++) {
		if (w[i] == "/") corners.emplace_back();
		else if (i + 1 < w.size()) corners.back().push_back({std::stod(w[i]), std::stod(w[i + 1])}), i++;
	}
	std::vector<std::span<const Point>> rings(corners.begin(), corners.end());
	auto show = [&](const Item &it) { print(it, t); return true; };
	if (rings.size() == 1) t.polygon(rings[0], show);
	else t.polygon(rings, show);
}

void query(const rhumb::Table &t, const Words &w) {
	if (w[0] == "polygon") return polygon(t, w);
	std::vector<double> x;
	for (std::size_t i = 2; i < w.size() && w[0] != "scan" && w[0] != "get" && w[0] != "mget" && w[0] != "field"; i++) x.push_back(std::stod(w[i]));
	auto with_distance = [&](const Item &it) { print(it, t, true); };
	if (w[0] == "get") {
		if (auto it = get(t, w[2])) print(*it, t);
		else std::cout << "-\n";
	} else if (w[0] == "mget") {
		mget(t, w);
	} else if (w[0] == "field") {
		field(t, w[2], w[3]);
	} else if (w[0] == "scan") {
		for (const Item &it : t.scan(w.size() > 2 ? unhex(w[2]) : "")) print(it, t);
	} else if (w[0] == "bbox") {
		for (const Item &it : t.bbox({x[0], x[1], x[2], x[3]})) print(it, t);
	} else if (w[0] == "radius") {
		t.radius({x[0], x[1]}, x[2], with_distance);
	} else if (w[0] == "nearest") {
		for (const Item &it : t.nearest({x[0], x[1]}, static_cast<std::size_t>(x[2]), x[3])) print(it, t, true);
	}
}

rhumb::View lock(rhumb::Client &c, const Words &w) {
	if (w.size() > 2) return c.lock_version(std::stoull(w[2]));
	return w.size() > 1 && w[1] == "closed" ? c.lock_closed() : c.lock();
}

void answer(rhumb::Client &c, std::optional<rhumb::View> &v, const Words &w) {
	if (w[0] == "lock") {
		v.reset();
		v = lock(c, w);
		std::cout << "version=" << v->version() << " closed=" << v->closed() << '\n';
	} else if (!v) { // the last lock failed
		std::cout << "! nothing is locked\n";
	} else if (w[0] == "commit") {
		auto k = v->commit();
		if (k) std::cout << "version=" << k->version << " closed=" << k->closed << " event=" << k->event << " records=" << k->records << '\n';
	} else if (w[0] == "position") {
		auto p = v->position(static_cast<std::uint32_t>(std::stoul(w[1])), static_cast<std::uint32_t>(std::stoul(w[2])));
		if (p) std::cout << "epoch=" << p->epoch << " seq=" << p->seq << " hlc=" << p->hlc << '\n';
		else std::cout << "-\n";
	} else if (w[0] == "tables") {
		for (const rhumb::Table &t : v->tables())
			std::cout << t.name() << " id=" << t.raw().id << " kind=" << int(t.raw().kind) << " flags=" << t.raw().flags << " shards=" << t.raw().shard_count
					  << " location=" << t.raw().location_field << '\n';
	} else {
		query(v->table(w[1]), w);
	}
}

} // namespace

int main(int argc, char **argv) {
	if (argc < 2) {
		std::cerr << "usage: query_cpp DIR [unverified] <commands\n";
		return 2;
	}
	try {
		rhumb::Client client(argv[1], {.verify = argc == 2});
		std::optional<rhumb::View> view;
		for (std::string line; std::getline(std::cin, line);) {
			std::istringstream in(line);
			Words w{std::istream_iterator<std::string>(in), {}};
			if (w.empty()) continue;
			try {
				answer(client, view, w);
			} catch (const rhumb::Error &e) {
				std::cout << "! " << rs_strerror(e.status()) << '\n';
				std::cerr << e.what() << '\n';
			}
			std::cout << "." << std::endl;
		}
	} catch (const std::exception &e) {
		std::cerr << e.what() << '\n';
		return 1;
	}
}
