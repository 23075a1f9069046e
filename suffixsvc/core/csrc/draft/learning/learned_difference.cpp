#include "draft/learning/learned_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/files/crc32c.h"

namespace suffixsvc {

namespace {

using Count = LearnedDifference::Count;
using Move = LearnedDifference::Move;
using Counter = LearnedTables::Counter;

constexpr char kMagic[8] = {'S', 'F', 'X', 'L', 'R', 'D', '0', '1'};
// Counters of features take 15 bits each: the limit of 200 in units of 1/128. Bit 15 of `seen`: decayed.
constexpr float kUnit = 128.f;
constexpr std::uint32_t kDecayed = 0x8000;
constexpr auto kMostUnits = static_cast<std::uint32_t>(LearnedTables::kFeatureLimit * kUnit);
static_assert(kMostUnits < kDecayed);

float get(const std::atomic<float>& x) { return x.load(std::memory_order_relaxed); }
void put(std::atomic<float>& x, float v) { x.store(v, std::memory_order_relaxed); }

// Whether x is a whole number, but for rounding of a counter.
bool is_whole(float x) { return std::abs(x - std::round(x)) < 1.f / 1024; }

// ---------------------------------------------------------------------------------------- differences

// A counter that was halved no longer differs from its base by whole numbers: `seen` is halved at 201, or at
// a number with a fraction, whose fraction changes.
void compare_features(const std::vector<Counter>& base, const std::vector<Counter>& now,
                      std::vector<Count>& out) {
    for (std::uint32_t i = 0; i < now.size(); ++i) {
        const float seen = std::clamp(get(now[i].seen), 0.f, LearnedTables::kFeatureLimit);
        const float right = std::clamp(get(now[i].right), 0.f, seen);
        const float seen_more = seen - get(base[i].seen), right_more = right - get(base[i].right);
        const float n = std::round(seen_more), r = std::round(right_more);
        if (is_whole(seen_more) && is_whole(right_more) && r >= 0.f && r <= n) {
            if (n > 0.f) out.push_back({i, false, r, n});
        } else {
            out.push_back({i, true, right, seen});
        }
    }
}

void compare_gains(const std::vector<Counter>& base, const std::vector<Counter>& now,
                   std::vector<Count>& out) {
    for (std::uint32_t i = 0; i < now.size(); ++i) {
        const float tokens = get(now[i].right), cost = get(now[i].seen);
        if (tokens != get(base[i].right) || cost != get(base[i].seen)) out.push_back({i, true, tokens, cost});
    }
}

// The nearest float whose lower 16 bits are zero.
std::uint16_t upper_half(float x) {
    return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + 0x8000u) >> 16);
}
float from_upper_half(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

void compare_weights(const std::vector<std::atomic<float>>& base, const std::vector<std::atomic<float>>& now,
                     std::vector<Move>& out) {
    for (std::uint32_t i = 0; i < now.size(); ++i) {
        const float to = std::clamp(get(now[i]), -LearnedTables::kWeightLimit, LearnedTables::kWeightLimit);
        const float by = to - get(base[i]);
        if (by != 0.f) out.push_back({i, to, from_upper_half(upper_half(by))});
    }
}

// ---------------------------------------------------------------------------------------------- merge

void pool(Counter& into, float right, float seen) {
    const float own_right = get(into.right), own_seen = get(into.seen);
    const float total = own_seen + seen;
    if (!(total > 0.f)) return;
    const float most = std::max(own_seen, seen);
    put(into.seen, most);
    put(into.right, (own_right + right) * (most / total));
}

void merge_features(const std::vector<Count>& counts, std::vector<Counter>& into) {
    for (const Count& c : counts) {
        Counter& counter = into[c.index];
        if (c.decayed) {
            pool(counter, c.right, c.seen);
        } else {
            float right = get(counter.right) + c.right, seen = get(counter.seen) + c.seen;
            while (seen > LearnedTables::kFeatureLimit) {  // as in Learner::learn
                right *= 0.5f;
                seen *= 0.5f;
            }
            put(counter.seen, seen);
            put(counter.right, right);
        }
        // Rounding, or another thread that halved the counter meanwhile.
        if (get(counter.right) > get(counter.seen)) put(counter.right, get(counter.seen));
    }
}

void merge_weights(const std::vector<Move>& moves, std::vector<std::atomic<float>>& into) {
    for (const Move& m : moves) {
        const float own = get(into[m.index]);
        const float own_by = own - (m.to - m.by);
        if (own_by * m.by <= 0.f)
            put(into[m.index],
                std::clamp(own + m.by, -LearnedTables::kWeightLimit, LearnedTables::kWeightLimit));
        else if (std::abs(m.by) > std::abs(own_by))
            put(into[m.index], m.to);
    }
}

// ---------------------------------------------------------------------------------------------- bytes

template <typename T>
void append(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A bit for each entry of a table, then what `write` appends for each of those that changed.
template <typename Change, typename Write>
void append_table(std::string& out, std::size_t size, const std::vector<Change>& changes, Write&& write) {
    std::string bits((size + 7) / 8, '\0');
    for (const Change& c : changes)
        bits[c.index / 8] = static_cast<char>(bits[c.index / 8] | (1 << c.index % 8));
    out += bits;
    for (const Change& c : changes) write(c);
}

class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}

    template <typename T>
    bool take(T& value) {
        if (bytes_.size() < sizeof value) return false;
        std::memcpy(&value, bytes_.data(), sizeof value);
        bytes_.remove_prefix(sizeof value);
        return true;
    }
    // `read` returns whether the next change, at an index, is valid.
    template <typename Read>
    bool take_table(std::size_t size, Read&& read) {
        if (bytes_.size() < (size + 7) / 8) return false;
        const std::string_view bits = bytes_.substr(0, (size + 7) / 8);
        bytes_.remove_prefix(bits.size());
        for (std::uint32_t i = 0; i < 8 * bits.size(); ++i)
            if (bits[i / 8] >> i % 8 & 1 && (i >= size || !read(i))) return false;
        return true;
    }
    bool at_end() const { return bytes_.empty(); }

  private:
    std::string_view bytes_;
};

