#include "segment/build/segment_sort.h"

#include <algorithm>
#include <array>
#include <bit>

namespace suffixsvc {

namespace {

constexpr std::size_t kRadixFrom = 2048;  // smaller groups are sorted by comparison
constexpr std::size_t kAhead = 16;        // prefetch distance in positions

struct Item {
    std::uint64_t key;
    std::uint32_t position;
};

class Sorter {
  public:
    Sorter(std::span<const std::uint32_t> codes, std::uint32_t alphabet, std::uint32_t depth, SegmentJob& job)
        : codes_(codes),
          bits_(std::max(1, static_cast<int>(std::bit_width(alphabet)))),
          per_key_(static_cast<std::uint32_t>(64 / bits_)),
          depth_(depth),
          job_(job) {}

    // Sorts a group that agrees in its first `known` codes.
    void sort(std::uint32_t* group, std::size_t size, std::uint32_t known) {
        if (items_.size() < size) {
            items_.resize(size);
            spare_.resize(size >= kRadixFrom ? size : 0);
        }
        refine(group, size, known);
    }

  private:
    std::uint64_t key_of(std::uint32_t position, std::uint32_t known) const {
        const std::uint32_t wanted = std::min(per_key_, depth_ - known);
        std::uint64_t key = 0;
        std::uint32_t taken = 0;
        const std::uint32_t* p = codes_.data() + (position - 1 - known);
        for (; taken < wanted; ++taken, --p) {
            if (*p == 0) break;
            key = (key << bits_) | *p;
        }
        // A context that has ended sorts before all longer ones: it is padded with zeros.
        return taken == 0 ? 0 : key << (bits_ * static_cast<int>(per_key_ - taken));
    }

    void refine(std::uint32_t* group, std::size_t size, std::uint32_t known) {
        while (size > 1 && known < depth_) {
            if (size > kRadixFrom) job_.poll();
            std::uint64_t differ = 0, first = 0;
            for (std::size_t i = 0; i < size; ++i) {
                if (i + kAhead < size) {
                    const std::uint32_t* p = codes_.data() + (group[i + kAhead] - 1 - known);
                    __builtin_prefetch(p);
                }
                const std::uint64_t key = key_of(group[i], known);
                if (i == 0) first = key;
                differ |= key ^ first;
                items_[i] = Item{key, group[i]};
            }
            const std::uint32_t taken = std::min(per_key_, depth_ - known);
            if (differ != 0) {
                sort_items(size, differ);
                for (std::size_t i = 0; i < size; ++i) group[i] = items_[i].position;
                return refine_runs(group, size, known);
            }
            if (ended(first, taken)) return;
            known += taken;
        }
    }

    bool ended(std::uint64_t key, std::uint32_t taken) const {
        const std::uint64_t mask = bits_ == 64 ? ~0ull : (1ull << bits_) - 1;
        return ((key >> (bits_ * static_cast<int>(per_key_ - taken))) & mask) == 0;
    }

    // Sorts runs of equal keys by deeper codes. All runs are recorded first, since the recursion reuses the
    // keys' memory.
    void refine_runs(std::uint32_t* group, std::size_t size, std::uint32_t known) {
        const std::uint32_t taken = std::min(per_key_, depth_ - known);
        const std::size_t base = runs_.size();
        for (std::size_t i = 0; i < size;) {
            std::size_t j = i + 1;
            while (j < size && items_[j].key == items_[i].key) ++j;
            if (j - i > 1 && !ended(items_[i].key, taken)) runs_.push_back({i, j});
            i = j;
        }
        const std::size_t last = runs_.size();
        for (std::size_t r = base; r < last; ++r)
            refine(group + runs_[r].first, runs_[r].second - runs_[r].first, known + taken);
        runs_.resize(base);
    }

    void sort_items(std::size_t size, std::uint64_t differ) {
        if (size < kRadixFrom) {
            // Ties are broken by position: positions of a group are ascending, so this is stable.
            std::sort(items_.begin(), items_.begin() + size, [](const Item& a, const Item& b) {
                return a.key != b.key ? a.key < b.key : a.position < b.position;
            });
            return;
        }
        for (int byte = 0; byte < 8; ++byte) {
            const int shift = byte * 8;
            if (((differ >> shift) & 0xFF) == 0) continue;
            std::array<std::size_t, 257> starts{};
            for (std::size_t i = 0; i < size; ++i) ++starts[((items_[i].key >> shift) & 0xFF) + 1];
            for (std::size_t v = 0; v < 256; ++v) starts[v + 1] += starts[v];
            for (std::size_t i = 0; i < size; ++i)
                spare_[starts[(items_[i].key >> shift) & 0xFF]++] = items_[i];
            items_.swap(spare_);
        }
    }

    std::span<const std::uint32_t> codes_;
    int bits_;
    std::uint32_t per_key_;
    std::uint32_t depth_;
    SegmentJob& job_;
    std::vector<Item> items_, spare_;
    std::vector<std::pair<std::size_t, std::size_t>> runs_;
};

}  // namespace

void sort_contexts(std::span<const std::uint32_t> codes, std::uint32_t alphabet, std::uint32_t depth,
                   std::vector<std::uint32_t>& order, std::vector<std::uint32_t>& buckets, SegmentJob& job) {
    buckets.assign(std::size_t{alphabet} + 2, 0);
    for (std::uint32_t p : order) ++buckets[codes[p - 1] + 1];
    std::size_t largest = 0;
    for (std::size_t c = 0; c <= alphabet; ++c) {
        largest = std::max<std::size_t>(largest, buckets[c + 1]);
        buckets[c + 1] += buckets[c];
    }
    {
        std::vector<std::uint32_t> sorted(order.size());
        std::vector<std::uint32_t> place(buckets.begin(), buckets.end() - 1);
        for (std::uint32_t p : order) sorted[place[codes[p - 1]]++] = p;
        order.swap(sorted);
    }
    Sorter sorter(codes, alphabet, depth, job);
    for (std::size_t c = 1; c <= alphabet; ++c) {
        sorter.sort(order.data() + buckets[c], buckets[c + 1] - buckets[c], 1);
        job.poll();
        if (c % 256 == 0)
            job.report(0.8 * static_cast<double>(buckets[c]) / static_cast<double>(order.size()));
    }
}

}  // namespace suffixsvc
