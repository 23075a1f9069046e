#include "segment/format/segment_hubs.h"

#include <algorithm>

namespace suffixsvc {

namespace {

constexpr std::size_t kHubBytes = sizeof(SegmentHub) + 4;
constexpr std::size_t kFewHubs = 64;  // always allowed, whatever their size

struct Interval {
    std::uint32_t start;
    std::uint32_t end;
    std::uint32_t depth;
};

// All intervals with at least `least` entries, in preorder.
std::vector<Interval> intervals_of(const SortedColumns& c, std::uint32_t least) {
    std::vector<Interval> found;
    std::vector<Interval> open{{0, 0, 0}};
    for (std::uint32_t i = 1; i <= c.entries; ++i) {
        const std::uint32_t shared = i < c.entries ? c.lcp[i] : 0;
        std::uint32_t start = i - 1;
        while (open.back().depth > shared) {
            const Interval top = open.back();
            open.pop_back();
            if (i - top.start >= least) found.push_back({top.start, i, top.depth});
            start = top.start;
        }
        if (open.back().depth < shared) open.push_back({start, 0, shared});
    }
    std::sort(found.begin(), found.end(), [](const Interval& a, const Interval& b) {
        return a.start != b.start ? a.start < b.start : a.end != b.end ? a.end > b.end : a.depth < b.depth;
    });
    return found;
}

// Counts votes by code, for one interval after the other.
class Counter {
  public:
    explicit Counter(const SortedColumns& columns) : c_(columns), votes_(std::size_t{columns.alphabet} + 1) {
        newest_.resize(votes_.size());
        first_.resize(votes_.size());
    }

    SegmentHub count(const Interval& interval) {
        SegmentHub hub;
        hub.end = interval.end;
        hub.depth = static_cast<std::uint8_t>(interval.depth);
        std::uint64_t total = 0;
        for (std::uint32_t i = interval.start; i < interval.end; ++i) {
            const std::uint32_t code = load_code(c_.next, c_.code_bytes, i);
            const std::uint32_t position = c_.position(i);
            const std::uint32_t weight = c_.weights.empty() ? 1 : c_.weights[c_.texts.at(position)];
            if (newest_[code] == 0) {
                seen_.push_back(code);
                first_[code] = position;
            }
            votes_[code] += weight;
            newest_[code] = std::max(newest_[code], position);
            total += weight;
            hub.newest = std::max(hub.newest, position);
        }
        hub.total = saturated(total);
        const std::size_t kept = std::min<std::size_t>(kHubFollowers, seen_.size());
        std::partial_sort(seen_.begin(), seen_.begin() + kept, seen_.end(),
                          [&](std::uint32_t a, std::uint32_t b) {
                              return votes_[a] != votes_[b] ? votes_[a] > votes_[b] : newest_[a] > newest_[b];
                          });
        hub.followers = static_cast<std::uint8_t>(kept);
        for (std::size_t k = 0; k < kept; ++k) {
            hub.code[k] = seen_[k];
            hub.votes[k] = saturated(votes_[seen_[k]]);
            hub.target[k] = first_[seen_[k]] + 1;  // a position, until find_targets()
        }
        for (std::uint32_t code : seen_) {
            votes_[code] = 0;
            newest_[code] = 0;
        }
        seen_.clear();
        return hub;
    }

  private:
    const SortedColumns& c_;
    std::vector<std::uint64_t> votes_;
    std::vector<std::uint32_t> newest_;
    std::vector<std::uint32_t> first_;  // position of the first entry
    std::vector<std::uint32_t> seen_;
};

// Converts the hubs' targets from positions to entries, in one pass over the order column.
void find_targets(const SortedColumns& c, std::vector<SegmentHub>& hubs) {
    // (position, index of the follower among those of all hubs)
    std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted;
    std::uint32_t largest = 0;
    for (std::size_t h = 0; h < hubs.size(); ++h)
        for (std::size_t k = 0; k < hubs[h].followers; ++k) {
            wanted.emplace_back(hubs[h].target[k], static_cast<std::uint32_t>(h * kHubFollowers + k));
            largest = std::max(largest, hubs[h].target[k]);
            hubs[h].target[k] = kNoEntry;
        }
    std::sort(wanted.begin(), wanted.end());
    std::vector<bool> any(std::size_t{largest} + 1);
    for (const auto& [position, follower] : wanted) any[position] = true;
    for (std::uint32_t i = 0; i < c.entries; ++i) {
        const std::uint32_t position = c.position(i);
        if (position > largest || !any[position]) continue;
        for (auto at = std::lower_bound(wanted.begin(), wanted.end(), std::pair{position, 0u});
             at != wanted.end() && at->first == position; ++at)
            hubs[at->second / kHubFollowers].target[at->second % kHubFollowers] = i;
    }
}

}  // namespace

HubList find_hubs(const SortedColumns& columns, std::uint32_t hub_min, SegmentJob& job) {
    HubList out;
    out.hub_min = hub_min ? hub_min : kHubMin;
    std::vector<Interval> intervals = intervals_of(columns, out.hub_min);
    const std::size_t max_hubs = std::max(kFewHubs, std::size_t{columns.entries} / (2 * kHubBytes));
    while (hub_min == 0 && intervals.size() > max_hubs) {
        out.hub_min *= 2;
        std::erase_if(intervals, [&](const Interval& i) { return i.end - i.start < out.hub_min; });
    }
    Counter counter(columns);
    std::vector<std::uint32_t> path;
    for (const Interval& interval : intervals) {
        job.poll();
        while (!path.empty() && out.hubs[path.back()].end <= interval.start) path.pop_back();
        SegmentHub hub = counter.count(interval);
        hub.parent = path.empty() ? kNoHub : path.back();
        path.push_back(static_cast<std::uint32_t>(out.hubs.size()));
        out.start.push_back(interval.start);
        out.hubs.push_back(hub);
    }
    find_targets(columns, out.hubs);
    out.index.resize(columns.entries / kHubBlock + 2);
    std::size_t hub = 0;
    for (std::size_t b = 0; b < out.index.size(); ++b) {
        while (hub < out.start.size() && out.start[hub] < b * kHubBlock) ++hub;
        out.index[b] = static_cast<std::uint32_t>(hub);
    }
    return out;
}

}  // namespace suffixsvc