bool in_range(float x, float least, float most) { return x >= least && x <= most; }  // false for NaN

bool take_weights(Reader& in, std::size_t size, std::vector<Move>& out) {
    return in.take_table(size, [&](std::uint32_t i) {
        float to;
        std::uint16_t by;
        if (!in.take(to) || !in.take(by)) return false;
        out.push_back({i, to, from_upper_half(by)});
        constexpr float kLimit = LearnedTables::kWeightLimit;
        return in_range(to, -kLimit, kLimit) && in_range(out.back().by, -2 * kLimit, 2 * kLimit);
    });
}

}  // namespace

LearnedDifference LearnedDifference::between(const LearnedTables& base, const LearnedTables& now) {
    LearnedDifference out;
    compare_features(base.features, now.features, out.features);
    compare_gains(base.gains, now.gains, out.gains);
    compare_weights(base.weights, now.weights, out.weights);
    compare_weights(base.final, now.final, out.final);
    return out;
}

std::string LearnedDifference::pack(const LearnedTables& like) const {
    std::string out(kMagic, sizeof kMagic);
    append_table(out, like.features.size(), features, [&](const Count& c) {
        const auto seen = static_cast<std::uint32_t>(std::lround(c.seen * kUnit));
        const auto right = static_cast<std::uint32_t>(std::lround(c.right * kUnit));
        append(out, static_cast<std::uint16_t>(right));
        append(out, static_cast<std::uint16_t>(seen | (c.decayed ? kDecayed : 0)));
    });
    append_table(out, like.gains.size(), gains, [&](const Count& c) {
        append(out, c.right);
        append(out, c.seen);
    });
    const auto write_move = [&](const Move& m) {
        append(out, m.to);
        append(out, upper_half(m.by));
    };
    append_table(out, like.weights.size(), weights, write_move);
    append_table(out, like.final.size(), final, write_move);
    append(out, crc32c(out.data(), out.size()));
    return out;
}

std::optional<LearnedDifference> LearnedDifference::parse(std::string_view bytes, const LearnedTables& like) {
    std::uint32_t checksum;
    if (bytes.size() < sizeof kMagic + sizeof checksum ||
        std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
        return std::nullopt;
    const std::size_t size = bytes.size() - sizeof checksum;
    std::memcpy(&checksum, bytes.data() + size, sizeof checksum);
    if (crc32c(bytes.data(), size) != checksum) return std::nullopt;

    LearnedDifference out;
    Reader in(bytes.substr(sizeof kMagic, size - sizeof kMagic));
    const bool valid = in.take_table(like.features.size(),
                                     [&](std::uint32_t i) {
                                         std::uint16_t right, packed;
                                         if (!in.take(right) || !in.take(packed)) return false;
                                         const std::uint32_t seen = packed & (kDecayed - 1);
                                         out.features.push_back({i, (packed & kDecayed) != 0,
                                                                 static_cast<float>(right) / kUnit,
                                                                 static_cast<float>(seen) / kUnit});
                                         return right <= seen && seen <= kMostUnits;
                                     }) &&
                       in.take_table(like.gains.size(),
                                     [&](std::uint32_t i) {
                                         float tokens, cost;
                                         if (!in.take(tokens) || !in.take(cost)) return false;
                                         out.gains.push_back({i, true, tokens, cost});
                                         return in_range(tokens, 0.f, LearnedTables::kMaxGained) &&
                                                in_range(cost, 0.f, LearnedTables::kMaxGained);
                                     }) &&
                       take_weights(in, like.weights.size(), out.weights) &&
                       take_weights(in, like.final.size(), out.final) && in.at_end();
    if (!valid) return std::nullopt;
    return out;
}

void LearnedDifference::merge_into(LearnedTables& tables) const {
    merge_features(features, tables.features);
    for (const Count& c : gains) pool(tables.gains[c.index], c.right, c.seen);
    merge_weights(weights, tables.weights);
    merge_weights(final, tables.final);
}

}  // namespace suffixsvc
